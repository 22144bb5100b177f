//! The pods of the roles.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Container, EnvVar, EnvVarSource, HTTPGetAction, Pod, PodSpec, Probe, SecretKeySelector,
    Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use ppo_crds::pod::{
    CONFIG_FILE, CONFIG_FOLDER, RUNS_FOLDER, TOKEN_KEY, VLLM_CONTAINER, WORKER_CONTAINER, annotation, config_name,
    env as variable, label, pod_name, port, service_name, token_name,
};
use ppo_crds::spec::Role;

use super::action::Action;
use super::images::Images;
use super::object::{metadata, untyped};
use super::shape::{computing, role_template};
use super::template::{
    SCRATCH, add_port, add_volume, ask_for_gpus, default_env, env, leave_lost_nodes, restrict, scratch, set_env,
};
use super::{placement, storage, vllm};
use crate::containers::container;
use crate::job::{Job, RolePods};
use crate::lifecycle::{Decision, Intent};
use crate::settings::PodSettings;
use crate::snapshot::Snapshot;
use crate::world::Kind;

/// Seconds the actor has after SIGTERM to finish its step and save; the other roles hold nothing. A pod of a lost node is waited for as long
/// (`retire::hangs_at`), so it is what most steps and checkpoints need, and a template may say more.
const ACTOR_GRACE_SECONDS: i64 = 600;
const GRACE_SECONDS: i64 = 30;

/// Creations of the pods that should be there and are not. All at once: a gang scheduler waits for the whole gang.
pub fn missing(job: &Job, decision: &Decision, seen: &Snapshot, settings: &PodSettings) -> Vec<Action> {
    if decision.intent != Intent::Run {
        return Vec::new();
    }
    let images = Images::of(job, seen, settings);
    let wanted = job
        .roles
        .iter()
        .flat_map(|role| (0..seen.count(*role)).map(move |index| (*role, index)));
    wanted
        .filter(|(role, index)| {
            let name = pod_name(&job.key.name, role.role, *index);
            let free = !seen.exists(Kind::Pod, &name) && !decision.held.contains(&name);
            free && !seen.gang.comes_after(job, &decision.ledger, *role, *index, seen)
        })
        .map(|(role, index)| {
            let mut object = untyped(Kind::Pod, &pod(job, role, index, decision, settings, images));
            seen.gang.join(&mut object, job, role, index, seen, settings);
            Action::Create(Kind::Pod, Box::new(object))
        })
        .collect()
}

/// One pod: the user's template, with what the role needs.
fn pod(job: &Job, role: RolePods, index: u32, decision: &Decision, settings: &PodSettings, images: Images<'_>) -> Pod {
    let template = role_template(job, role.role, settings);
    let attempt = decision.ledger.attempt_of(role.role, index);
    let name = pod_name(&job.key.name, role.role, index);
    let mut pod = Pod {
        metadata: metadata(job, &name),
        spec: Some(template.spec.unwrap_or_default()),
        status: None,
    };
    label_pod(&mut pod, template.metadata, role.role, index, attempt);
    if let Some(floor) = told_floor(job, role.role) {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(annotation::MIN_REPLICAS.into(), floor.to_string());
    }
    if let Some(spec) = &mut pod.spec {
        spec.hostname = Some(name);
        spec.subdomain = Some(service_name(&job.key.name, role.role));
        // A container that ends is the operator's to judge.
        spec.restart_policy = Some("Never".into());
        let grace = if role.role == Role::Actor {
            ACTOR_GRACE_SECONDS
        } else {
            GRACE_SECONDS
        };
        let grace = *spec.termination_grace_period_seconds.get_or_insert(grace);
        if !job.spec.scheduling.priority_class_name.is_empty() {
            spec.priority_class_name = Some(job.spec.scheduling.priority_class_name.clone());
        }
        worker(container(spec, WORKER_CONTAINER), role.role, settings, images);
        let mut variables = environment(job, role, index, attempt, decision.ledger.status.attempt);
        if role.role == Role::Actor {
            variables.push(env(variable::GRACE, grace));
        }
        let worker = container(spec, WORKER_CONTAINER);
        variables.into_iter().for_each(|variable| set_env(worker, variable));
        let computing = computing(job, role.role);
        if computing == VLLM_CONTAINER {
            vllm::add(spec, job, settings, images);
        }
        ask_for_gpus(container(spec, computing), &settings.gpu_resource, role.gpus);
        volumes(spec, job, role.role);
        placement::finds_services(spec);
        restrict(spec, settings.user);
        leave_lost_nodes(spec);
    }
    pod
}

