//! What admission checks say of a Workload that has its quota: beside quota, all of them have to pass (`AdmissionCheckState` in Kueue's
//! `apis/kueue/v1beta2/workload_types.go`).

use kube::api::DynamicObject;
use serde_json::Value;

/// Those that have not passed, each with its state and its own words.
pub fn unpassed(workload: &DynamicObject) -> Option<String> {
    let words: Vec<String> = all(workload)
        .filter(|check| check["state"] != "Ready")
        .map(words)
        .collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// Whether one of them is against it for good: Kueue deactivates such a Workload, and resets the check.
pub fn is_rejected(workload: &DynamicObject) -> bool {
    all(workload).any(|check| check["state"] == "Rejected")
}

fn all(workload: &DynamicObject) -> impl Iterator<Item = &Value> {
    workload.data["status"]["admissionChecks"]
        .as_array()
        .into_iter()
        .flatten()
}

fn words(check: &Value) -> String {
    let text = |field: &str| check[field].as_str().unwrap_or_default();
    let said = text("message").split_whitespace().collect::<Vec<_>>().join(" ");
    let said = match said.trim_end_matches('.') {
        "" => String::new(),
        said => format!(": {said}"),
    };
    format!("admission check {} is {}{said}", text("name"), text("state"))
}
