//! Pods that have a node and do not run as they should.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::evidence::{Evidence, one_line};
use super::finding::{Cause, Finding};
use super::{image, remedy, termination};
use crate::failure::NOT_ADMITTED;
use crate::plugin::{age, pods};

/// Seconds in which images are pulled, volumes mounted and models loaded without a word.
const START: i64 = 300;

/// What is wrong with the pods on nodes.
pub fn findings(evidence: &Evidence, now: Timestamp) -> Vec<Finding> {
    let placed = evidence
        .living()
        .filter(|pod| pods::node(pod).is_some() || pods::phase(pod) == "Failed");
    let each = placed.flat_map(|pod| {
        let name = pod.name_any();
        let found = of_pod(evidence, pod, now);
        found.into_iter().map(move |finding| finding.of_pod(&name))
    });
    each.collect()
}

/// How the pods of a finished job ended, as far as they still exist.
pub fn ended(evidence: &Evidence) -> Vec<Finding> {
    let each = evidence.living().flat_map(|pod| {
        let name = pod.name_any();
        let failed = failed(evidence, pod).into_iter();
        failed.map(move |finding| {
            Finding {
                blocks: false,
                ..finding
            }
            .of_pod(&name)
        })
    });
    each.collect()
}

fn of_pod(evidence: &Evidence, pod: &Pod, now: Timestamp) -> Vec<Finding> {
    let failed = failed(evidence, pod);
    if !failed.is_empty() {
        return failed;
    }
    if let Some((container, since)) = initializing(pod) {
        return begins(evidence, container, age::seconds_since(since, now));
    }
    // While an init container cannot start, the others wait for it and not for the node.
    let (prepared, stuck): (Vec<_>, Vec<_>) = pods::containers(pod).partition(|status| is_being_prepared(status));
    for statuses in [stuck, prepared] {
        let each = statuses.into_iter();
        let found: Vec<Finding> = each.filter_map(|status| waiting(evidence, pod, status, now)).collect();
        if !found.is_empty() {
            return found;
        }
    }
    if pods::is_ready(pod) {
        return pods::containers(pod)
            .filter_map(|status| restarted(evidence, pod, status))
            .collect();
    }
    not_ready(evidence, pod, now).into_iter().collect()
}

/// A pod that was taken away, or whose containers ended with an error.
fn failed(evidence: &Evidence, pod: &Pod) -> Vec<Finding> {
    let last_line = evidence.last_lines.get(&pod.name_any()).map(String::as_str);
    let status = pod.status.as_ref();
    let given_up = status.and_then(|status| status.reason.as_deref());
    if let Some((reason, message)) = pods::condition(pod, "DisruptionTarget", "True") {
        let fix = match reason {
            "PreemptionByScheduler" => {
                "nothing: it is replaced when there is room; a higher spec.scheduling.priorityClassName keeps it from being preempted"
            }
            // Of a node short of something; a node that shuts down takes its pods away with another reason.
            "TerminationByKubelet" if given_up == Some("Evicted") => EVICTED,
            _ => "nothing: it is replaced, and the restart does not count",
        };
        return vec![Finding::blocking(
            Cause::Disrupted,
            format!("The cluster took the pod away ({reason}): {}.", one_line(message)),
            fix,
        )];
    }
    let ends = pods::containers(pod).filter_map(|status| {
        let end = status.state.as_ref()?.terminated.as_ref()?;
        (end.exit_code != 0).then(|| termination::finding(&evidence.name(), &status.name, end, last_line))
    });
    let ends: Vec<Finding> = ends.collect();
    // Where the kubelet ended them, their codes say less than its words.
    if pods::phase(pod) != "Failed" || given_up.is_none() && !ends.is_empty() {
        return ends;
    }
    let reason = given_up.unwrap_or("no reason given");
    let message = status.and_then(|status| status.message.as_deref()).unwrap_or_default();
    let fix = match reason {
        "Evicted" if !message.starts_with(NOT_ADMITTED) => EVICTED.into(),
        "UnexpectedAdmissionError" => {
            format!(
                "the node's device plugin had no device to give: are its GPUs well? {}",
                describe_node(pod)
            )
        }
        _ => format!("nothing, if it is replaced; else see the node: {}", describe_node(pod)),
    };
    vec![Finding::blocking(
        Cause::Disrupted,
        format!("The kubelet gave the pod up ({reason}): {}.", one_line(message)),
        fix,
    )]
}

fn describe_node(pod: &Pod) -> String {
    format!("`kubectl describe node {}`", pods::node(pod).unwrap_or_default())
}

const EVICTED: &str =
    "the node ran out of what the message names: ask for it in resources of spec.roles.<role>.template";

