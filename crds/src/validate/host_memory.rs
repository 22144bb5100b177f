//! Memory limits of pods, beside what a pod is estimated to take of its node's memory. One without GPUs has all of its role there.

use super::Warning;
use crate::memory::RoleMemory;
use crate::pod::{VLLM_CONTAINER, WORKER_CONTAINER};
use crate::quantity::amount;
use crate::spec::{Engine, Role, RolesSpec};

/// Limits in the roles' templates that are below the estimate. What an administrator's defaults add is not known here.
pub fn warnings(roles: &RolesSpec, memory: &[RoleMemory]) -> Vec<Warning> {
    let of_role = |(role, path): (Role, &str)| {
        let estimated = memory.iter().find(|memory| memory.role == role)?;
        if role == Role::Rollout && estimated.host.is_none() && roles.rollout.kv_cache_mebibytes.is_none() {
            // Of a cache whose size is left to its default only what samples fill becomes memory.
            return None;
        }
        let needed = estimated.host.as_ref().map_or(estimated.total, |host| host.total);
        let spec = roles.template(role)?.spec.as_ref()?;
        let computing = match (role, roles.rollout.engine) {
            (Role::Rollout, Engine::Vllm) => VLLM_CONTAINER,
            _ => WORKER_CONTAINER,
        };
        let mut containers = spec.containers.iter().enumerate();
        let (index, container) = containers.find(|(_, container)| container.name == computing)?;
        let limit = &container.resources.as_ref()?.limits.as_ref()?.get("memory")?.0;
        (amount(limit)? < needed as f64).then(|| Warning {
            field: format!("{path}.spec.containers[{index}].resources.limits.memory"),
            message: format!(
                "is {limit}, and a pod is estimated to take {} GiB of its node's memory; one that takes more than its limit is OOMKilled: \
                 raise it",
                needed.div_ceil(1 << 30)
            ),
        })
    };
    RolesSpec::TEMPLATES.into_iter().filter_map(of_role).collect()
}

#[cfg(test)]
mod tests {
    use crate::manifest::tests::job;
    use crate::memory::Shapes;
    use crate::memory::tests::LLAMA_8B;
    use crate::{Environment, Plan};

    /// The fields that a plan of these roles warns of, and what it says.
    fn warned(roles: &str) -> Vec<(String, String)> {
        let job = job(
            "checkpoint: {pvc: checkpoints}",
            &format!("{roles}, reward: {{rules: [{{json: {{}}}}]}}"),
        );
        let shapes = Shapes {
            policy: LLAMA_8B,
            critic: None,
            reward: None,
        };
        let plan = Plan::of(&job, &Environment::cluster(), Some(&shapes)).unwrap();
        let warnings = plan.warnings.into_iter();
        warnings.map(|warning| (warning.field, warning.message)).collect()
    }

    fn limited(container: &str, limit: &str) -> String {
        format!(
            "template: {{spec: {{containers: [{{name: other, image: o}}, {{name: {container}, image: c, resources: {{limits: {{memory: {limit}}}}}}}]}}}}"
        )
    }

    #[test]
    fn a_limit_below_what_a_pod_takes_of_its_nodes_memory_is_warned_of() {
        let actor = |gpus: u32, limit: &str| {
            let template = limited("worker", limit);
            warned(&format!("actor: {{gpusPerNode: {gpus}, {template}}}"))
        };
        let field = "spec.roles.actor.template.spec.containers[1].resources.limits.memory";
        let message = "is 24Gi, and a pod is estimated to take 30 GiB of its node's memory; one that takes more than its limit is \
                       OOMKilled: raise it";
        assert_eq!(actor(8, "24Gi"), [(field.to_owned(), message.to_owned())]);
        assert!(actor(8, "30Gi").is_empty());
    }

    #[test]
    fn a_pod_without_gpus_takes_all_of_its_role_there() {
        let actor = |limit: &str| {
            let template = limited("worker", limit);
            warned(&format!("actor: {{gpusPerNode: 0, {template}}}"))
        };
        let found = actor("100Gi");
        let (field, message) = found.first().unwrap();
        assert_eq!(
            field,
            "spec.roles.actor.template.spec.containers[1].resources.limits.memory"
        );
        assert!(
            message.starts_with("is 100Gi, and a pod is estimated to take "),
            "{message}"
        );
        assert!(actor("1Ti").is_empty());
        let engine = |cache: &str| {
            let template = limited("worker", "20Gi");
            warned(&format!("rollout: {{gpusPerReplica: 0, {cache}{template}}}"))
                .iter()
                .any(|(field, _)| field.ends_with(".resources.limits.memory"))
        };
        assert!(engine("kvCacheMebibytes: 1024, ") && !engine(""));
    }

    #[test]
    fn the_limit_that_counts_is_that_of_the_container_with_the_gpus() {
        let engine = |engine: &str, container: &str| {
            let template = limited(container, "2Gi");
            warned(&format!("rollout: {{engine: {engine}, {template}}}")).len()
        };
        assert_eq!((engine("builtin", "worker"), engine("builtin", "vllm")), (1, 0));
        assert_eq!((engine("vllm", "worker"), engine("vllm", "vllm")), (0, 1));
    }
}
