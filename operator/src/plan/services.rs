//! A headless Service per role: its DNS name lists the role's pods, ready or not, so that ranks find each other early.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::DynamicObject;
use ppo_crds::pod::{label, port, service_name};
use ppo_crds::spec::Role;

use super::object::{metadata, untyped};
use crate::job::Job;
use crate::world::Kind;

/// The Services of the roles that have pods.
pub fn desired(job: &Job) -> Vec<(Kind, DynamicObject)> {
    let services = job.roles.iter().map(|role| service(job, role.role));
    services
        .map(|service| (Kind::Service, untyped(Kind::Service, &service)))
        .collect()
}

fn service(job: &Job, role: Role) -> Service {
    let mut metadata = metadata(job, &service_name(&job.key.name, role));
    metadata
        .labels
        .get_or_insert_default()
        .insert(label::ROLE.into(), role.name().into());
    let selector = [(label::JOB, job.key.name.as_str()), (label::ROLE, role.name())];
    Service {
        metadata,
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".into()),
            publish_not_ready_addresses: Some(true),
            selector: Some(selector.map(|(key, value)| (key.into(), value.into())).into()),
            ports: Some(ports(role)),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn ports(role: Role) -> Vec<ServicePort> {
    let mut ports = vec![("metrics", port::METRICS)];
    match role {
        Role::Actor => ports.push(("rendezvous", port::RENDEZVOUS)),
        Role::Rollout | Role::Reference | Role::Reward => ports.insert(0, ("http", port::HTTP)),
    }
    ports
        .into_iter()
        .map(|(name, port)| ServicePort {
            name: Some(name.into()),
            port: port.into(),
            target_port: Some(IntOrString::String(name.into())),
            ..ServicePort::default()
        })
        .collect()
}
