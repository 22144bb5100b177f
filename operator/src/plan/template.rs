//! The user's pod template with what every role pod needs put in: patched, never replaced. What the user said stays.

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, PodSecurityContext, PodSpec, PodTemplateSpec,
    ResourceRequirements, SeccompProfile, SecurityContext, Toleration, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// User and group of the worker's image, which has no root.
const UNPRIVILEGED: i64 = 65_532;

/// Seconds a pod stays on a node that does not answer, before it is replaced elsewhere. Kubernetes' own default is 300.
const LOST_NODE_SECONDS: i64 = 60;

/// Where any container may write: what is there goes with the pod.
pub const SCRATCH: &str = "/tmp";

/// The container of that name, made if the template has none.
pub fn container<'a>(spec: &'a mut PodSpec, name: &str) -> &'a mut Container {
    let at = spec.containers.iter().position(|container| container.name == name);
    let at = at.unwrap_or_else(|| {
        spec.containers.push(Container {
            name: name.into(),
            ..Container::default()
        });
        spec.containers.len() - 1
    });
    &mut spec.containers[at]
}

/// The template's spec, or an empty one.
pub fn spec(template: Option<&PodTemplateSpec>) -> PodSpec {
    template.and_then(|template| template.spec.clone()).unwrap_or_default()
}

/// What the restricted profile of the Pod Security Standards asks for, where the template says nothing else.
pub fn restrict(spec: &mut PodSpec) {
    spec.automount_service_account_token.get_or_insert(false);
    spec.enable_service_links.get_or_insert(false);
    let pod = spec.security_context.get_or_insert_with(PodSecurityContext::default);
    pod.run_as_non_root.get_or_insert(true);
    pod.run_as_user.get_or_insert(UNPRIVILEGED);
    pod.run_as_group.get_or_insert(UNPRIVILEGED);
    pod.fs_group.get_or_insert(UNPRIVILEGED);
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
        let context = container.security_context.get_or_insert_with(SecurityContext::default);
        context.allow_privilege_escalation.get_or_insert(false);
        context.read_only_root_filesystem.get_or_insert(true);
        context.capabilities.get_or_insert_with(|| Capabilities {
            drop: Some(vec!["ALL".into()]),
            add: None,
        });
    }
}

/// Leaves a node that does not answer sooner than by default.
pub fn leave_lost_nodes(spec: &mut PodSpec) {
    let tolerations = spec.tolerations.get_or_insert_default();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covered = tolerations
            .iter()
            .any(|known| known.key.as_deref().is_none_or(|known| known == key));
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
