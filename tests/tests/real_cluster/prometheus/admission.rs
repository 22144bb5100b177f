//! Whether NetworkPolicies as written let Prometheus in: nobody enforces them in this cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Api;
use kube::api::ListParams;
use ppo_tests::MONITORING;

use super::targets::Target;
use crate::job::Job;

type Labels = BTreeMap<String, String>;

/// Somebody who wants to connect.
struct Client {
    namespace: Namespace,
    pod: Labels,
}

fn selects(selector: &LabelSelector, labels: &Labels) -> bool {
    assert!(
        selector.match_expressions.is_none(),
        "expressions are not understood here: {selector:?}"
    );
    let wanted = selector.match_labels.iter().flatten();
    wanted
        .into_iter()
        .all(|(label, value)| labels.get(label) == Some(value))
}

fn is_peer(peer: &NetworkPolicyPeer, client: &Client, own_namespace: &str) -> bool {
    assert!(peer.ip_block.is_none(), "addresses are not understood here: {peer:?}");
    let name = client.namespace.metadata.name.as_deref();
    let labels = client.namespace.metadata.labels.clone().unwrap_or_default();
    let in_namespace = match &peer.namespace_selector {
        Some(selector) => selects(selector, &labels),
        None => name == Some(own_namespace),
    };
    in_namespace
        && peer
            .pod_selector
            .as_ref()
            .is_none_or(|selector| selects(selector, &client.pod))
}

fn is_port(allowed: &NetworkPolicyPort, pod: &Pod, port: u16) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    match &allowed.port {
        None => true,
        Some(IntOrString::Int(number)) => *number == i32::from(port),
        Some(IntOrString::String(name)) => {
            ports.any(|known| known.name.as_ref() == Some(name) && known.container_port == i32::from(port))
        }
    }
}

/// An empty list of peers or ports means all of them.
fn admits(policy: &NetworkPolicy, client: &Client, pod: &Pod, port: u16) -> bool {
    let own_namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
    let rules = policy.spec.iter().flat_map(|spec| spec.ingress.iter().flatten());
    rules.into_iter().any(|rule| {
        let from = rule.from.as_deref().unwrap_or_default();
        let ports = rule.ports.as_deref().unwrap_or_default();
        (from.is_empty() || from.iter().any(|peer| is_peer(peer, client, own_namespace)))
            && (ports.is_empty() || ports.iter().any(|allowed| is_port(allowed, pod, port)))
    })
}

/// Every target lies behind a policy that lets Prometheus in, and not whoever runs in another namespace.
pub async fn check(job: &Job<'_>, targets: &[Target]) {
    let api = &job.namespace.client;
    let namespaces: Api<Namespace> = Api::all(api.clone());
    let chosen = ListParams::default().labels("app.kubernetes.io/name=prometheus");
    let scrapers = Api::<Pod>::namespaced(api.clone(), MONITORING)
        .list(&chosen)
        .await
        .unwrap();
    assert_eq!(scrapers.items.len(), 1);
    let prometheus = Client {
        namespace: namespaces.get(MONITORING).await.unwrap(),
        pod: scrapers.items[0].metadata.labels.clone().unwrap(),
    };
    let stranger = Client {
        namespace: namespaces.get("default").await.unwrap(),
        pod: prometheus.pod.clone(),
    };
    for target in targets {
        let pods: Api<Pod> = Api::namespaced(api.clone(), &target.namespace);
        let pod = pods.get(&target.pod).await.unwrap();
        let labels = pod.metadata.labels.clone().unwrap();
        let policies: Api<NetworkPolicy> = Api::namespaced(api.clone(), &target.namespace);
        let mut policies = policies.list(&ListParams::default()).await.unwrap().items;
        let guards = |policy: &NetworkPolicy| {
            let selector = policy.spec.as_ref().and_then(|spec| spec.pod_selector.clone());
            selects(&selector.unwrap_or_default(), &labels)
        };
        policies.retain(guards);
        let admitted = |client| policies.iter().any(|policy| admits(policy, client, &pod, target.port));
        assert!(
            admitted(&prometheus),
            "{} does not let Prometheus in: {policies:#?}",
            target.pod
        );
        assert!(!admitted(&stranger), "{} lets everybody in: {policies:#?}", target.pod);
    }
}
