//! A Workload's conditions, read and rewritten as a whole: a merge patch of a list replaces it.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::{Value, json};

/// Kueue holds quota for the Workload.
pub const QUOTA_RESERVED: &str = "QuotaReserved";
/// Its pods may exist.
pub const ADMITTED: &str = "Admitted";
/// Its pods have to go.
pub const EVICTED: &str = "Evicted";
/// It may be admitted again at once.
pub const REQUEUED: &str = "Requeued";
/// All its pods are ready.
pub const PODS_READY: &str = "PodsReady";
/// It is over.
pub const FINISHED: &str = "Finished";

/// The condition of that type.
pub fn get<'a>(workload: &'a DynamicObject, kind: &str) -> Option<&'a Value> {
    let conditions = workload.data["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == kind)
}

/// Whether it is there and holds.
pub fn holds(workload: &DynamicObject, kind: &str) -> bool {
    get(workload, kind).is_some_and(|condition| condition["status"] == "True")
}

/// Its reason and message; empty where it is not there.
pub fn words(workload: &DynamicObject, kind: &str) -> (String, String) {
    let text = |field: &str| {
        let condition = get(workload, kind);
        let text = condition.and_then(|condition| condition[field].as_str());
        text.unwrap_or_default().to_string()
    };
    (text("reason"), text("message"))
}

/// Since when it is as it is.
pub fn since(workload: &DynamicObject, kind: &str) -> Option<Timestamp> {
    get(workload, kind)?["lastTransitionTime"].as_str()?.parse().ok()
}

/// A condition to set.
pub struct Change<'a> {
    /// Its type.
    pub kind: &'a str,
    /// Whether it holds.
    pub holds: bool,
    /// One word.
    pub reason: &'a str,
    /// A sentence.
    pub message: &'a str,
}

/// A merge patch of the status that sets conditions, and `more` beside them, on exactly the observed Workload.
pub fn patch(workload: &DynamicObject, changes: &[Change<'_>], more: Value, now: Timestamp) -> Value {
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let conditions = workload.data["status"]["conditions"].as_array();
    let mut conditions: Vec<Value> = conditions.cloned().unwrap_or_default();
    for change in changes {
        let status = if change.holds { "True" } else { "False" };
        let since = get(workload, change.kind)
            .filter(|known| known["status"] == status)
            .map_or(json!(now), |known| known["lastTransitionTime"].clone());
        conditions.retain(|known| known["type"] != change.kind);
        conditions.push(json!({
            "type": change.kind, "status": status, "reason": change.reason, "message": change.message,
            "lastTransitionTime": since, "observedGeneration": workload.metadata.generation,
        }));
    }
    let mut status = more;
    status["conditions"] = Value::Array(conditions);
    json!({"metadata": {"resourceVersion": workload.resource_version()}, "status": status})
}
