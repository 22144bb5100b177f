//! The gang's arithmetic, the same for every scheduler: a floor per role, and what the pods ask for in sum.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Map, Value, json};

use crate::job::{Job, RolePods};
use crate::plan::pod_level::is_pod_level;
use crate::plan::shape::sized;
use crate::settings::PodSettings;
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

/// Resources that the floor needs: of what its pods ask for, what is written in whole numbers.
pub fn min_resources(job: &Job, settings: &PodSettings) -> Value {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for role in &job.roles {
        for (resource, each) in requests(job, *role, settings) {
            let sum = sums.entry(resource).or_default();
            *sum = sum.saturating_add(each.saturating_mul(u64::from(role.floor)));
        }
    }
    let sums: Map<String, Value> = sums
        .into_iter()
        .map(|(resource, sum)| (resource, json!(sum.to_string())))
        .collect();
    Value::Object(sums)
}

/// Whole-number requests of one of a role's pods. Fractions and suffixed quantities are left to the scheduler's own filter, and so are
/// devices that a claim brings. What a pod asks for as a whole is what it gets, whatever its containers share it out as (`PodRequests` in
/// `k8s.io/component-helpers`).
fn requests(job: &Job, role: RolePods, settings: &PodSettings) -> BTreeMap<String, u64> {
    let pod = sized(job, role, settings);
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for resources in pod
        .containers
        .iter()
        .filter_map(|container| container.resources.as_ref())
    {
        for (resource, whole) in whole_numbers(resources) {
            let sum = sums.entry(resource.clone()).or_default();
            *sum = sum.saturating_add(whole);
        }
    }
    let of_pod = pod.resources.iter().flat_map(|pod| pod.requests.iter().flatten());
    for (resource, quantity) in of_pod.filter(|(resource, _)| is_pod_level(resource)) {
        match whole_number(quantity) {
            Some(whole) => sums.insert(resource.clone(), whole),
            None => sums.remove(resource),
        };
    }
    sums
}

/// What a container asks for. The API server takes a limit for the request where the template has no other one.
fn whole_numbers(resources: &ResourceRequirements) -> BTreeMap<&String, u64> {
    let limits = resources.limits.iter().flatten();
    let asked: BTreeMap<_, _> = limits.chain(resources.requests.iter().flatten()).collect();
    asked
        .into_iter()
        .filter_map(|(resource, quantity)| Some((resource, whole_number(quantity)?)))
        .collect()
}

fn whole_number(quantity: &Quantity) -> Option<u64> {
    quantity.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::PodDefaults;
    use crate::smallest_job::smallest_job;

    /// The resources of an actor, a reference and two engines of four that have these templates' containers.
    fn resources(engine: &Value, actor: &Value) -> Value {
        resources_beneath(engine, actor, "")
    }

    /// The same with these defaults beneath the templates.
    fn resources_beneath(engine: &Value, actor: &Value, defaults: &str) -> Value {
        let spec = |container: &Value| json!({"containers": [container]});
        resources_of_pods(&spec(engine), &spec(actor), defaults)
    }

    /// The same with all that a template says of the pods.
    fn resources_of_pods(engine: &Value, actor: &Value, defaults: &str) -> Value {
        let template = |spec: &Value| json!({"spec": spec});
        let job = smallest_job(&json!({
            "algorithm": {"kl": {"coef": 0.01}},
            "roles": {
                "rollout": {"replicas": 4, "minReplicas": 2, "gpusPerReplica": 8, "template": template(engine)},
                "actor": {"gpusPerNode": 8, "template": template(actor)},
            },
        }));
        let settings = PodSettings {
            defaults: PodDefaults::parse(defaults, "nvidia.com/gpu").unwrap(),
            ..PodSettings::default()
        };
        min_resources(&job, &settings)
    }

    #[test]
    fn the_floor_needs_the_gpus_of_its_roles_and_what_templates_ask_for_in_whole_numbers() {
        let plain = json!({"name": "worker", "resources": {"requests": {"cpu": "4", "memory": "8Gi"}}});
        let beside = json!({"name": "beside", "resources": {"limits": {"cpu": "2"}}});
        assert_eq!(
            resources(&plain, &beside),
            json!({"cpu": "10", "nvidia.com/gpu": "25"}),
            "2 * 8 GPUs of engines, 8 of the actor and 1 of the reference"
        );
    }

    #[test]
    fn a_sum_that_no_number_holds_is_the_greatest_one() {
        let greatest = u64::MAX.to_string();
        let worker = |memory: &str| json!({"name": "worker", "resources": {"requests": {"memory": memory}}});
        // Two engines, of one container each; then an actor of two.
        let engines = resources(&worker(&greatest), &json!({"name": "worker"}));
        assert_eq!(engines["memory"], greatest);
        let beside = json!({"name": "beside", "resources": {"requests": {"memory": "1"}}});
        let actor = json!({"containers": [worker(&greatest), beside]});
        assert_eq!(resources_of_pods(&json!({}), &actor, "")["memory"], greatest);
    }

    #[test]
    fn what_an_administrator_gives_every_pod_is_asked_for_too() {
        let plain = json!({"name": "worker"});
        let own = json!({"name": "worker", "resources": {"requests": {"cpu": "9"}}});
        let defaults = "spec: {containers: [{name: worker, resources: {requests: {cpu: 2}}}]}";
        assert_eq!(
            resources_beneath(&plain, &own, defaults),
            json!({"cpu": "15", "nvidia.com/gpu": "25"}),
            "2 * 2 CPUs of engines, 9 of the actor and 2 of the reference"
        );
    }

    #[test]
    fn what_a_pod_asks_for_as_a_whole_stands_for_the_sum_of_its_containers() {
        let worker = json!({"name": "worker", "resources": {"requests": {"cpu": "4", "memory": "1000"}}});
        let beside = json!({"name": "beside", "resources": {"limits": {"cpu": "2"}}});
        let engine = json!({"resources": {"requests": {"cpu": "10", "memory": "8Gi"}}, "containers": [worker, beside]});
        let actor = json!({"resources": {"limits": {"cpu": "7"}}, "containers": [{"name": "worker"}]});
        assert_eq!(
            resources_of_pods(&engine, &actor, ""),
            json!({"cpu": "27", "nvidia.com/gpu": "25"}),
            "2 * 10 CPUs of engines and 7 of the actor, whose limit is its request; 8Gi are no whole number"
        );
    }

    #[test]
    fn a_template_that_asks_for_devices_itself_is_taken_at_its_word() {
        let explicit = json!({"name": "worker", "resources": {"limits": {"nvidia.com/gpu": "4"}}});
        let claimed = json!({"name": "worker", "resources": {"claims": [{"name": "gpus"}]}});
        assert_eq!(
            resources(&explicit, &claimed),
            json!({"nvidia.com/gpu": "9"}),
            "2 * 4 GPUs of engines and 1 of the reference"
        );
    }
}
