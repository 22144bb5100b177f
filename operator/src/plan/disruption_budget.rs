//! Drains leave the actor where it is: every eviction of it costs the steps since the last checkpoint.

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::DynamicObject;
use ppo_crds::pod::{label, service_name};
use ppo_crds::spec::Role;

use super::{metadata, untyped};
use crate::job::Job;
use crate::world::Kind;

/// The actor's budget.
pub fn desired(job: &Job) -> (Kind, DynamicObject) {
    let actors = job.role(Role::Actor).map_or(1, |role| role.pods);
    let actors = i32::try_from(actors).unwrap_or(i32::MAX);
    let selector = [(label::JOB, job.key.name.as_str()), (label::ROLE, Role::Actor.name())];
    let budget = PodDisruptionBudget {
        metadata: metadata(job, &service_name(&job.key.name, Role::Actor)),
        spec: Some(PodDisruptionBudgetSpec {
            // A number, and not "maxUnavailable: 0": that counts from the owner's scale, which is the number of engines
            // (disruption.go, getExpectedPodCount).
            min_available: Some(IntOrString::Int(actors)),
            selector: Some(LabelSelector {
                match_labels: Some(selector.map(|(key, value)| (key.into(), value.into())).into()),
                match_expressions: None,
            }),
            // A pod that is not running guards nothing.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".into()),
            max_unavailable: None,
        }),
        status: None,
    };
    (Kind::PodDisruptionBudget, untyped(Kind::PodDisruptionBudget, &budget))
}
