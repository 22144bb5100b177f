//! What `waitForPodsReady` is told through an eviction, and what quota is given back.

use ppo_crds::status::PpoJobStatus;

use super::*;
use crate::condition::Truth;
use crate::gang::{Gang, Lookups, kueue, members};
use crate::ledger::Ledger;
use crate::smallest_job::smallest_job;
use crate::world::Children;

const EARLY: &str = "2026-01-01T00:00:00Z";
const LATE: &str = "2026-01-01T00:10:00Z";

/// A job of so many engines.
fn job_of(engines: u32) -> Job {
    smallest_job(&json!({
        "roles": {"rollout": {"replicas": engines}}, "scheduling": {"gang": "kueue", "queue": "rl"},
    }))
}

fn job() -> Job {
    job_of(1)
}

fn decision(job: &Job, intent: Intent) -> Decision {
    Decision::of(Ledger::open(&PpoJobStatus::default(), job), intent)
}

/// The cluster with this Workload of the job, and no pods.
fn seen(job: &Job, workload: DynamicObject) -> Snapshot {
    let mut children = Children::default();
    let key = (Kind::KueueWorkload, members::name(job));
    children.objects.insert(key, std::sync::Arc::new(workload));
    Snapshot::plain(children, Gang::Kueue, LATE.parse().unwrap())
}

fn condition(kind: &str, status: &str, reason: &str, since: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": since})
}

/// Reason of PodsReady after the upkeep of a job without pods; None when nothing is written.
fn reason(intent: Intent, conditions: Value) -> Option<String> {
    let job = job();
    let workload = DynamicObject::new(&members::name(&job), &Kind::KueueWorkload.resource());
    let workload = workload.data(json!({"status": {"conditions": conditions}}));
    let now = LATE.parse().unwrap();
    let upkeep = upkeep(&job, &decision(&job, intent), &seen(&job, workload), now);
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

/// Engines that may run of a job that wants so many, and what is given back.
fn reclaimable(engines: u32, status: &Value) -> (u32, Option<Value>) {
    let job = job_of(engines);
    let workload = DynamicObject::new(&members::name(&job), &Kind::KueueWorkload.resource());
    let workload = workload.data(json!({"spec": {"podSets": [{"name": "rollout", "count": 4}]}, "status": status}));
    let mut seen = seen(&job, workload);
    seen.admission = kueue::admission(&job, &seen.children, &Lookups::default());
    let Admission::Admitted(places) = &seen.admission else {
        panic!("{:?}", seen.admission);
    };
    let upkeep = upkeep(&job, &decision(&job, Intent::Run), &seen, LATE.parse().unwrap());
    let given = upkeep.actions.into_iter().next().map(|action| match action {
        Action::MergeStatus(_, _, patch) => patch["status"]["reclaimablePods"].clone(),
        other => panic!("{other:?}"),
    });
    (places[&Role::Rollout].count, given)
}

#[test]
fn what_engines_give_back_counts_from_those_that_were_asked_for_though_fewer_were_admitted() {
    let given = json!([{"name": "rollout", "count": 3}]);
    let mut status = json!({
        "conditions": [condition(ADMITTED, "True", "Admitted", EARLY)],
        "admission": {"podSetAssignments": [{"name": "rollout", "count": 2}]},
    });
    assert_eq!(reclaimable(4, &status), (2, None));
    assert_eq!(reclaimable(2, &status), (2, None));
    assert_eq!(reclaimable(1, &status), (2, Some(given.clone())));

    status["reclaimablePods"] = given;
    assert_eq!(reclaimable(1, &status), (1, None));
    // Kueue lets nobody take it back.
    assert_eq!(reclaimable(2, &status), (1, None));
}

#[test]
fn a_job_whose_priority_class_is_not_there_yet_looks_for_it_again() {
    let job = job();
    let mut seen = Snapshot::plain(Children::default(), Gang::Kueue, EARLY.parse().unwrap());
    let waits = decision(&job, Intent::Queue(Truth::no("PriorityClassMissing", "there is none")));
    let look = |seen: &Snapshot| upkeep(&job, &waits, seen, LATE.parse().unwrap()).wake;
    seen.lookups.priority = Some(Priority::NoSuchClass);
    assert_eq!(look(&seen), Some("2026-01-01T00:10:30Z".parse().unwrap()));
    seen.lookups.priority = Some(Priority::Of(0, None));
    assert_eq!(look(&seen), None, "Kueue's answer is watched");
}
