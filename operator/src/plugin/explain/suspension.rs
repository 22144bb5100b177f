//! Whether the job is suspended, and by whom.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use k8s_openapi::jiff::Timestamp;

use super::evidence::Evidence;
use super::finding::{Cause, Finding};
use crate::plugin::age;

/// The suspension; pods that still save their checkpoint are named with it.
pub fn findings(evidence: &Evidence, now: Timestamp) -> Vec<Finding> {
    let writes = evidence.job.metadata.managed_fields.iter().flatten();
    let by = writes
        .filter(|write| sets_suspend(write))
        .max_by_key(|write| write.time.as_ref().map(|time| time.0));
    let manager = by.and_then(|write| write.manager.as_deref());
    let when = by
        .and_then(|write| write.time.as_ref())
        .map(|time| age::since(time.0, now));
    let who = match (manager, when) {
        (Some(manager), Some(when)) => format!(" by {manager} {when} ago"),
        (Some(manager), None) => format!(" by {manager}"),
        (None, _) => String::new(),
    };
    let checkpoint = evidence.status().progress.and_then(|progress| progress.last_checkpoint);
    let is_kept = evidence.job.spec.outlives_pods();
    let from = match (evidence.pods.len(), checkpoint) {
        (0, Some(_)) if !is_kept => {
            " Its checkpoints went with its pod (spec.checkpoint names no claim and no mounted volume): it will start at step 0.".into()
        }
        (0, Some(step)) => format!(" It will go on from the checkpoint of step {step}."),
        (0, None) => " It has no checkpoint and will start at step 0.".into(),
        (pods, _) => format!(" {pods} of its pods are still there: the actor saves a checkpoint, then they go."),
    };
    let fix = match manager.is_some_and(|manager| manager.contains("kueue")) {
        true => "wait for quota: the queue resumes it (`kubectl get workloads.kueue.x-k8s.io` shows its place)".into(),
        false => format!("`kubectl ppo resume {}`", evidence.name()),
    };
    let what = format!("The job was suspended{who} (spec.runPolicy.suspend).{from}");
    vec![Finding::blocking(Cause::Suspended, what, fix)]
}

fn sets_suspend(write: &ManagedFieldsEntry) -> bool {
    let fields = write.fields_v1.as_ref().map(|fields| &fields.0);
    fields.is_some_and(|fields| fields.pointer("/f:spec/f:runPolicy/f:suspend").is_some())
}
