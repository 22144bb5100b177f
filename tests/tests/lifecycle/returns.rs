//! A change that is taken back leaves no trace: the job and its objects are as they were. As Acto tests operators (SOSP'23).

use ppo_crds::status::Phase;
use ppo_tests::{State, state};
use serde_json::{Value, json};

use crate::job::Stage;

/// Changes of everything that may change on a job that runs, each with what takes it back.
fn changes() -> Vec<(Value, Value)> {
    let run_policy = |field: &str, value: Value| json!({"runPolicy": {field: value}});
    let set_and_cleared = |field: &str| (run_policy(field, json!(90_000)), run_policy(field, Value::Null));
    let rollout = |change: Value| json!({"roles": {"rollout": change}});
    let policy = |change: Value| json!({"failurePolicy": change});
    let labels = |labels: Value| json!({"metadata": {"labels": labels}});
    vec![
        (rollout(json!({"replicas": 3})), rollout(json!({"replicas": 2}))),
        (rollout(json!({"replicas": 1})), rollout(json!({"replicas": 2}))),
        (rollout(json!({"minReplicas": 2})), rollout(json!({"minReplicas": 1}))),
        (
            rollout(json!({"template": labels(json!({"a": "b"}))})),
            rollout(json!({"template": null})),
        ),
        (run_policy("suspend", json!(true)), run_policy("suspend", json!(false))),
        (
            run_policy("cleanPodPolicy", json!("All")),
            run_policy("cleanPodPolicy", json!("Running")),
        ),
        set_and_cleared("activeDeadlineSeconds"),
        set_and_cleared("preRunningDeadlineSeconds"),
        set_and_cleared("progressDeadlineSeconds"),
        set_and_cleared("ttlSecondsAfterFinished"),
        (policy(json!({"maxRestarts": 7})), policy(json!({"maxRestarts": null}))),
        (
            policy(json!({"maxRestartsPerRole": {"actor": 1}})),
            policy(json!({"maxRestartsPerRole": null})),
        ),
        (
            policy(json!({"rules": [{"action": "FailJob", "exitCodes": [9]}]})),
            policy(json!({"rules": null})),
        ),
        (
            json!({"scheduling": {"priorityClassName": "b"}}),
            json!({"scheduling": {"priorityClassName": null}}),
        ),
    ]
}

/// Raised by every restart, and by every change of the spec.
const RAISED: [&str; 6] = [
    "attempt",
    "podAttempts",
    "generation",
    "observedGeneration",
    "ppojob.dev/attempt",
    "message",
];

/// The state, but for what only ever rises.
async fn lasting(stage: &Stage<'_>) -> anyhow::Result<State> {
    let mut state = state(&stage.namespace).await?;
    state.values_mut().for_each(forget_attempts);
    Ok(state)
}

fn forget_attempts(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let name = fields.get("name").and_then(Value::as_str).unwrap_or_default();
            if ["PPO_ATTEMPT", "PPO_JOB_ATTEMPT"].contains(&name) {
                fields.remove("value");
            }
            fields.retain(|name, _| !RAISED.contains(&name.as_str()));
            fields.values_mut().for_each(forget_attempts);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_attempts),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_is_taken_back_restores_the_first_state() {
    let stage = Stage::running("back", json!({})).await;
    // The last object that a job gets, once its actor is ready.
    stage.has_budget(true).await;
    // Engines may be ready after it.
    stage
        .status("all pods to be ready", |status| status.ready.as_deref() == Some("4/4"))
        .await;
    let first = lasting(&stage).await.unwrap();
    for (change, back) in changes() {
        stage.patch(json!({"spec": change})).await;
        stage.looked_at().await;
        stage.patch(json!({"spec": back})).await;
        stage.looked_at().await;
        stage.phase(Phase::Running).await;
        stage
            .wait(&format!("the first state after {change} and {back}"), async || {
                let now = lasting(&stage).await?;
                let mut differences = first
                    .keys()
                    .chain(now.keys())
                    .filter(|name| first.get(*name) != now.get(*name));
                if let Some(name) = differences.next() {
                    anyhow::bail!("{name} is\n{:?}\ninstead of\n{:?}", now.get(name), first.get(name));
                }
                Ok(())
            })
            .await;
    }
}
