//! The job of unit tests: an actor and an engine, without the other roles.

use ppo_crds::PpoJob;
use serde_json::{Value, json};

use crate::job::Job;

/// `a` in the namespace `n`, with this `runPolicy`.
#[allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
pub fn smallest_job(run_policy: &Value) -> Job {
    let object = json!({
        "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "a", "namespace": "n", "uid": "12345678-9"},
        "spec": {"model": {"policy": {"path": "/m"}}, "prompts": {"source": {"path": "/p.jsonl"}},
            "algorithm": {"kl": {"coef": 0.0}}, "roles": {"reward": {"rules": [{"json": {}}]}}, "runPolicy": run_policy},
    });
    Job::of(&serde_json::from_value::<PpoJob>(object).unwrap())
}
