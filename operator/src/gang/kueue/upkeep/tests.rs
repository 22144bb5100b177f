//! What `waitForPodsReady` is told through an eviction.

use ppo_crds::PpoJob;
use ppo_crds::status::PpoJobStatus;

use super::*;
use crate::gang::{Gang, members};
use crate::ledger::Ledger;
use crate::world::Children;

const EARLY: &str = "2026-01-01T00:00:00Z";
const LATE: &str = "2026-01-01T00:10:00Z";

fn job() -> Job {
    let object = json!({
        "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "a", "namespace": "n", "uid": "12345678-9"},
        "spec": {"model": {"policy": {"path": "/m"}}, "prompts": {"source": {"path": "/p.jsonl"}},
                 "roles": {"reward": {"rules": [{"json": {}}]}}, "scheduling": {"gang": "kueue", "queue": "rl"}},
    });
    Job::of(&serde_json::from_value::<PpoJob>(object).unwrap())
}

fn condition(kind: &str, status: &str, reason: &str, since: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": since})
}

/// Reason of PodsReady after the upkeep of a job without pods; None when nothing is written.
fn reason(intent: Intent, conditions: Value) -> Option<String> {
    let job = job();
    let workload = DynamicObject::new(&members::name(&job), &Kind::KueueWorkload.resource());
    let workload = workload.data(json!({"status": {"conditions": conditions}}));
    let mut children = Children::default();
    let key = (Kind::KueueWorkload, members::name(&job));
    children.objects.insert(key, std::sync::Arc::new(workload));
    let now = LATE.parse().unwrap();
    let decision = Decision {
        ledger: Ledger::open(&PpoJobStatus::default(), &job),
        intent,
        wake: None,
        notes: Vec::new(),
        held: Default::default(),
    };
    let upkeep = upkeep(&job, &decision, &Snapshot::plain(children, Gang::Kueue, now), now);
    let [Action::MergeStatus(_, _, patch)] = upkeep.actions.as_slice() else {
        return None;
    };
    let conditions = patch["status"]["conditions"].as_array().unwrap();
    let ready = conditions.iter().find(|condition| condition["type"] == PODS_READY)?;
    assert_eq!(ready["status"], "False");
    Some(ready["reason"].as_str().unwrap().to_owned())
}

#[test]
fn a_job_that_is_evicted_while_it_recovers_waits_for_its_start_again() {
    let evicted = json!([
        condition(EVICTED, "True", "PodsReadyTimeout", LATE),
        condition(QUOTA_RESERVED, "True", "QuotaReserved", EARLY),
        condition(PODS_READY, "False", WAIT_FOR_RECOVERY, EARLY),
    ]);
    let queued = Intent::Suspend;
    assert_eq!(reason(queued, evicted).as_deref(), Some(WAIT_FOR_START));
}

#[test]
fn so_does_one_that_was_admitted_after_its_pods_were_lost() {
    let admitted = |at: &str, lost: &str| {
        json!([
            condition(ADMITTED, "True", "Admitted", at),
            condition(PODS_READY, "False", WAIT_FOR_RECOVERY, lost),
        ])
    };
    assert_eq!(
        reason(Intent::Run, admitted(LATE, EARLY)).as_deref(),
        Some(WAIT_FOR_START)
    );
    // One that recovers in the admission that it had has its time from the loss on.
    assert_eq!(reason(Intent::Run, admitted(EARLY, LATE)), None);
}