/// The template's labels and annotations, then ours.
fn label_pod(pod: &mut Pod, given: Option<ObjectMeta>, role: Role, index: u32, attempt: u32) {
    let given = given.unwrap_or_default();
    let mut labels = given.labels.unwrap_or_default();
    labels.extend(pod.metadata.labels.take().unwrap_or_default());
    labels.insert(label::ROLE.into(), role.name().into());
    labels.insert(label::INDEX.into(), index.to_string());
    let mut annotations = given.annotations.unwrap_or_default();
    annotations.insert(annotation::ATTEMPT.into(), attempt.to_string());
    pod.metadata.labels = Some(labels);
    pod.metadata.annotations = Some(annotations);
}

/// The container that runs `ppo-worker`: image, command and probes where the template says nothing.
fn worker(container: &mut Container, role: Role, settings: &PodSettings, images: Images<'_>) {
    container.image.get_or_insert_with(|| images.worker.into());
    container
        .image_pull_policy
        .get_or_insert_with(|| settings.image_pull_policy.clone());
    if container.command.is_none() {
        container.command = Some(vec!["ppo-worker".into()]);
        let args = container.args.get_or_insert_default();
        // A template's flags are the role's, which it need not name.
        if !args.iter().any(|given| given == role.name()) {
            args.insert(0, role.name().into());
        }
    }
    // Models of a hub are kept below it, and the image's own home cannot be written.
    default_env(container, env("HOME", SCRATCH));
    // What the process last said is read from its log when it wrote no outcome.
    container
        .termination_message_policy
        .get_or_insert_with(|| "FallbackToLogsOnError".into());
    add_port(container, "metrics", port::METRICS);
    match role {
        Role::Actor => add_port(container, "rendezvous", port::RENDEZVOUS),
        Role::Rollout | Role::Reference | Role::Reward => add_port(container, "http", port::HTTP),
    }
    let ready = Probe {
        period_seconds: Some(5),
        timeout_seconds: Some(3),
        failure_threshold: Some(3),
        ..Probe::default()
    };
    ask(container.readiness_probe.get_or_insert(ready), "/readyz");
    // Answered from the first second on, by a thread that does nothing else: who misses it for five minutes will answer nobody again.
    let alive = Probe {
        period_seconds: Some(15),
        timeout_seconds: Some(10),
        failure_threshold: Some(20),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        ..Probe::default()
    };
    ask(container.liveness_probe.get_or_insert(alive), "/healthz");
}

/// Whom a probe asks, where the template gives nothing but its times.
fn ask(probe: &mut Probe, path: &str) {
    if probe.exec.is_some() || probe.grpc.is_some() || probe.tcp_socket.is_some() {
        return;
    }
    probe.http_get.get_or_insert_with(|| HTTPGetAction {
        path: Some(path.into()),
        port: IntOrString::String("metrics".into()),
        ..HTTPGetAction::default()
    });
}

/// What the process is told of its place.
fn environment(job: &Job, role: RolePods, index: u32, attempt: u32, job_attempt: u32) -> Vec<EnvVar> {
    let name = &job.key.name;
    let address = |role: Role, port: u16| format!("{}.{}.svc:{port}", service_name(name, role), job.key.namespace);
    let first = format!(
        "{}.{}",
        pod_name(name, role.role, 0),
        address(role.role, port::RENDEZVOUS)
    );
    let ranks = role.gpus.max(1);
    // The door of a vLLM computes nothing: the GPUs are the other container's.
    let gpus = match computing(job, role.role) {
        WORKER_CONTAINER => role.gpus,
        _ => 0,
    };
    let mut variables = vec![
        env(variable::JOB, name),
        env(variable::ROLE, role.role.name()),
        env(variable::INDEX, index),
        env(variable::NODES, role.pods),
        env(variable::RANKS_PER_NODE, ranks),
        env(variable::GPUS, gpus),
        env(variable::WORLD_SIZE, u64::from(ranks) * u64::from(role.pods)),
        env(variable::RENDEZVOUS, first),
        env(variable::ATTEMPT, attempt),
        env(variable::JOB_ATTEMPT, job_attempt),
        env(variable::CONFIG, format!("{CONFIG_FOLDER}/{CONFIG_FILE}")),
        env(
            variable::READY_DEADLINE,
            job.spec.run_policy.pre_running_deadline_seconds,
        ),
        token(job),
    ];
    let others = job.roles.iter().flat_map(|other| {
        let port = if other.role == Role::Actor {
            port::METRICS
        } else {
            port::HTTP
        };
        let ranks = variable::ranks(other.role).map(|name| env(name, other.gpus.max(1)));
        [
            Some(env(variable::service(other.role), address(other.role, port))),
            ranks,
        ]
    });
    variables.extend(others.flatten());
    variables.extend(told_floor(job, role.role).map(|floor| env(variable::MIN_REPLICAS, floor)));
    variables
}

