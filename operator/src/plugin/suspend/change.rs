//! Sets `spec.runPolicy.suspend` in one job.

use anyhow::Result;
use kube::ResourceExt as _;
use kube::api::{DynamicObject, Patch, PatchParams};
use ppo_crds::status::Phase;
use serde_json::{Value, json};

use crate::plugin::connection::Connection;
use crate::plugin::{checkpoints, job, printer, unreadable};

/// Name under which the plugin writes; `why` says by it who suspended a job.
pub const MANAGER: &str = "kubectl-ppo";

/// What `spec.runPolicy.suspend` is to be.
#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) suspend: bool,
    /// Whoever asks gives up checkpoints that go with their pod.
    pub(super) is_agreed: bool,
}

impl Change {
    pub(super) fn done(self) -> &'static str {
        if self.suspend { "suspended" } else { "resumed" }
    }
}

/// Why nothing becomes of a change, in words behind the job's name.
pub(super) fn over(job: &DynamicObject) -> Option<String> {
    if let Some(phase) = job::phase(job).filter(|phase| phase.is_finished()) {
        return Some(format!("has ended ({phase:?})"));
    }
    job::is_going(job).then(|| "was deleted, and is only waiting for its end".into())
}

/// Sets it in this job; a line that says so.
pub(super) async fn apply(connection: &Connection, job: &DynamicObject, change: Change) -> Result<String> {
    let name = job.name_any();
    let before = job.data.pointer("/spec/runPolicy/suspend").and_then(Value::as_bool);
    if before.unwrap_or_default() == change.suspend {
        return Ok(unchanged(&name, job::phase(job), change.suspend));
    }
    // Of one that cannot be decoded the field can be set all the same.
    let lost = match unreadable::decode(job).ok().filter(|_| change.suspend) {
        Some(job) => checkpoints::given_up(&job, change.is_agreed, &format!("{name} is not suspended"))?,
        None => None,
    };
    let patch = json!({"spec": {"runPolicy": {"suspend": change.suspend}}});
    let parameters = PatchParams {
        field_manager: Some(MANAGER.into()),
        ..PatchParams::default()
    };
    let patched = connection.jobs().patch(&name, &parameters, &Patch::Merge(patch)).await;
    patched.map_err(|error| job::request(connection, "patch").refused(error))?;
    let note = lost.map(|lost| format!("; {lost}")).unwrap_or_default();
    Ok(format!("ppojob {name} {}{note}\n", change.done()))
}

/// Warns of a job that the operator cannot read: nothing comes of the change before that is mended.
pub(super) async fn warn_of_misfit(connection: &Connection, job: &DynamicObject) {
    if let Err(misfit) = unreadable::decode(job) {
        let words = unreadable::explained(connection, &job.name_any(), &misfit)
            .await
            .to_string();
        anstream::eprintln!("warning: {}", printer::visible(&words));
    }
}

/// Says that the job is as it was to be. It may be told to run and yet have no pods: whoever resumes it wants to know why.
fn unchanged(name: &str, phase: Option<Phase>, suspend: bool) -> String {
    match (suspend, phase) {
        (true, _) => format!("ppojob {name} was suspended before\n"),
        (false, Some(Phase::Running)) => format!("ppojob {name} is not suspended: it runs\n"),
        (false, phase) => {
            let phase = phase.unwrap_or_default();
            format!("ppojob {name} is not suspended ({phase:?}); `kubectl ppo why {name}` says what it waits for\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_resumes_a_job_that_is_not_suspended_is_told_where_to_look() {
        let queued = unchanged("a", Some(Phase::Queued), false);
        assert!(
            queued.contains("not suspended (Queued)") && queued.contains("`kubectl ppo why a`"),
            "{queued}"
        );
        assert!(unchanged("a", Some(Phase::Running), false).ends_with("it runs\n"));
        assert_eq!(
            unchanged("a", Some(Phase::Suspended), true),
            "ppojob a was suspended before\n"
        );
    }
}
