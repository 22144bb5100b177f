//! Whether an observed object still has the fields that it should. Fields that others added are left alone.

use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::Value;

use super::action::Action;
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
        && desired
            .owner_references()
            .iter()
            .all(|owner| observed.owner_references().contains(owner))
        && contains(&observed.data, &desired.data);
    desired.metadata.uid = observed.uid();
    (!as_desired).then(|| Action::Apply(kind, Box::new(desired)))
}

/// Fields that say less, or let somebody else in, when anything is added, be it an empty selector. Server-side apply replaces them whole,
/// and nothing in them is defaulted.
const EXACT: [&str; 3] = ["ingress", "podSelector", "selector"];

/// A list that server-side apply merges by its entries: it takes away nobody else's.
const SHARED: &str = "ports";

/// Whether `observed` has everything that `desired` says; an empty value says the same as an absent one.
pub fn contains(observed: &Value, desired: &Value) -> bool {
    match (observed, desired) {
        (Value::Object(observed), Value::Object(desired)) => {
            desired
                .iter()
                .all(|(key, desired)| match (key.as_str(), observed.get(key)) {
                    (key, Some(observed)) if EXACT.contains(&key) => observed == desired,
                    (SHARED, Some(observed)) => has_entries(observed, desired),
                    (_, Some(observed)) => contains(observed, desired),
                    (_, None) => is_empty(desired),
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

/// Whether every entry of `desired` is there, wherever it stands.
fn has_entries(observed: &Value, desired: &Value) -> bool {
    let observed = entries(observed);
    let mut desired = entries(desired).iter();
    desired.all(|entry| observed.iter().any(|known| contains(known, entry)))
}

fn entries(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
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
    use std::sync::Arc;

    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::gang::Gang;
    use crate::world::Children;

    #[test]
    fn an_owner_that_somebody_added_is_theirs_and_ours_has_to_be_there() {
        let owner = |uid: &str| json!({"apiVersion": "v1", "kind": "K", "name": "o", "uid": uid});
        let object = |owners: Value| -> DynamicObject {
            let metadata = json!({"name": "a", "ownerReferences": owners});
            serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap()
        };
        let drifted = |observed: Value| {
            let mut children = Children::default();
            let key = (Kind::Service, "a".to_owned());
            children.objects.insert(key, Arc::new(object(observed)));
            let seen = Snapshot::plain(children, Gang::None, Timestamp::UNIX_EPOCH);
            repair(Kind::Service, object(json!([owner("ours")])), &seen).is_some()
        };
        assert!(!drifted(json!([owner("theirs"), owner("ours")])));
        assert!(drifted(json!([owner("theirs")])));
    }

    #[test]
    fn what_is_brought_back_is_the_object_that_was_seen_and_no_other_of_its_name() {
        let object = |metadata: Value, port: u16| -> DynamicObject {
            serde_json::from_value(json!({"metadata": metadata, "spec": {"ports": [{"port": port}]}})).unwrap()
        };
        let mut children = Children::default();
        let changed = object(json!({"name": "a", "uid": "seen"}), 80);
        children
            .objects
            .insert((Kind::Service, "a".to_owned()), Arc::new(changed));
        let seen = Snapshot::plain(children, Gang::None, Timestamp::UNIX_EPOCH);
        let repaired = repair(Kind::Service, object(json!({"name": "a"}), 8000), &seen);
        let Some(Action::Apply(Kind::Service, applied)) = repaired else {
            panic!("{repaired:?}");
        };
        assert_eq!(applied.metadata.uid.as_deref(), Some("seen"));
        // One that is to be made has no uid yet.
        let made = repair(Kind::Service, object(json!({"name": "b"}), 8000), &seen);
        let Some(Action::Create(Kind::Service, made)) = made else {
            panic!("{made:?}");
        };
        assert_eq!(made.metadata.uid, None);
    }

    #[test]
    fn what_the_server_defaulted_is_no_drift_and_what_someone_changed_is() {
        let desired = json!({"clusterIP": "None", "ports": [{"port": 8000}], "selector": {"a": "b"}, "empty": {}});
        let defaulted = json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 8000, "protocol": "TCP"}],
                               "selector": {"a": "b"}});
        assert!(contains(&defaulted, &desired));
        let changed = json!({"clusterIP": "None", "ports": [{"port": 80}], "selector": {"a": "b"}});
        assert!(!contains(&changed, &desired));
    }

    #[test]
    fn a_port_of_somebody_else_stays_and_one_of_ours_has_to_be_there() {
        let desired = json!({"ports": [{"name": "http", "port": 8000}, {"name": "metrics", "port": 9400}]});
        let theirs = json!({"name": "debug", "port": 1, "protocol": "TCP"});
        let http = json!({"name": "http", "port": 8000, "protocol": "TCP"});
        let metrics = json!({"name": "metrics", "port": 9400, "protocol": "TCP"});
        assert!(contains(&json!({"ports": [theirs, http, metrics]}), &desired));
        assert!(!contains(&json!({"ports": [theirs, http]}), &desired));
    }

    #[test]
    fn nothing_is_added_to_whom_a_service_or_a_policy_is_for() {
        let service = json!({"spec": {"selector": {"job": "a"}}});
        let defaulted = json!({"spec": {"selector": {"job": "a"}, "type": "ClusterIP"}});
        assert!(contains(&defaulted, &service));
        let emptied = json!({"spec": {"selector": {"job": "a", "version": "2"}}});
        assert!(!contains(&emptied, &service));

        let own = json!({"matchLabels": {"job": "a"}});
        let policy = json!({"spec": {"podSelector": own, "ingress": [{"from": [{"podSelector": own}]}]}});
        assert!(contains(&policy, &policy));
        let everywhere = json!({"podSelector": own, "namespaceSelector": {}});
        let opened = json!({"spec": {"podSelector": own, "ingress": [{"from": [everywhere]}]}});
        assert!(!contains(&opened, &policy));
        let narrowed = json!({"spec": {"podSelector": own, "ingress": [{"from": [{"podSelector": own}], "ports": [{"port": 1}]}]}});
        assert!(!contains(&narrowed, &policy));
    }
}
