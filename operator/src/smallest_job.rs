//! The job of unit tests: an actor and an engine, without the other roles.

use ppo_crds::PpoJob;
use serde_json::{Value, json};

use crate::job::Job;

/// `a` in the namespace `n`, checked, whose spec has these fields besides.
pub fn smallest_job(fields: &Value) -> Job {
    Job::of(&smallest_object(fields))
}

/// The same as the API server has it.
#[allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
pub fn smallest_object(fields: &Value) -> PpoJob {
    let mut object = json!({
        "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob",
        "metadata": {"name": "a", "namespace": "n", "uid": "12345678-9", "generation": 1},
        "spec": {"model": {"policy": {"path": "/m"}}, "prompts": {"source": {"path": "/p.jsonl"}},
            "algorithm": {"kl": {"coef": 0.0}}, "roles": {"reward": {"rules": [{"json": {}}]}}},
    });
    merge(&mut object["spec"], fields);
    serde_json::from_value(object).unwrap()
}

/// Objects are merged field by field; anything else takes the place of what was there.
fn merge(into: &mut Value, fields: &Value) {
    match (into, fields) {
        (Value::Object(into), Value::Object(fields)) => {
            for (name, field) in fields {
                merge(into.entry(name).or_insert(Value::Null), field);
            }
        }
        (into, other) => *into = other.clone(),
    }
}
