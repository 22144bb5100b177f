//! What is shown of jobs that do not run, and of kinds that are gone.

use ppo_crds::PpoJob;
use serde_json::json;

use super::*;

fn line(metrics: &Metrics, name: &str) -> Vec<String> {
    let text = metrics.text().unwrap();
    let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    lines.map(str::to_owned).collect()
}

#[test]
fn a_job_that_does_not_run_asks_for_no_pods_and_no_gpus() {
    let object = json!({
        "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "a", "namespace": "n", "uid": "1"},
        "spec": {
            "model": {"policy": {"path": "/m"}}, "prompts": {"source": {"path": "/p.jsonl"}},
            "roles": {"rollout": {"replicas": 2}, "reward": {"rules": [{"json": {}}]}},
        },
    });
    let job = Job::of(&serde_json::from_value::<PpoJob>(object).unwrap());
    let metrics = Metrics::new().unwrap();
    let roles = json!([{"name": "rollout", "desired": 2, "ready": 1}]);
    for (phase, wanted) in PHASES.map(|phase| (phase, wants(phase))) {
        let status = serde_json::from_value(json!({"phase": phase, "roles": roles})).unwrap();
        metrics.observe(&job, &status);
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
