//! Rules of pod templates, which the API server leaves open: without them a mistake shows when the pods are made, or never.

use k8s_openapi::api::core::v1::{Container, PodTemplateSpec};

use super::Problem;
use crate::kubernetes;
use crate::pod::{VLLM_CONTAINER, WORKER_CONTAINER};
use crate::quantity::exceeds;
use crate::spec::{Engine, RolesSpec};

/// Adds fields that no pod would have, and quantities with which there would be no pod.
pub fn check(roles: &RolesSpec, problems: &mut Vec<Problem>) {
    for (role, path) in RolesSpec::TEMPLATES {
        let Some(template) = roles.template(role) else { continue };
        let unknown = template.unknown().into_iter();
        let wrong = unknown
            .map(|field| (field, kubernetes::UNKNOWN.to_owned()))
            .chain(template.wrong_quantities())
            .chain(requests_above_limits(template))
            .chain(without_image(template, roles.rollout.engine));
        problems.extend(wrong.map(|(field, message)| Problem::new(format!("{path}.{field}"), message)));
    }
}

/// Containers that nobody gives an image: the operator does so for its own, which others are taken for whose name is misspelt. Of those that
/// run before them none is its own.
fn without_image(template: &PodTemplateSpec, engine: Engine) -> Vec<(String, String)> {
    let Some(spec) = &template.spec else { return Vec::new() };
    let own = |name: &str| name == WORKER_CONTAINER || (name == VLLM_CONTAINER && engine == Engine::Vllm);
    let before = spec.init_containers.iter().flatten().enumerate();
    let before = before.filter(|(_, container)| container.image.is_none());
    let refuse_before = |(index, _): (usize, &Container)| {
        let message = "is missing, and the operator gives none to an initContainer: give it";
        (format!("spec.initContainers[{index}].image"), message.to_owned())
    };
    let missing = spec.containers.iter().enumerate();
    let missing = missing.filter(|(_, container)| container.image.is_none() && !own(&container.name));
    let refuse = |(index, container): (usize, &Container)| {
        let message = format!(
            "is missing, and {} is no container of the operator's, which have one: give it, or is {WORKER_CONTAINER} meant?",
            container.name
        );
        (format!("spec.containers[{index}].image"), message)
    };
    before.map(refuse_before).chain(missing.map(refuse)).collect()
}

/// Requests that are more than their limits, each with its path from the template on.
fn requests_above_limits(template: &PodTemplateSpec) -> Vec<(String, String)> {
    let Some(spec) = &template.spec else { return Vec::new() };
    let mut found = Vec::new();
    let mut look = |list: &str, containers: &[Container]| {
        for (index, container) in containers.iter().enumerate() {
            let Some(resources) = &container.resources else {
                continue;
            };
            for (name, request) in resources.requests.iter().flatten() {
                let limit = resources.limits.as_ref().and_then(|limits| limits.get(name));
                if let Some(limit) = limit.filter(|limit| exceeds(&request.0, &limit.0)) {
                    let field = format!("spec.{list}[{index}].resources.requests.{name}");
                    let message = format!(
                        "{} is more than its limit, {}: lower it, or raise limits.{name}",
                        request.0, limit.0
                    );
                    found.push((field, message));
                }
            }
        }
    };
    look("initContainers", spec.init_containers.as_deref().unwrap_or_default());
    look("containers", &spec.containers);
    found
}