fn waiting(evidence: &Evidence, pod: &Pod, status: &ContainerStatus, now: Timestamp) -> Option<Finding> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let name = pod.name_any();
    let said = one_line(waiting.message.as_deref().unwrap_or_default());
    let container = &status.name;
    match waiting.reason.as_deref().unwrap_or_default() {
        reason @ ("ErrImagePull"
        | "ImagePullBackOff"
        | "InvalidImageName"
        | "ErrImageNeverPull"
        | "RegistryUnavailable") => {
            // `Back-off pulling image` hides the reason that the event of the failed pull has.
            let event = evidence
                .words(&name, &["Failed"])
                .filter(|words| words.contains("pull image"));
            let words = match said.contains("Back-off") && !said.contains(": ") || said.is_empty() {
                true => event.unwrap_or(said),
                false => said,
            };
            let fix = remedy::of_image(&words, &image::place(evidence, pod, container));
            let what = format!(
                "The image {} of container {container} cannot be pulled ({reason}): {words}.",
                status.image
            );
            Some(Finding::blocking(Cause::Image, what, fix))
        }
        "CrashLoopBackOff" => {
            let end = status.last_state.as_ref()?.terminated.as_ref()?;
            let last_line = evidence.last_lines.get(&name).map(String::as_str);
            let finding = termination::finding(&evidence.name(), container, end, last_line);
            let what = format!(
                "{} It was restarted {} times in its pod.",
                finding.what, status.restart_count
            );
            Some(Finding { what, ..finding })
        }
        _ if is_being_prepared(status) => preparing(evidence, pod, now),
        reason => {
            let fix = remedy::of_preparation(&said);
            Some(Finding::blocking(
                Cause::Preparation,
                format!("Container {container} cannot start ({reason}): {said}."),
                fix,
            ))
        }
    }
}

/// Whether the container's turn has not come yet.
fn is_being_prepared(status: &ContainerStatus) -> bool {
    let waiting = status.state.as_ref().and_then(|state| state.waiting.as_ref());
    let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
    matches!(reason, Some("ContainerCreating" | "PodInitializing"))
}

/// The init container that runs, but for those that run beside the others, and since when.
fn initializing(pod: &Pod) -> Option<(&str, Timestamp)> {
    let beside = |name: &str| {
        let containers = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
        let mut of_name = containers.filter(|container| container.name == name);
        of_name.any(|container| container.restart_policy.is_some())
    };
    let statuses = pod
        .status
        .iter()
        .flat_map(|status| status.init_container_statuses.iter().flatten());
    let mut running = statuses.filter_map(|status| {
        let running = status.state.as_ref()?.running.as_ref()?;
        Some((status.name.as_str(), running.started_at.as_ref()?.0))
    });
    running.find(|(name, _)| !beside(name))
}

/// An init container of the template's runs: as long as it takes.
fn begins(evidence: &Evidence, container: &str, age: i64) -> Vec<Finding> {
    let note = || {
        let what = format!("Init container {container} has run for {}.", age::human(age));
        let logs = format!(
            "`kubectl ppo logs {} --container {container}` shows what it is doing",
            evidence.name()
        );
        Finding::note(Cause::Preparation, what, logs)
    };
    (age > START).then(note).into_iter().collect()
}

fn preparing(evidence: &Evidence, pod: &Pod, now: Timestamp) -> Option<Finding> {
    const FAILURES: [&str; 4] = [
        "FailedMount",
        "FailedAttachVolume",
        "FailedCreatePodSandBox",
        "FailedMapVolume",
    ];
    // Events stay for an hour: once volumes are mounted and the sandbox is there, they are of what has passed.
    let is_prepared = pods::condition(pod, "PodReadyToStartContainers", "True").is_some();
    let failure = evidence.words(&pod.name_any(), &FAILURES);
    if let Some(words) = failure.filter(|_| !is_prepared) {
        let fix = remedy::of_preparation(&words);
        return Some(Finding::blocking(
            Cause::Preparation,
            format!("The pod cannot be prepared: {words}."),
            fix,
        ));
    }
    let since = pod.status.as_ref()?.start_time.as_ref()?.0;
    let age = age::seconds_since(since, now);
    (age > START).then(|| {
        Finding::blocking(
            Cause::Preparation,
            format!(
                "Node {} has prepared the pod for {} without a word (volumes, network, images).",
                pods::node(pod).unwrap_or("none"),
                age::human(age)
            ),
            format!(
                "is the node well? {}; a large image takes minutes on a node for the first time",
                describe_node(pod)
            ),
        )
    })
}

/// A container that runs again after it ended with an error.
fn restarted(evidence: &Evidence, pod: &Pod, status: &ContainerStatus) -> Option<Finding> {
    let end = status.last_state.as_ref()?.terminated.as_ref()?;
    let last_line = evidence.last_lines.get(&pod.name_any()).map(String::as_str);
    let finding = termination::finding(&evidence.name(), &status.name, end, last_line);
    let what = format!("It runs again. {}", finding.what);
    Some(Finding {
        blocks: false,
        what,
        ..finding
    })
}

/// A pod that runs and fails its readiness probe: normal while it loads its model, not for ever.
fn not_ready(evidence: &Evidence, pod: &Pod, now: Timestamp) -> Option<Finding> {
    let started =
        pods::containers(pod).filter_map(|status| status.state.as_ref()?.running.as_ref()?.started_at.as_ref());
    let since = started.map(|time| time.0).max()?;
    let age = age::seconds_since(since, now);
    let probe = evidence.words(&pod.name_any(), &["Unhealthy"]);
    let said = probe.map(|words| format!(": {words}")).unwrap_or_default();
    let what = match age > START {
        true => format!(
            "The pod runs and is not ready, {} after its start{said}.",
            age::human(age)
        ),
        // Without the age and the probe: pods that start together make one finding.
        false => "The pod runs and is not ready yet: it loads its model and meets its peers.".into(),
    };
    Some(match age > START {
        true => {
            let logs = format!("`kubectl ppo logs {}` shows what it is doing", evidence.name());
            Finding::blocking(
                Cause::NotReady,
                what,
                format!("{logs}; a role waits for the roles that it needs"),
            )
        }
        false => Finding::note(Cause::NotReady, what, "wait a little"),
    })
}
