//! The containers of a pod, by name.

use k8s_openapi::api::core::v1::{Container, PodSpec};

/// The container of that name, made if the template has none.
pub fn container<'a>(spec: &'a mut PodSpec, name: &str) -> &'a mut Container {
    let at = spec.containers.iter().position(|container| container.name == name);
    let at = at.unwrap_or_else(|| {
        spec.containers.push(Container {
            name: name.into(),
            ..Container::default()
        });
        spec.containers.len() - 1
    });
    &mut spec.containers[at]
}
