//! What is shown of jobs that do not run or got less than they asked for, and of kinds that are gone.

use k8s_openapi::jiff::Timestamp;
use ppo_crds::spec::Role;
use serde_json::json;

use super::label::PHASES;
use super::*;
use crate::gang::{Admission, Gang, Place};
use crate::smallest_job::smallest_job;
use crate::world::Children;

fn line(metrics: &Metrics, name: &str) -> Vec<String> {
    let text = metrics.text().unwrap();
    let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    lines.map(str::to_owned).collect()
}

/// A job of two engines.
fn job() -> Job {
    smallest_job(&json!({"roles": {"rollout": {"replicas": 2}}}))
}

fn seen() -> Snapshot {
    Snapshot::plain(Children::default(), Gang::None, Timestamp::UNIX_EPOCH)
}

#[test]
fn a_job_that_does_not_run_asks_for_no_pods_and_no_gpus() {
    let metrics = Metrics::new().unwrap();
    let roles = json!([{"name": "rollout", "desired": 2, "ready": 1}]);
    for (phase, wanted) in PHASES.map(|phase| (phase, wants(phase))) {
        let status = serde_json::from_value(json!({"phase": phase, "roles": roles})).unwrap();
        metrics.observe(&job(), &status, &seen());
        let labels = "{job=\"a\",namespace=\"n\",role=\"rollout\"";
        let desired = format!("ppojob_role_pods{labels},state=\"desired\"}} {wanted}");
        assert!(line(&metrics, "ppojob_role_pods").contains(&desired), "{phase:?}");
        let gpus = format!("ppojob_role_gpus{labels}}} {wanted}");
        assert_eq!(line(&metrics, "ppojob_role_gpus"), [gpus], "{phase:?}");
        let ready = format!(
            "ppojob_role_pods{labels},state=\"ready\"}} {}",
            u32::from(!phase.is_finished())
        );
        assert!(line(&metrics, "ppojob_role_pods").contains(&ready), "{phase:?}");
    }
}

#[test]
fn pods_that_a_queue_did_not_admit_are_not_missing() {
    let place = Place {
        count: 1,
        ..Place::default()
    };
    let partly = Snapshot {
        admission: Admission::Admitted([(Role::Rollout, place)].into()),
        ..seen()
    };
    let status = json!({"phase": "Running", "roles": [{"name": "rollout", "desired": 2, "ready": 1}]});
    let metrics = Metrics::new().unwrap();
    metrics.observe(&job(), &serde_json::from_value(status).unwrap(), &partly);
    let labels = "{job=\"a\",namespace=\"n\",role=\"rollout\"";
    let desired = format!("ppojob_role_pods{labels},state=\"desired\"}} 1");
    assert!(line(&metrics, "ppojob_role_pods").contains(&desired));
    assert_eq!(
        line(&metrics, "ppojob_role_gpus"),
        [format!("ppojob_role_gpus{labels}}} 1")]
    );
}

#[test]
fn what_a_job_waits_for_in_vain_is_its_only_series_and_one_that_waits_for_nothing_has_a_zero() {
    let metrics = Metrics::new().unwrap();
    let observe = |phase: &str, reason: &str| {
        let gang = json!({"type": "GangScheduled", "status": "False", "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let status = json!({"phase": phase, "conditions": [gang]});
        metrics.observe(&job(), &serde_json::from_value(status).unwrap(), &seen());
        line(&metrics, "ppojob_waiting")
    };
    let series = |reason: &str, value: u8| {
        [format!(
            "ppojob_waiting{{job=\"a\",namespace=\"n\",reason=\"{reason}\"}} {value}"
        )]
    };
    assert_eq!(observe("Queued", "Pending"), series("", 0));
    assert_eq!(
        observe("Queued", "GangSchedulerMissing"),
        series("GangSchedulerMissing", 1)
    );
    assert_eq!(observe("Queued", "SchedulerSilent"), series("SchedulerSilent", 1));
    assert_eq!(observe("Failed", "SchedulerSilent"), series("", 0));
    observe("Queued", "QueueMissing");
    metrics.forget(&job().key);
    assert!(line(&metrics, "ppojob_waiting").is_empty());
}

#[test]
fn what_an_attempt_has_not_measured_yet_is_not_shown_of_the_one_before() {
    let metrics = Metrics::new().unwrap();
    let observe = |progress: serde_json::Value| {
        let status = json!({"phase": "Running", "progress": progress});
        metrics.observe(&job(), &serde_json::from_value(status).unwrap(), &seen());
        ["ppojob_kl", "ppojob_reward"].map(|name| line(&metrics, name).len())
    };
    assert_eq!(observe(json!({"step": 4, "reward": 0.5, "kl": 60.0})), [1, 1]);
    assert_eq!(observe(json!({"step": 4})), [0, 0]);
}

#[test]
fn every_series_of_a_deleted_job_goes_with_it_and_no_other() {
    let metrics = Metrics::new().unwrap();
    let empty = metrics.text().unwrap();
    let status = json!({
        "phase": "Running", "activeSince": "2026-01-01T00:00:00Z", "startTime": "2026-01-01T00:01:00Z",
        "roles": [{"name": "rollout", "desired": 2, "ready": 1}, {"name": "actor", "desired": 1, "ready": 1}],
        "progress": {"step": 4, "total": 9, "reward": 0.5, "kl": 0.1},
    });
    let job = job();
    metrics.observe(&job, &serde_json::from_value(status).unwrap(), &seen());
    metrics.progress(vec![(job.key.clone(), 3.0)]);
    let of_jobs = metrics.described().into_iter().map(|metric| metric.name);
    for name in of_jobs.filter(|name| name.starts_with("ppojob_")) {
        assert!(!line(&metrics, &name).is_empty(), "{name}");
    }
    let other = JobKey {
        namespace: "elsewhere".into(),
        ..job.key.clone()
    };
    let shown = metrics.text().unwrap();
    metrics.forget(&other);
    assert_eq!(metrics.text().unwrap(), shown);
    metrics.forget(&job.key);
    assert_eq!(metrics.text().unwrap(), empty);
}

fn wants(phase: Phase) -> u32 {
    match phase {
        Phase::Queued | Phase::Suspended | Phase::Succeeded | Phase::Failed => 0,
        Phase::Pending | Phase::Scheduling | Phase::Initializing | Phase::Running | Phase::Restarting => 2,
    }
}

#[test]
fn what_is_remembered_no_more_counts_no_more_and_kinds_of_one_name_are_counted_together() {
    let metrics = Metrics::new().unwrap();
    let native = [(Kind::NativePodGroupAlpha, 1), (Kind::NativePodGroupBeta, 2)];
    metrics.cached(&native.into_iter().chain([(Kind::Pod, 4)]).collect());
    let cached = line(&metrics, "ppo_operator_cached_objects");
    assert!(
        cached.contains(&"ppo_operator_cached_objects{kind=\"PodGroup\"} 3".into()),
        "{cached:?}"
    );
    metrics.cached(&BTreeMap::new());
    let cached = line(&metrics, "ppo_operator_cached_objects");
    assert_eq!(cached.len(), Kind::BUILTIN.len());
    assert!(cached.iter().all(|line| line.ends_with(" 0")), "{cached:?}");
}

#[test]
fn the_time_that_the_alert_of_slow_reconciles_asks_about_is_a_bound() {
    // Between two bounds a quantile is only guessed: three seconds were taken for six.
    let text = Metrics::new().unwrap().text().unwrap();
    let bound = "ppo_operator_reconcile_duration_seconds_bucket{le=\"5\"} 0";
    assert!(text.contains(bound), "{text}");
}