/// The engines below which a role waits. It is told at its start, and a pod says what it was told.
fn told_floor(job: &Job, role: Role) -> Option<u32> {
    let engines = job.role(Role::Rollout).filter(|_| role == Role::Actor)?;
    Some(engines.floor)
}

fn token(job: &Job) -> EnvVar {
    EnvVar {
        name: variable::TOKEN.into(),
        value: None,
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: token_name(&job.key.name),
                key: TOKEN_KEY.into(),
                optional: None,
            }),
            ..EnvVarSource::default()
        }),
    }
}

fn volumes(spec: &mut PodSpec, job: &Job, role: Role) {
    let containers = [WORKER_CONTAINER, VLLM_CONTAINER];
    let config = Volume {
        name: "ppo-config".into(),
        config_map: Some(ConfigMapVolumeSource {
            name: config_name(&job.key.name),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    };
    let mount = VolumeMount {
        name: "ppo-config".into(),
        mount_path: CONFIG_FOLDER.into(),
        read_only: Some(true),
        ..VolumeMount::default()
    };
    add_volume(spec, config, &mount, &containers[..1]);
    // Ranks on one node, and vLLM's workers, pass tensors through shared memory; a container's own has 64 MiB.
    for (name, path, medium) in [
        ("ppo-shm", "/dev/shm", Some("Memory")),
        ("ppo-tmp", SCRATCH, None),
        ("ppo-runs", RUNS_FOLDER, None),
    ] {
        let (volume, mount) = scratch(name, path, medium);
        add_volume(spec, volume, &mount, &containers);
    }
    let (claims, mounts) = storage::mounts(job, role);
    for (claim, mount) in claims.into_iter().zip(&mounts) {
        add_volume(spec, claim, mount, &containers);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::smallest_job::smallest_job;

    #[test]
    fn a_rank_is_told_how_many_there_are_on_its_node_and_over_all_nodes_and_where_they_meet() {
        let job = smallest_job(&json!({"roles": {"actor": {"nodes": 2, "gpusPerNode": 4}}}));
        let variables = environment(&job, job.role(Role::Actor).unwrap(), 1, 3, 2);
        for (name, value) in [
            (variable::ROLE, "actor"),
            (variable::INDEX, "1"),
            (variable::NODES, "2"),
            (variable::RANKS_PER_NODE, "4"),
            (variable::GPUS, "4"),
            (variable::WORLD_SIZE, "8"),
            // The first pod's, whichever pod is told.
            (variable::RENDEZVOUS, "a-actor-0.a-actor.n.svc:29500"),
            (variable::ATTEMPT, "3"),
            (variable::JOB_ATTEMPT, "2"),
        ] {
            let told = variables.iter().find(|variable| variable.name == name);
            assert_eq!(told.and_then(|told| told.value.as_deref()), Some(value), "{name}");
        }
    }

    /// Command and arguments of a reference's container of which a template says this.
    fn started(container: Value) -> (Vec<String>, Vec<String>) {
        let mut container: Container = serde_json::from_value(container).unwrap();
        let settings = PodSettings::default();
        worker(&mut container, Role::Reference, &settings, Images::chosen(&settings));
        (
            container.command.unwrap_or_default(),
            container.args.unwrap_or_default(),
        )
    }

    #[test]
    fn flags_in_a_template_follow_the_roles_own_command() {
        let command = ["ppo-worker".to_owned()];
        let (program, args) = started(json!({"name": "worker"}));
        assert_eq!(
            (program.as_slice(), args.as_slice()),
            (&command[..], &["reference".to_owned()][..])
        );
        let (program, args) = started(json!({"name": "worker", "args": ["--threads", "8"]}));
        assert_eq!(program, command);
        assert_eq!(args, ["reference", "--threads", "8"]);
        // Who names the role has written the whole of it.
        let (_, args) = started(json!({"name": "worker", "args": ["--log-format", "text", "reference"]}));
        assert_eq!(args, ["--log-format", "text", "reference"]);
        let (program, args) = started(json!({"name": "worker", "command": ["sh", "-c"], "args": ["sleep 1"]}));
        assert_eq!(
            (program, args),
            (vec!["sh".into(), "-c".into()], vec!["sleep 1".into()])
        );
    }
}
