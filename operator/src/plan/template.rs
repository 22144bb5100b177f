//! The user's pod template with what every role pod needs put in: patched, never replaced. What the user said stays.

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, PodSecurityContext, PodSpec,
    ResourceRequirements, SeccompProfile, SecurityContext, Toleration, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use ppo_crds::pod::{VLLM_CONTAINER, WORKER_CONTAINER};

const ROOT: i64 = 0;

/// Seconds a pod stays on a node that does not answer, before it is replaced elsewhere. Kubernetes' own default is 300.
const LOST_NODE_SECONDS: i64 = 60;

/// Where any container may write: what is there goes with the pod.
pub const SCRATCH: &str = "/tmp";

/// What the restricted profile of the Pod Security Standards asks for, where the template says nothing else. What it says must
/// stay possible: a container that it makes root, or privileged, is not forbidden to be.
pub fn restrict(spec: &mut PodSpec, user: Option<i64>) {
    spec.automount_service_account_token.get_or_insert(false);
    spec.enable_service_links.get_or_insert(false);
    let pod = spec.security_context.get_or_insert_with(PodSecurityContext::default);
    pod.run_as_user = pod.run_as_user.or(user);
    let root = pod.run_as_user == Some(ROOT);
    pod.run_as_non_root.get_or_insert(!root);
    pod.run_as_group = pod.run_as_group.or(user);
    pod.fs_group = pod.fs_group.or(user);
    // A claim of checkpoints holds many large files; to change their group at every start would take minutes.
    pod.fs_group_change_policy
        .get_or_insert_with(|| "OnRootMismatch".into());
    pod.seccomp_profile.get_or_insert_with(|| SeccompProfile {
        type_: "RuntimeDefault".into(),
        localhost_profile: None,
    });
    for container in spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten())
    {
        restrict_container(container);
    }
}

fn restrict_container(container: &mut Container) {
    let ours = [WORKER_CONTAINER, VLLM_CONTAINER].contains(&container.name.as_str());
    let context = container.security_context.get_or_insert_with(SecurityContext::default);
    if context.run_as_user == Some(ROOT) {
        context.run_as_non_root.get_or_insert(false);
    }
    let added = context.capabilities.iter().flat_map(|given| given.add.iter().flatten());
    let may_all = added
        .into_iter()
        .any(|name| ["SYS_ADMIN", "CAP_SYS_ADMIN"].contains(&name.as_str()));
    // The API server refuses to forbid it to these.
    if !may_all && context.privileged != Some(true) {
        context.allow_privilege_escalation.get_or_insert(false);
    }
    // Others may need to write where they are.
    if ours {
        context.read_only_root_filesystem.get_or_insert(true);
    }
    context.capabilities.get_or_insert_with(|| Capabilities {
        drop: Some(vec!["ALL".into()]),
        add: None,
    });
}

/// Leaves a node that does not answer sooner than by default.
pub fn leave_lost_nodes(spec: &mut PodSpec) {
    let tolerations = spec.tolerations.get_or_insert_default();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covered = tolerations.iter().any(|known| {
            // Without an effect it is for every effect; one for another keeps no pod on such a node.
            let of_effect = matches!(known.effect.as_deref(), None | Some("" | "NoExecute"));
            of_effect && known.key.as_deref().is_none_or(|known| known == key)
        });
        if !covered {
            tolerations.push(Toleration {
                key: Some(key.into()),
                operator: Some("Exists".into()),
                effect: Some("NoExecute".into()),
                toleration_seconds: Some(LOST_NODE_SECONDS),
                value: None,
            });
        }
    }
}

/// Sets a variable. The operator's word counts: ranks and attempts are not the template's to choose.
pub fn set_env(container: &mut Container, variable: EnvVar) {
    let env = container.env.get_or_insert_default();
    env.retain(|known| known.name != variable.name);
    env.push(variable);
}

/// Sets a variable that the template may choose.
pub fn default_env(container: &mut Container, variable: EnvVar) {
    let env = container.env.get_or_insert_default();
    if env.iter().all(|known| known.name != variable.name) {
        env.push(variable);
    }
}

/// A variable with a plain value.
pub fn env(name: &str, value: impl ToString) -> EnvVar {
    EnvVar {
        name: name.into(),
        value: Some(value.to_string()),
        value_from: None,
    }
}

/// Adds a port, unless the template has one of that name.
pub fn add_port(container: &mut Container, name: &str, port: u16) {
    let ports = container.ports.get_or_insert_default();
    if ports.iter().any(|known| known.name.as_deref() == Some(name)) {
        return;
    }
    ports.push(ContainerPort {
        name: Some(name.into()),
        container_port: port.into(),
        ..ContainerPort::default()
    });
}

