//! Only the job's own pods reach its pods; the scraper and the operator reach the metrics port.

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::DynamicObject;
use ppo_crds::pod::{label, port};

use super::action::Action;
use super::object::{metadata, untyped};
use crate::job::Job;
use crate::settings::Scrapers;
use crate::snapshot::Snapshot;
use crate::world::Kind;

/// Label that every namespace has, with its name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// The job's policy.
pub fn desired(job: &Job, scrapers: &Scrapers) -> (Kind, DynamicObject) {
    let own = labelled(label::JOB, &job.key.name);
    let peer = |pods: Option<LabelSelector>, namespaces: Option<LabelSelector>| NetworkPolicyPeer {
        pod_selector: pods,
        namespace_selector: namespaces,
        ip_block: None,
    };
    let siblings = NetworkPolicyIngressRule {
        from: Some(vec![peer(Some(own.clone()), None)]),
        ports: None,
    };
    let namespaces = scrapers
        .namespaces
        .iter()
        .map(|name| peer(None, Some(labelled(NAMESPACE_NAME, name))));
    let metrics = NetworkPolicyIngressRule {
        from: Some(namespaces.collect()),
        ports: Some(vec![NetworkPolicyPort {
            port: Some(IntOrString::Int(port::METRICS.into())),
            protocol: Some("TCP".into()),
            end_port: None,
        }]),
    };
    let mut ingress = vec![siblings];
    // An empty list of peers would let everybody in.
    if !scrapers.namespaces.is_empty() {
        ingress.push(metrics);
    }
    let policy = NetworkPolicy {
        metadata: metadata(job, &job.key.name),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(own),
            policy_types: Some(vec!["Ingress".into()]),
            ingress: Some(ingress),
            egress: None,
        }),
    };
    (Kind::NetworkPolicy, untyped(Kind::NetworkPolicy, &policy))
}

/// What goes with a policy that was made before the operator was told to make none.
pub fn retired(job: &Job, seen: &Snapshot) -> Option<Action> {
    Action::removal(Kind::NetworkPolicy, seen.object(Kind::NetworkPolicy, &job.key.name)?)
}

fn labelled(key: &str, value: &str) -> LabelSelector {
    LabelSelector {
        match_labels: Some([(key.to_string(), value.to_string())].into()),
        match_expressions: None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;
    use ppo_crds::status::PpoJobStatus;
    use serde_json::{Value, json};

    use super::*;
    use crate::gang::Gang;
    use crate::ledger::Ledger;
    use crate::lifecycle::{Decision, Intent};
    use crate::plan::objects;
    use crate::settings::PodSettings;
    use crate::smallest_job::smallest_job;
    use crate::world::Children;

    #[test]
    fn a_jobs_pods_are_reached_by_each_other_on_every_port_and_by_scrapers_on_the_metrics_port_alone() {
        let spec = |namespaces: &[&str]| {
            let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
            let (kind, policy) = desired(&smallest_job(&json!({})), &Scrapers { namespaces });
            assert_eq!(kind, Kind::NetworkPolicy);
            policy.data
        };
        let own = json!({"matchLabels": {"ppojob.dev/job": "a"}});
        let siblings = json!({"from": [{"podSelector": own}]});
        let from = |name: &str| json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}});
        let scrapers = json!({"from": [from("monitoring"), from("ppo")], "ports": [{"port": 9400, "protocol": "TCP"}]});
        let policy = |ingress: &[Value]| {
            let spec = json!({"podSelector": own, "policyTypes": ["Ingress"], "ingress": ingress});
            json!({"spec": spec})
        };
        assert_eq!(spec(&["monitoring", "ppo"]), policy(&[siblings.clone(), scrapers]));
        // A rule without peers would let everybody in.
        assert_eq!(spec(&[]), policy(&[siblings]));
    }

    #[test]
    fn where_there_are_to_be_no_policies_one_that_is_there_goes_and_once() {
        let (job, on) = (smallest_job(&json!({})), PodSettings::default());
        let off = PodSettings {
            network_policies: None,
            ..on.clone()
        };
        let seen = |going: bool| {
            let (kind, mut policy) = desired(&job, &Scrapers::default());
            policy.metadata.uid = Some("7".into());
            policy.metadata.deletion_timestamp = going.then_some(Time(Timestamp::UNIX_EPOCH));
            let mut children = Children::default();
            children.objects.insert((kind, "a".to_owned()), Arc::new(policy));
            Snapshot::plain(children, Gang::None, Timestamp::UNIX_EPOCH)
        };
        let nothing = Snapshot::plain(Children::default(), Gang::None, Timestamp::UNIX_EPOCH);
        let decision = Decision::of(Ledger::open(&PpoJobStatus::default(), &job), Intent::Run);
        // What is done to policies.
        let done = |seen: &Snapshot, settings: &PodSettings| {
            let actions = objects(&job, &decision, seen, settings).into_iter();
            let words = actions.filter_map(|action| match action {
                Action::Create(Kind::NetworkPolicy, _) => Some("made".to_owned()),
                Action::Apply(Kind::NetworkPolicy, _) => Some("applied".to_owned()),
                Action::Delete(target) => Some(format!("{:?} {} {} deleted", target.kind, target.name, target.uid)),
                _ => None,
            });
            words.collect::<Vec<_>>()
        };
        assert_eq!(done(&nothing, &on), ["made"]);
        assert!(done(&seen(false), &on).is_empty());
        assert_eq!(done(&seen(false), &off), ["NetworkPolicy a 7 deleted"]);
        assert!(done(&seen(true), &off).is_empty(), "it goes already");
        assert!(done(&nothing, &off).is_empty());
    }

    #[test]
    fn the_policy_to_copy_lets_a_jobs_pods_reach_each_other_names_https_and_reward_servers() {
        let page = include_str!("../../../docs/install.md");
        let block = page
            .split("```")
            .find(|block| block.contains("\nkind: NetworkPolicy\n"));
        let text = block.unwrap().strip_prefix("yaml").unwrap();
        let policy: NetworkPolicy = serde_yaml::from_str(text).unwrap();
        let spec = policy.spec.unwrap();
        assert_eq!(spec.policy_types, Some(vec!["Egress".to_owned()]));
        let pods = labelled(label::NAME, label::NAME_VALUE);
        assert_eq!(spec.pod_selector, Some(pods.clone()));
        let rules = spec.egress.unwrap();
        let siblings = rules[0].to.as_ref().unwrap();
        assert_eq!((siblings.len(), &siblings[0].pod_selector), (1, &Some(pods)));
        assert_eq!(rules[0].ports, None);
        let ports = rules[1..].iter().flat_map(|rule| rule.ports.iter().flatten());
        let ports: Vec<_> = ports.map(|port| (port.port.clone(), port.protocol.clone())).collect();
        let port = |number, protocol: &str| (Some(IntOrString::Int(number)), Some(protocol.to_owned()));
        assert_eq!(
            ports,
            [port(53, "UDP"), port(53, "TCP"), port(443, "TCP"), port(5000, "TCP")]
        );
        let metrics = format!("port {} of the jobs' pods", port::METRICS);
        assert!(page.contains(&metrics), "docs/install.md does not name {metrics}");
    }
}
