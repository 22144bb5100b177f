//! Where a pod can run at all, and how it finds the others there.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorTerm, PodSpec};
use ppo_crds::pod::WORKER_CONTAINER;

/// Label that every kubelet gives its node.
const ARCHITECTURE: &str = "kubernetes.io/arch";
/// What the worker's images are built for.
const OURS: &str = "amd64";

/// Keeps a pod of the operator's own image from nodes that cannot run it, unless its template says of which architecture they are.
pub fn of_the_images_architecture(spec: &mut PodSpec) {
    let mut workers = spec.containers.iter().filter(|known| known.name == WORKER_CONTAINER);
    let another = workers.any(|worker| worker.image.is_some());
    if !another && !names_an_architecture(spec) {
        let selector = spec.node_selector.get_or_insert_with(BTreeMap::new);
        selector.insert(ARCHITECTURE.into(), OURS.into());
    }
}

fn names_an_architecture(spec: &PodSpec) -> bool {
    let selected = spec
        .node_selector
        .iter()
        .any(|labels| labels.contains_key(ARCHITECTURE));
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|nodes| nodes.required_during_scheduling_ignored_during_execution.as_ref());
    let mut terms = required.into_iter().flat_map(|required| &required.node_selector_terms);
    selected || terms.any(asks_for_one)
}

fn asks_for_one(term: &NodeSelectorTerm) -> bool {
    let mut asked = term.match_expressions.iter().flatten();
    asked.any(|expression| expression.key == ARCHITECTURE)
}

/// A pod on its node's network has its node's name server, which knows no Service, and so none of the other roles.
pub fn finds_services(spec: &mut PodSpec) {
    if spec.host_network == Some(true) {
        spec.dns_policy.get_or_insert_with(|| "ClusterFirstWithHostNet".into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn selector(spec: Value) -> Option<BTreeMap<String, String>> {
        let mut spec: PodSpec = from_value(spec).unwrap();
        of_the_images_architecture(&mut spec);
        spec.node_selector
    }

    fn labels(labels: &[(&str, &str)]) -> Option<BTreeMap<String, String>> {
        let owned = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Some(owned.collect())
    }

    #[test]
    fn the_operators_image_goes_to_nodes_that_can_run_it() {
        let worker = json!([{"name": "worker"}]);
        assert_eq!(
            selector(json!({"containers": worker})),
            labels(&[("kubernetes.io/arch", "amd64")])
        );
        let pool = json!({"containers": worker, "nodeSelector": {"pool": "training"}});
        assert_eq!(
            selector(pool),
            labels(&[("kubernetes.io/arch", "amd64"), ("pool", "training")])
        );
    }

    #[test]
    fn a_template_that_names_its_image_or_an_architecture_goes_where_it_says() {
        let own = json!({"containers": [{"name": "worker", "image": "mine:1"}]});
        assert_eq!(selector(own), None);
        let arm = json!({"containers": [], "nodeSelector": {"kubernetes.io/arch": "arm64"}});
        assert_eq!(selector(arm), labels(&[("kubernetes.io/arch", "arm64")]));
        let affinity = |key: &str| {
            let term = json!({"matchExpressions": [{"key": key, "operator": "In", "values": ["arm64", "amd64"]}]});
            let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}});
            selector(json!({"containers": [], "affinity": {"nodeAffinity": required}}))
        };
        assert_eq!(affinity("kubernetes.io/arch"), None);
        assert_eq!(affinity("pool"), labels(&[("kubernetes.io/arch", "amd64")]));
    }

    #[test]
    fn a_pod_on_its_nodes_network_asks_the_clusters_name_server_unless_it_says_whom() {
        let policy = |spec: Value| {
            let mut spec: PodSpec = from_value(spec).unwrap();
            finds_services(&mut spec);
            spec.dns_policy
        };
        let asked = policy(json!({"containers": [], "hostNetwork": true}));
        assert_eq!(asked.as_deref(), Some("ClusterFirstWithHostNet"));
        let own = policy(json!({"containers": [], "hostNetwork": true, "dnsPolicy": "None"}));
        assert_eq!(own.as_deref(), Some("None"));
        assert_eq!(policy(json!({"containers": []})), None);
        assert_eq!(policy(json!({"containers": [], "hostNetwork": false})), None);
    }
}