/// Adds a volume and its mount in `containers`, unless the template mounts something at that path.
pub fn add_volume(spec: &mut PodSpec, volume: Volume, mount: &VolumeMount, containers: &[&str]) {
    let mut used = false;
    for container in spec
        .containers
        .iter_mut()
        .filter(|known| containers.contains(&known.name.as_str()))
    {
        let mounts = container.volume_mounts.get_or_insert_default();
        if mounts.iter().all(|known| known.mount_path != mount.mount_path) {
            mounts.push(mount.clone());
            used = true;
        }
    }
    if used {
        spec.volumes.get_or_insert_default().push(volume);
    }
}

/// A scratch folder at `path`; `Memory` keeps it off the disk.
pub fn scratch(name: &str, path: &str, medium: Option<&str>) -> (Volume, VolumeMount) {
    let volume = Volume {
        name: name.into(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: medium.map(str::to_string),
            size_limit: None,
        }),
        ..Volume::default()
    };
    let mount = VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        ..VolumeMount::default()
    };
    (volume, mount)
}

/// Asks for GPUs, unless the template asks for devices itself: by that name, or by a claim of dynamic resource allocation.
pub fn ask_for_gpus(container: &mut Container, resource: &str, gpus: u32) {
    let resources = container.resources.get_or_insert_with(ResourceRequirements::default);
    let claimed = resources.claims.as_ref().is_some_and(|claims| !claims.is_empty());
    let named = resources
        .limits
        .as_ref()
        .is_some_and(|limits| limits.contains_key(resource));
    if gpus == 0 || claimed || named {
        return;
    }
    let quantity = Quantity(gpus.to_string());
    resources
        .limits
        .get_or_insert_default()
        .insert(resource.into(), quantity.clone());
    resources
        .requests
        .get_or_insert_default()
        .insert(resource.into(), quantity);
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use super::*;

    #[test]
    fn a_toleration_keeps_a_pod_on_a_lost_node_only_if_it_is_for_eviction() {
        let added = |given: serde_json::Value| {
            let mut spec: PodSpec = from_value(json!({"containers": [], "tolerations": [given]})).unwrap();
            leave_lost_nodes(&mut spec);
            let tolerations = spec.tolerations.unwrap().into_iter().skip(1);
            let seconds = tolerations.filter_map(|known| known.toleration_seconds);
            seconds.collect::<Vec<i64>>()
        };
        let both = [LOST_NODE_SECONDS; 2];
        assert_eq!(added(json!({"key": "nvidia.com/gpu", "operator": "Exists"})), both);
        assert_eq!(added(json!({"operator": "Exists", "effect": "NoSchedule"})), both);
        assert!(added(json!({"operator": "Exists"})).is_empty());
        assert!(added(json!({"operator": "Exists", "effect": "NoExecute"})).is_empty());
    }

    #[test]
    fn a_template_that_makes_a_container_root_or_privileged_gets_no_word_that_forbids_it() {
        let spec = |given| {
            let mut spec: PodSpec = from_value(given).unwrap();
            restrict(&mut spec, Some(65_532));
            to_value(&spec).unwrap()
        };
        let chown = json!({"name": "chown", "securityContext": {"runAsUser": 0}});
        let fast = json!({"name": "fast", "securityContext": {"privileged": true}});
        let admin = json!({"name": "admin", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}});
        let given = json!({"initContainers": [chown], "containers": [{"name": "worker"}, fast, admin]});
        let made = spec(given);
        assert_eq!(made["securityContext"]["runAsNonRoot"], true);
        assert_eq!(made["initContainers"][0]["securityContext"]["runAsNonRoot"], false);
        let context = |at: usize| made["containers"][at]["securityContext"].clone();
        assert_eq!(context(0)["allowPrivilegeEscalation"], false);
        assert_eq!(context(0)["readOnlyRootFilesystem"], true);
        for at in [1, 2] {
            assert!(context(at)["allowPrivilegeEscalation"].is_null(), "{}", context(at));
            assert!(context(at)["readOnlyRootFilesystem"].is_null(), "{}", context(at));
        }
        let mut elsewhere = PodSpec::default();
        restrict(&mut elsewhere, None);
        let context = elsewhere.security_context.unwrap();
        assert_eq!(
            (context.run_as_user, context.fs_group, context.run_as_non_root),
            (None, None, Some(true))
        );
        let mut of_root = PodSpec::default();
        restrict(&mut of_root, Some(ROOT));
        assert_eq!(of_root.security_context.unwrap().run_as_non_root, Some(false));
        let root = spec(json!({"securityContext": {"runAsUser": 0}, "containers": []}));
        assert_eq!(root["securityContext"]["runAsNonRoot"], false);
    }
}
