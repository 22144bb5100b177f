//! Whether an observed object still says what it should. What others added beside it is theirs.

use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::Value;

use super::Action;
use crate::snapshot::Snapshot;
use crate::world::Kind;

/// What brings the object to `desired`; None when it is there and says so. It is made, not applied, where it is not there: somebody
/// else may have that name. What is there is the job's own, and is changed only as long as it is the same one.
pub fn repair(kind: Kind, mut desired: DynamicObject, seen: &Snapshot) -> Option<Action> {
    let name = desired.name_any();
    let Some(observed) = seen.object(kind, &name) else {
        // Made a moment ago: what the watch will show is what was sent.
        let coming = seen.exists(kind, &name);
        return (!coming).then(|| Action::Create(kind, Box::new(desired)));
    };
    let labels = desired
        .labels()
        .iter()
        .all(|(key, value)| observed.labels().get(key) == Some(value));
    let as_desired = labels
        && desired
            .annotations()
            .keys()
            .all(|key| observed.annotations().contains_key(key))
        && observed.owner_references() == desired.owner_references()
        && contains(&observed.data, &desired.data);
    desired.metadata.uid = observed.uid();
    (!as_desired).then(|| Action::Apply(kind, Box::new(desired)))
}

/// Whether `observed` has everything that `desired` says; an empty value says the same as an absent one.
pub fn contains(observed: &Value, desired: &Value) -> bool {
    match (observed, desired) {
        (Value::Object(observed), Value::Object(desired)) => {
            desired.iter().all(|(key, desired)| match observed.get(key) {
                Some(observed) => contains(observed, desired),
                None => is_empty(desired),
            })
        }
        (Value::Array(observed), Value::Array(desired)) => {
            observed.len() == desired.len()
                && observed
                    .iter()
                    .zip(desired)
                    .all(|(observed, desired)| contains(observed, desired))
        }
        _ => observed == desired,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_server_defaulted_is_no_drift_and_what_someone_changed_is() {
        let desired = json!({"clusterIP": "None", "ports": [{"port": 8000}], "selector": {"a": "b"}, "empty": {}});
        let defaulted = json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 8000, "protocol": "TCP"}],
                               "selector": {"a": "b"}});
        assert!(contains(&defaulted, &desired));
        let changed = json!({"clusterIP": "None", "ports": [{"port": 80}], "selector": {"a": "b"}});
        assert!(!contains(&changed, &desired));
        let added = json!({"clusterIP": "None", "ports": [{"port": 8000}, {"port": 1}], "selector": {"a": "b"}});
        assert!(!contains(&added, &desired));
    }
}
