//! Pod-level resources (`spec.resources`, Kubernetes 1.34): what a pod asks for as a whole, in place of the sum of its containers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// What the names of huge pages begin with, of which each size is a resource.
const HUGE_PAGES: &str = "hugepages-";

/// Whether a pod can ask for a resource as a whole (`IsSupportedPodLevelResource` of Kubernetes). Devices are asked for by its containers.
pub fn is_pod_level(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory") || resource.starts_with(HUGE_PAGES)
}

/// Asks for what the API server will make of limits (`defaultPodRequests` in its `pkg/apis/core/v1/defaults.go`): a limit is the request, too,
/// where neither the pod nor a container of it makes one, and of huge pages always. A queue reads the template, which nobody completes.
pub fn fill_requests(pod: &mut PodSpec) {
    let containers = || pod.containers.iter().chain(pod.init_containers.iter().flatten());
    let is_request = |resource: &str| {
        let of_containers = || containers().any(|container| asks_for(container, resource));
        is_pod_level(resource) && (resource.starts_with(HUGE_PAGES) || !of_containers())
    };
    let limits = pod.resources.iter().flat_map(|whole| whole.limits.iter().flatten());
    let missing: BTreeMap<String, Quantity> = limits
        .filter(|(resource, _)| is_request(resource))
        .map(|(resource, limit)| (resource.clone(), limit.clone()))
        .collect();
    let whole = pod.resources.as_mut().filter(|_| !missing.is_empty());
    let Some(whole) = whole else { return };
    let requests = whole.requests.get_or_insert_default();
    for (resource, limit) in missing {
        requests.entry(resource).or_insert(limit);
    }
}

/// Whether a container has a request of a resource, or a limit, which is taken for one.
fn asks_for(container: &Container, resource: &str) -> bool {
    let has = |quantities: &Option<BTreeMap<String, Quantity>>| {
        let quantities = quantities.as_ref();
        quantities.is_some_and(|quantities| quantities.contains_key(resource))
    };
    let resources = container.resources.as_ref();
    resources.is_some_and(|resources| has(&resources.requests) || has(&resources.limits))
}

#[cfg(test)]
mod tests {
    use ppo_crds::spec::Role;
    use serde_json::{Value, json};

    use crate::plan::shape::shape;
    use crate::settings::PodSettings;
    use crate::smallest_job::smallest_job;

    /// What a queue reads of an actor's pods whose template has these resources, and these in its container.
    fn read(whole: Value, container: Value) -> Value {
        let spec = json!({"resources": whole, "containers": [{"name": "worker", "resources": container}]});
        let job = smallest_job(&json!({"roles": {"actor": {"template": {"spec": spec}}}}));
        let actor = job.role(Role::Actor).unwrap();
        shape(&job, actor, &PodSettings::default())["resources"].take()
    }

    #[test]
    fn a_queue_reads_what_a_pod_asks_for_as_a_whole_with_the_limits_that_are_taken_for_requests() {
        assert_eq!(read(Value::Null, json!({"requests": {"cpu": "4"}})), Value::Null);
        let own = json!({"requests": {"cpu": "4"}, "limits": {"cpu": "8"}});
        assert_eq!(read(own.clone(), json!({})), own);
        let memory = json!({"memory": "8Gi"});
        assert_eq!(
            read(json!({"limits": memory}), json!({"requests": {"cpu": "4"}})),
            json!({"limits": memory, "requests": memory})
        );
        // What the containers ask for in sum is the request then.
        let limit = json!({"limits": {"cpu": "8"}});
        for container in [json!({"requests": {"cpu": "2"}}), json!({"limits": {"cpu": "2"}})] {
            assert_eq!(read(limit.clone(), container), limit);
        }
        let pages = json!({"hugepages-2Mi": "1Gi"});
        assert_eq!(
            read(json!({"limits": pages}), json!({"limits": {"hugepages-2Mi": "512Mi"}})),
            json!({"limits": pages, "requests": pages})
        );
    }
}
