//! vLLM's image where no GPU is.

use super::Warning;
use crate::pod::VLLM_CONTAINER;
use crate::spec::{Engine, RolesSpec};

/// Engines of vLLM on the CPU whose template names no image: the usual one computes on GPUs alone.
pub fn warning(roles: &RolesSpec) -> Option<Warning> {
    let rollout = &roles.rollout;
    let spec = rollout.template.as_ref().and_then(|template| template.spec.as_ref());
    let mut containers = spec.into_iter().flat_map(|spec| &spec.containers);
    let named = containers.any(|container| container.name == VLLM_CONTAINER && container.image.is_some());
    let doubtful = rollout.engine == Engine::Vllm && rollout.gpus_per_replica == 0 && !named;
    doubtful.then(|| Warning {
        field: "spec.roles.rollout.gpusPerReplica".into(),
        message:
            "is 0, and vLLM's usual image computes on GPUs alone: name vLLM's CPU image for the container vllm in \
                  spec.roles.rollout.template, unless the chart's value vllm.image is one; or use engine: builtin"
                .into(),
    })
}

#[cfg(test)]
mod tests {
    use crate::manifest::tests::job;
    use crate::{Environment, Plan};

    #[test]
    fn vllm_without_a_gpu_is_warned_of_unless_the_template_names_its_image() {
        let warned = |rollout: &str| -> Vec<String> {
            let roles = format!("rollout: {{{rollout}}}, reward: {{rules: [{{json: {{}}}}]}}");
            let plan = Plan::of(&job("checkpoint: {pvc: c}", &roles), &Environment::cluster(), None).unwrap();
            plan.warnings.into_iter().map(|warning| warning.field).collect()
        };
        let field = ["spec.roles.rollout.gpusPerReplica"];
        assert_eq!(warned("engine: vllm, gpusPerReplica: 0"), field);
        let template = |container: &str| {
            warned(&format!(
                "engine: vllm, gpusPerReplica: 0, template: {{spec: {{containers: [{container}]}}}}"
            ))
        };
        assert_eq!(template("{name: worker, image: w}"), field);
        assert_eq!(template("{name: vllm}"), field);
        assert_eq!(template("{name: vllm, image: 'vllm-cpu:1'}"), [""; 0]);
        assert_eq!(warned("engine: vllm, gpusPerReplica: 1"), [""; 0]);
        assert_eq!(warned("engine: builtin, gpusPerReplica: 0"), [""; 0]);
    }
}
