//! Where another image is named for a container: what to edit.

use k8s_openapi::api::core::v1::Pod;
use ppo_crds::pod::{VLLM_CONTAINER, WORKER_CONTAINER, annotation, config_name};

use super::edited;
use super::evidence::Evidence;
use crate::plugin::pods;

/// Where, to stand behind "correct the image's name". What the job's template does not name was chosen when the job began: what the
/// operator would choose now changes nothing for it.
pub fn place(evidence: &Evidence, pod: &Pod, container: &str) -> String {
    let template = edited::TEMPLATE;
    let chosen = match container {
        WORKER_CONTAINER => Some((annotation::WORKER_IMAGE, "--worker-image")),
        VLLM_CONTAINER => Some((annotation::VLLM_IMAGE, "--vllm-image")),
        _ => None,
    };
    match chosen.filter(|_| !is_named(evidence, pod, container)) {
        None => format!("of container {container} in {template}"),
        Some((note, flag)) => format!(
            "by naming one for container {container} in {template}, which names none: the job keeps the image that it began with \
             (annotation {note} of ConfigMap {}), and the operator's {flag} is for jobs that begin later, or for this one once it is \
             suspended, that ConfigMap deleted, and the job resumed",
            config_name(&evidence.name())
        ),
    }
}

/// Whether the template of the pod's role names the container's image.
fn is_named(evidence: &Evidence, pod: &Pod, container: &str) -> bool {
    let template = pods::role(pod).and_then(|role| evidence.job.spec.roles.template(role));
    let spec = template.and_then(|template| template.spec.as_ref());
    let mut containers = spec.into_iter().flat_map(|spec| &spec.containers);
    containers.any(|known| known.name == container && known.image.is_some())
}
