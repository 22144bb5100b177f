//! What the operator remembers of a pod: a few hundred bytes of its several thousand.

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodStatus};
use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt};
use ppo_crds::PpoJob;
use ppo_crds::pod::{WORKER_CONTAINER, annotation, label};
use ppo_crds::report::Outcome;
use ppo_crds::spec::Role;

use super::seen::SeenPod;

/// A role's pod as last observed.
#[derive(Clone, Debug, PartialEq)]
pub struct PodView {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`: what a deletion is bound to.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// Uid of the PpoJob that controls it.
    pub owner: Option<String>,
    /// Its role.
    pub role: Role,
    /// Its index in the role.
    pub index: u32,
    /// The attempt it was made for.
    pub attempt: u32,
    /// Of an actor's: the engines below which it waits, which it was told when it was made.
    pub floor: Option<u32>,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// When its grace ends, once it terminates: `metadata.deletionTimestamp`.
    pub deleting_since: Option<Timestamp>,
    /// Seconds of that grace.
    pub grace_seconds: Option<i64>,
    /// What keeps it when all its containers have ended.
    pub finalizers: Vec<String>,
    /// Its node, once it has one.
    pub node: Option<String>,
    /// The node that it may run on alone, by its label `kubernetes.io/hostname`: a queue chose it.
    pub pinned_to: Option<String>,
    /// The scheduler that it asks for a node, which a policy of the cluster may have changed.
    pub scheduler: Option<String>,
    /// Its address, once it has one.
    pub ip: Option<String>,
    /// Its life.
    pub life: Life,
    /// Whether a container may still run. Where the work has ended, another may outlive it.
    pub alive: bool,
    /// Why it is not ready, or how it ended, in the words of the scheduler, the kubelet or the process. Empty when ready.
    pub reason: String,
    /// The same as a sentence.
    pub message: String,
    /// Exit code of the container that ended it.
    pub exit_code: Option<i32>,
    /// When that was.
    pub ended_at: Option<Timestamp>,
    /// Whether that is `ppo-worker`'s: what an exit code means is agreed on with it alone.
    pub of_worker: bool,
    /// What `ppo-worker` said of its end.
    pub outcome: Option<Outcome>,
    /// Types of its conditions that are True, but for those that every healthy pod has.
    pub conditions: Vec<String>,
    /// Whether it was seen failed before anybody took it away: what is done to it afterwards makes that no loss.
    pub failed_by_itself: bool,
}

/// The label of one node alone.
pub const HOSTNAME: &str = "kubernetes.io/hostname";

/// Where a pod is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// No node yet.
    Unscheduled,
    /// On a node, not ready.
    Starting,
    /// Passed its readiness probe.
    Ready,
    /// The worker exited with 0, whatever became of the containers beside it.
    Succeeded,
    /// A container exited otherwise before that, or the kubelet ended the pod.
    Failed,
}

const HEALTHY: [&str; 6] = [
    "PodScheduled",
    "Initialized",
    "ContainersReady",
    "Ready",
    "PodReadyToStartContainers",
    "PodReadyToStartContainersCondition",
];

impl PodView {
    /// Reason of a pod of which no scheduler has said anything.
    pub const UNSCHEDULED: &str = "Unscheduled";

    /// What matters of `pod`. None for a pod without our labels.
    pub fn of(pod: &SeenPod) -> Option<Self> {
        let role = pod.labels().get(label::ROLE)?;
        let role = Role::ALL.into_iter().find(|known| known.name() == role)?;
        let number = |name| pod.annotations().get(name).and_then(|text| text.parse().ok());
        let status = &pod.status;
        let life = life(pod);
        let ended = ending(status);
        let (reason, message) = explain(life, status, ended.as_ref());
        let of_worker = ended.as_ref().is_some_and(|ending| ending.of_worker);
        Some(Self {
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            resource_version: pod.resource_version().unwrap_or_default(),
            owner: job_of(pod),
            role,
            index: pod.labels().get(label::INDEX)?.parse().ok()?,
            attempt: number(annotation::ATTEMPT).unwrap_or(1),
            floor: number(annotation::MIN_REPLICAS),
            created: pod.creation_timestamp().map(|time| time.0),
            deleting_since: pod.metadata.deletion_timestamp.as_ref().map(|time| time.0),
            grace_seconds: pod.metadata.deletion_grace_period_seconds,
            finalizers: pod.finalizers().to_vec(),
            node: pod.spec.node_name.clone(),
            pinned_to: pod.spec.node_selector.get(HOSTNAME).cloned(),
            scheduler: pod.spec.scheduler_name.clone(),
            ip: status.pod_ip.clone(),
            life,
            alive: may_run(status),
            reason,
            message,
            exit_code: ended.as_ref().map(|ending| ending.exit_code),
            ended_at: ended.as_ref().and_then(|ending| ending.at),
            of_worker,
            outcome: ended
                .filter(|ending| ending.of_worker)
                .and_then(|ending| serde_json::from_str(&ending.message).ok()),
            conditions: true_conditions(status),
            failed_by_itself: false,
        })
    }
}

/// Uid of the PpoJob that controls the pod. One that something else controls is nobody's here, whatever its labels say.
fn job_of(pod: &SeenPod) -> Option<String> {
    let mut owners = pod.owner_references().iter();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    let group = owner.api_version.split_once('/').map(|(group, _)| group);
    let is_job = owner.kind == PpoJob::kind(&()) && group.is_some_and(|group| group == PpoJob::group(&()));
    is_job.then(|| owner.uid.clone())
}

struct Ending {
    of_worker: bool,
    exit_code: i32,
    at: Option<Timestamp>,
    reason: String,
    message: String,
}

/// Reason of a container of which the kernel killed a process for want of memory.
pub const OUT_OF_MEMORY: &str = "OOMKilled";

/// How the pod's work ended: as `worker` did, else as the container that failed. Sidecars are stopped after it, and not always well. Where a
/// container ran out of memory that is the cause, and the worker's own end only follows from it.
fn ending(status: &PodStatus) -> Option<Ending> {
    let containers = || {
        let inits = status.init_container_statuses.iter().flatten();
        status.container_statuses.iter().flatten().chain(inits)
    };
    let failed = |container: &&ContainerStatus| terminated(container).is_some_and(|state| state.exit_code != 0);
    let worker = containers().find(|container| container.name == WORKER_CONTAINER && terminated(container).is_some());
    let done = worker.and_then(terminated).is_some_and(|state| state.exit_code == 0);
    let of_memory = |container: &&ContainerStatus| {
        terminated(container).is_some_and(|state| state.reason.as_deref() == Some(OUT_OF_MEMORY))
    };
    let killed = containers().find(of_memory).filter(|_| !done);
    let ended = killed.or(worker).or_else(|| containers().find(failed))?;
    let state = terminated(ended)?;
    Some(Ending {
        of_worker: ended.name == WORKER_CONTAINER,
        exit_code: state.exit_code,
        at: state.finished_at.as_ref().map(|time| time.0),
        reason: state.reason.clone().unwrap_or_default(),
        message: state.message.clone().unwrap_or_default(),
    })
}

fn terminated(container: &ContainerStatus) -> Option<&k8s_openapi::api::core::v1::ContainerStateTerminated> {
    container.state.as_ref()?.terminated.as_ref()
}

/// Exit code of the work, once it has ended: the worker's, or that of a container beside it that failed. The kubelet calls a pod
/// running as long as any container runs (kubelet_pods.go, getPhase): the vLLM behind a door that ended, or a shipper of logs.
fn exit_of_work(status: &PodStatus) -> Option<i32> {
    let ended = || {
        let containers = status.container_statuses.iter().flatten();
        containers.filter_map(|container| Some((container.name.as_str(), terminated(container)?.exit_code)))
    };
    let worker = ended().find(|(name, _)| *name == WORKER_CONTAINER);
    let beside = || ended().find(|(_, code)| *code != 0);
    worker.or_else(beside).map(|(_, code)| code)
}

/// Whether a container may still run: the kubelet says so of the pod, or did not say yet that the last one has ended.
fn may_run(status: &PodStatus) -> bool {
    let over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    !over && (containers.is_empty() || containers.iter().any(|container| terminated(container).is_none()))
}

fn life(pod: &SeenPod) -> Life {
    match (pod.status.phase.as_deref(), exit_of_work(&pod.status)) {
        // The work is done, though the kubelet calls the pod failed for a container beside it.
        (Some("Succeeded"), _) | (_, Some(0)) => Life::Succeeded,
        (Some("Failed"), _) | (_, Some(_)) => Life::Failed,
        _ if condition(&pod.status, "Ready").is_some_and(|ready| ready.status == "True") => Life::Ready,
        _ if pod.spec.node_name.is_some() => Life::Starting,
        _ => Life::Unscheduled,
    }
}

fn explain(life: Life, status: &PodStatus, ended: Option<&Ending>) -> (String, String) {
    let of_pod = || (text(status.reason.as_ref()), text(status.message.as_ref()));
    match life {
        Life::Ready => Default::default(),
        Life::Succeeded if status.reason.is_none() => ("Exited".into(), "the process ended with exit code 0".into()),
        // The kubelet asked it to end, as in an eviction.
        Life::Succeeded => of_pod(),
        Life::Failed => match ended {
            Some(end) if status.reason.is_none() => (or(&end.reason, "Error"), last_line(end)),
            _ => of_pod(),
        },
        Life::Unscheduled => condition(status, "PodScheduled")
            .filter(|scheduled| scheduled.status == "False")
            .map(|scheduled| (text(scheduled.reason.as_ref()), text(scheduled.message.as_ref())))
            .unwrap_or_else(|| (PodView::UNSCHEDULED.into(), "waits for the scheduler".into())),
        Life::Starting => waiting(status).unwrap_or_else(|| ("Starting".into(), "not ready yet".into())),
    }
}

/// The first container that waits for something that may never come.
fn waiting(status: &PodStatus) -> Option<(String, String)> {
    let inits = status.init_container_statuses.iter().flatten();
    inits
        .chain(status.container_statuses.iter().flatten())
        .filter_map(|container| Some((container, container.state.as_ref()?.waiting.as_ref()?)))
        .find(|(_, waiting)| {
            !matches!(
                waiting.reason.as_deref(),
                Some("ContainerCreating" | "PodInitializing") | None
            )
        })
        .map(|(container, waiting)| {
            let message = format!("container {}: {}", container.name, text(waiting.message.as_ref()));
            (text(waiting.reason.as_ref()), message)
        })
}

/// The outcome's sentence, else the last line of what the process wrote, else the code alone.
fn last_line(end: &Ending) -> String {
    let outcome: Option<Outcome> = serde_json::from_str(&end.message).ok();
    let said = match &outcome {
        Some(outcome) => outcome.message.as_str(),
        None => end.message.trim().lines().last().unwrap_or_default(),
    };
    match said {
        "" => format!("exit code {}", end.exit_code),
        said => format!("exit code {}: {said}", end.exit_code),
    }
}

fn true_conditions(status: &PodStatus) -> Vec<String> {
    let conditions = status.conditions.iter().flatten();
    conditions
        .filter(|condition| condition.status == "True" && !HEALTHY.contains(&condition.type_.as_str()))
        .map(|condition| condition.type_.clone())
        .collect()
}

fn condition<'a>(status: &'a PodStatus, name: &str) -> Option<&'a PodCondition> {
    status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == name)
}

fn text(value: Option<&String>) -> String {
    value.cloned().unwrap_or_default()
}

fn or(value: &str, fallback: &str) -> String {
    if value.is_empty() {
        fallback.into()
    } else {
        value.into()
    }
}

#[cfg(test)]
mod tests {

    use serde_json::{Value, json};

    use super::*;

    fn container(name: &str, exit_code: i32, message: &str) -> Value {
        json!({"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0,
               "state": {"terminated": {"exitCode": exit_code, "message": message}}})
    }

    #[test]
    fn who_ran_out_of_memory_is_why_a_pod_failed_whatever_the_worker_said_of_it_afterwards() {
        let said = json!({"reason": "InternalError", "message": "process 3 of this pod ended"}).to_string();
        let with_reason = |mut container: Value, reason: &str| {
            container["state"]["terminated"]["reason"] = json!(reason);
            container
        };
        let reason = |containers: Value| {
            let pod = json!({
                "metadata": {"name": "a-rollout-0", "labels": {"ppojob.dev/role": "rollout", "ppojob.dev/index": "0"}},
                "status": {"phase": "Failed", "containerStatuses": containers},
            });
            let pod = PodView::of(&serde_json::from_value(pod).unwrap()).unwrap();
            crate::failure::failure_of(&pod).unwrap().reason
        };
        let door = with_reason(container("worker", 1, &said), "Error");
        let vllm = with_reason(container("vllm", 137, ""), "OOMKilled");
        assert_eq!(reason(json!([door, vllm])), "OOMKilled");
        assert_eq!(
            reason(json!([with_reason(container("worker", 1, &said), "OOMKilled")])),
            "OOMKilled"
        );
        assert_eq!(reason(json!([door])), "InternalError");
    }

    #[test]
    fn a_sidecar_that_is_stopped_after_the_worker_does_not_hide_how_that_ended() {
        let pod = |worker: i32| {
            let pod = json!({
                "metadata": {"name": "a-actor-0", "labels": {"ppojob.dev/role": "actor", "ppojob.dev/index": "0"}},
                "status": {
                    "phase": "Failed",
                    "initContainerStatuses": [container("proxy", 143, "terminated")],
                    "containerStatuses": [container("logs", 1, "broken pipe"), container("worker", worker, "bad manifest")],
                },
            });
            PodView::of(&serde_json::from_value(pod).unwrap()).unwrap()
        };
        let failed = pod(2);
        assert_eq!(
            (failed.life, failed.exit_code, failed.of_worker),
            (Life::Failed, Some(2), true)
        );
        assert!(failed.message.contains("bad manifest"), "{}", failed.message);
        // Where the worker ended well the work is done, whatever the kubelet calls the pod.
        let done = pod(0);
        assert_eq!((done.life, done.exit_code), (Life::Succeeded, Some(0)));
        assert_eq!(done.reason, "Exited");
    }

    #[test]
    fn only_a_pod_that_a_ppojob_controls_is_of_a_job() {
        let owner = |api_version: &str, kind: &str, controller: bool| {
            let owner =
                json!({"apiVersion": api_version, "kind": kind, "name": "a", "uid": "1", "controller": controller});
            let pod = json!({"metadata": {
                "name": "a-actor-0", "labels": {"ppojob.dev/role": "actor", "ppojob.dev/index": "0"},
                "ownerReferences": [owner],
            }});
            PodView::of(&serde_json::from_value(pod).unwrap()).unwrap().owner
        };
        assert_eq!(owner("ppojob.dev/v1alpha1", "PpoJob", true).as_deref(), Some("1"));
        for (api_version, kind, controller) in [
            ("batch/v1", "Job", true),
            ("example.org/v1", "PpoJob", true),
            ("v1", "PpoJob", true),
            ("ppojob.dev/v1alpha1", "PpoJob", false),
        ] {
            assert_eq!(owner(api_version, kind, controller), None, "{api_version} {kind}");
        }
    }

    #[test]
    fn a_worker_that_ended_well_when_the_kubelet_evicted_it_was_evicted() {
        let pod = json!({
            "metadata": {"name": "a-rollout-0", "labels": {"ppojob.dev/role": "rollout", "ppojob.dev/index": "0"}},
            "status": {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory.",
                       "containerStatuses": [container("worker", 0, "")]},
        });
        let pod = PodView::of(&serde_json::from_value(pod).unwrap()).unwrap();
        assert_eq!((pod.life, pod.reason.as_str()), (Life::Succeeded, "Evicted"));
        assert!(pod.message.contains("low on resource"), "{}", pod.message);
    }

    #[test]
    fn the_work_has_ended_with_the_worker_or_with_a_failed_container_beside_it_though_others_run() {
        let running = |name: &str| {
            let state = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
            json!({"name": name, "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": state})
        };
        let pod = |containers: Value| {
            let pod = json!({
                "metadata": {"name": "a-rollout-0", "labels": {"ppojob.dev/role": "rollout", "ppojob.dev/index": "0"}},
                "spec": {"nodeName": "node"},
                "status": {"phase": "Running", "containerStatuses": containers},
            });
            PodView::of(&serde_json::from_value(pod).unwrap()).unwrap()
        };
        let door_ended = pod(json!([running("vllm"), container("worker", 2, "tied weights")]));
        assert_eq!(
            (door_ended.life, door_ended.exit_code, door_ended.alive),
            (Life::Failed, Some(2), true)
        );
        assert!(door_ended.message.contains("tied weights"), "{}", door_ended.message);
        let vllm_ended = pod(json!([container("vllm", 137, ""), running("worker")]));
        assert_eq!((vllm_ended.life, vllm_ended.exit_code), (Life::Failed, Some(137)));
        assert!(!vllm_ended.of_worker);
        let done = pod(json!([running("logs"), container("worker", 0, "")]));
        assert_eq!((done.life, done.alive), (Life::Succeeded, true));
        let alone = pod(json!([container("worker", 137, "")]));
        assert_eq!((alone.life, alone.alive), (Life::Failed, false));
        // A container that helps and is done takes nothing with it.
        let helped = pod(json!([container("copy", 0, ""), running("worker")]));
        assert_eq!((helped.life, helped.exit_code), (Life::Starting, None));
    }
}
