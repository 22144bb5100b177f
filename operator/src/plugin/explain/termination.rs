//! How a container ended, in a sentence and with a remedy.

use k8s_openapi::api::core::v1::ContainerStateTerminated;
use ppo_crds::pod::WORKER_CONTAINER;
use ppo_crds::report::{Outcome, Reason, exit_code};

use super::evidence::one_line;
use super::finding::{Cause, Finding};
use super::remedy;

/// What the end of a container of this job means. `last_line` is the last line of its log, where it could be read.
pub fn finding(job: &str, container: &str, end: &ContainerStateTerminated, last_line: Option<&str>) -> Finding {
    if end.reason.as_deref() == Some("OOMKilled") {
        return Finding::blocking(
            Cause::OutOfMemory,
            format!(
                "Container {container} used more memory than its limit and was killed (OOMKilled, exit code {}).",
                end.exit_code
            ),
            remedy::OUT_OF_MEMORY,
        );
    }
    let written = end.message.as_deref().unwrap_or_default();
    if let Ok(outcome) = serde_json::from_str::<Outcome>(written.trim()) {
        let (reason, message) = (outcome.reason, one_line(&outcome.message));
        let what = format!(
            "Container {container} ended with {reason:?} (exit code {}): {message}.",
            end.exit_code
        );
        let fix = of_outcome(reason).map_or_else(|| logs(job, container), str::to_owned);
        return Finding::blocking(Cause::Crashed, what, fix);
    }
    let last_line = written.lines().rev().find(|line| !line.trim().is_empty()).or(last_line);
    let said = match last_line {
        Some(line) => format!("; its last words: {}", shorten(&one_line(line))),
        None => String::new(),
    };
    let signal = match signal(end) {
        Some(signal) => format!(" ({signal})"),
        None => String::new(),
    };
    Finding::blocking(
        Cause::Crashed,
        format!(
            "Container {container} ended with exit code {}{signal}{said}.",
            end.exit_code
        ),
        of_start(end)
            .or_else(|| of_exit_code(container, end.exit_code))
            .map_or_else(|| logs(job, container), str::to_owned),
    )
}

/// None where the log alone says more.
fn of_outcome(reason: Reason) -> Option<&'static str> {
    Some(match reason {
        Reason::Diverged => remedy::DIVERGED,
        Reason::RewardFailed => "bring the reward's servers back, or raise spec.roles.reward.remote.maxRetries",
        Reason::DataError => "correct the line of the prompts that the message names",
        Reason::Interrupted => {
            "nothing: it saved a checkpoint, and goes on from there where spec.checkpoint names a claim or a mounted volume"
        }
        Reason::Completed => "nothing",
        Reason::RankLost => "see how the pod of the rank that the message names ended, and whether its node is there",
        Reason::InternalError | Reason::Other => return None,
    })
}

fn logs(job: &str, container: &str) -> String {
    let chosen = match container {
        WORKER_CONTAINER => String::new(),
        other => format!(" --container {other}"),
    };
    format!(
        "read its log: `kubectl ppo logs {job}{chosen}` (`--previous` for a container that was restarted in its pod)"
    )
}

/// Of a container that never ran, and so has no log: containerd's words (`internal/cri/server/container_start.go`), and the kubelet's.
fn of_start(end: &ContainerStateTerminated) -> Option<&'static str> {
    let reason = end.reason.as_deref()?;
    let said = end.message.as_deref().unwrap_or_default();
    let says = |words: &[&str]| words.iter().any(|words| said.contains(words));
    ["StartError", "ContainerCannotRun"].contains(&reason).then(|| {
        if says(&["nvidia-container"]) {
            "the node's NVIDIA driver or container toolkit is not well: see its GPU operator's or device plugin's pods, or use another node"
        } else if says(&["executable file not found", "no such file or directory", "permission denied"]) {
            LACKS_PROGRAM
        } else {
            "`kubectl describe pod <pod>` shows all that the node says of it"
        }
    })
}

const LACKS_PROGRAM: &str =
    "the image lacks the program: correct the image or the command in spec.roles.<role>.template";

/// None where the log alone says more: so does that of a program other than `ppo-worker`, for codes that are agreed on with that one.
fn of_exit_code(container: &str, code: i32) -> Option<&'static str> {
    let of_worker = container == WORKER_CONTAINER;
    Some(match code {
        exit_code::BAD_CONFIGURATION if of_worker => {
            "correct the manifest, the arguments or the data as its log says; another try ends the same way"
        }
        exit_code::DIVERGED if of_worker => remedy::DIVERGED,
        exit_code::INTERRUPTED if of_worker => {
            "nothing: it saved a checkpoint, and goes on from there where spec.checkpoint names a claim or a mounted volume"
        }
        126 | 127 => LACKS_PROGRAM,
        137 => {
            "somebody killed it without its memory limit being the reason: the node may have been out of memory, or it did not stop in its grace period"
        }
        139 => "the process broke memory rules: keep the log, and report it with versions of image, driver and GPU",
        _ => return None,
    })
}

/// The signal behind an exit code above 128.
fn signal(end: &ContainerStateTerminated) -> Option<&'static str> {
    match end.signal.unwrap_or(end.exit_code - 128) {
        6 => Some("SIGABRT"),
        7 => Some("SIGBUS"),
        9 => Some("SIGKILL"),
        11 => Some("SIGSEGV"),
        15 => Some("SIGTERM"),
        _ => None,
    }
}

fn shorten(line: &str) -> String {
    const LONGEST: usize = 300;
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sidecars_exit_code_is_not_read_as_the_workers() {
        let fix = |container: &str| {
            let end = ContainerStateTerminated {
                exit_code: exit_code::BAD_CONFIGURATION,
                ..ContainerStateTerminated::default()
            };
            finding("rloo", container, &end, None).fix
        };
        assert!(fix("worker").starts_with("correct the manifest"));
        assert!(fix("copy-model").starts_with("read its log: `kubectl ppo logs rloo --container copy-model`"));
    }
}
