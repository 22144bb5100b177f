//! A role's template as its pods have it, and what a queue has to know of it.

use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use ppo_crds::pod::{VLLM_CONTAINER, WORKER_CONTAINER};
use ppo_crds::spec::{Engine, Role};
use serde_json::{Value, json};

use super::template::ask_for_gpus;
use super::{placement, pod_level};
use crate::containers::container;
use crate::job::{Job, RolePods};
use crate::settings::PodSettings;

/// A role's template, with the administrator's defaults beneath it, for nodes that can run it.
pub fn role_template(job: &Job, role: Role, settings: &PodSettings) -> PodTemplateSpec {
    let containers: &[&str] = match computing(job, role) {
        VLLM_CONTAINER => &[WORKER_CONTAINER, VLLM_CONTAINER],
        _ => &[WORKER_CONTAINER],
    };
    let mut template = settings.defaults.beneath(job.template(role), containers);
    placement::of_the_images_architecture(template.spec.get_or_insert_default());
    template
}

/// A role's template, asking for all that its pods do.
pub fn sized(job: &Job, role: RolePods, settings: &PodSettings) -> PodSpec {
    let mut pod = role_template(job, role.role, settings).spec.unwrap_or_default();
    let computing = container(&mut pod, computing(job, role.role));
    ask_for_gpus(computing, &settings.gpu_resource, role.gpus);
    pod_level::fill_requests(&mut pod);
    pod
}

/// What a queue has to know of a role's pods: what each asks for and where it may go.
pub fn shape(job: &Job, role: RolePods, settings: &PodSettings) -> Value {
    let pod = sized(job, role, settings);
    let size = |container: &Container| {
        json!({"name": container.name, "image": "any", "resources": container.resources,
               "restartPolicy": container.restart_policy})
    };
    let sizes = |containers: &[Container]| containers.iter().map(size).collect::<Value>();
    let mut shape = json!({
        "restartPolicy": "Never",
        "containers": sizes(&pod.containers),
        "initContainers": pod.init_containers.as_deref().map(sizes),
        "nodeSelector": pod.node_selector,
        "affinity": pod.affinity,
        "tolerations": pod.tolerations,
        "resources": pod.resources,
        "overhead": pod.overhead,
        "runtimeClassName": pod.runtime_class_name,
        "resourceClaims": pod.resource_claims,
    });
    without_nulls(&mut shape);
    shape
}

fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The container that has the GPUs.
pub fn computing(job: &Job, role: Role) -> &'static str {
    match (role, job.spec.roles.rollout.engine) {
        (Role::Rollout, Engine::Vllm) => VLLM_CONTAINER,
        _ => WORKER_CONTAINER,
    }
}
