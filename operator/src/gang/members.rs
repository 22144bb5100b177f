//! The gang's arithmetic, the same for every scheduler: a floor per role, and what the pods ask for in sum.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container;
use serde_json::{Map, Value, json};

use crate::job::{Job, RolePods};
use crate::snapshot::Snapshot;

/// Pods without which nothing is to be placed: the sum of the roles' floors.
pub fn floor(job: &Job) -> u32 {
    job.roles.iter().map(|role| role.floor).sum()
}

/// Whether every member has a node.
pub fn placed(job: &Job, seen: &Snapshot) -> bool {
    let mut members = job
        .roles
        .iter()
        .flat_map(|role| (0..role.floor).map(|index| seen.pod(job, role.role, index)));
    members.all(|pod| pod.is_some_and(|pod| pod.node.is_some()))
}

/// A name that no other job's gang has, in any namespace: some schedulers' status mixes namespaces.
pub fn name(job: &Job) -> String {
    let suffix: String = job.uid.chars().filter(char::is_ascii_alphanumeric).take(8).collect();
    format!("{}-{suffix}", job.key.name)
}

/// Resources that the floor needs: GPUs by role, and of the templates' requests what is written in whole numbers.
pub fn min_resources(job: &Job, gpu_resource: &str) -> Value {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for role in &job.roles {
        let mut add = |resource: &str, each: u64| {
            *sums.entry(resource.to_string()).or_default() += each * u64::from(role.floor);
        };
        if role.gpus > 0 {
            add(gpu_resource, u64::from(role.gpus));
        }
        for (resource, each) in requests(job, *role) {
            if resource != gpu_resource {
                add(&resource, each);
            }
        }
    }
    let sums: Map<String, Value> = sums
        .into_iter()
        .map(|(resource, sum)| (resource, json!(sum.to_string())))
        .collect();
    Value::Object(sums)
}

/// Whole-number requests of a role's template. Fractions and suffixed quantities are left to the scheduler's own filter.
fn requests(job: &Job, role: RolePods) -> BTreeMap<String, u64> {
    let containers: &[Container] = job
        .template(role.role)
        .and_then(|template| template.spec.as_ref())
        .map_or(&[], |spec| spec.containers.as_slice());
    let mut sums = BTreeMap::new();
    let requests = containers
        .iter()
        .filter_map(|container| container.resources.as_ref()?.requests.as_ref());
    for (resource, quantity) in requests.flatten() {
        if let Ok(whole) = quantity.0.parse::<u64>() {
            *sums.entry(resource.clone()).or_default() += whole;
        }
    }
    sums
}
