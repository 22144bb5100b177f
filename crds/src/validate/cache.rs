//! A given size of the key/value cache, beside what one sequence takes of it.

use super::Warning;
use crate::geometry::Geometry;
use crate::memory::{Shapes, cache_of_one};
use crate::run_config::RunConfig;
use crate::spec::{Engine, Role};

/// A cache that has no room for the longest sequence which the manifest allows. Of shorter ones it may hold many.
pub fn warning(config: &RunConfig, geometry: &Geometry, shapes: &Shapes) -> Option<Warning> {
    let gpus = geometry.role(Role::Rollout)?.gpus_per_pod;
    let given = config
        .rollout
        .engine
        .cache_mebibytes(gpus, config.rollout.kv_cache_mebibytes)?;
    let needed = cache_of_one(config, &shapes.policy, gpus).div_ceil(1 << 20);
    let follows = match config.rollout.engine {
        Engine::Builtin => "an engine refuses a prompt that is too long for it, which ends the run",
        Engine::Vllm => "vLLM does not start with less",
    };
    (given < needed).then(|| Warning {
        field: "spec.roles.rollout.kvCacheMebibytes".into(),
        message: format!(
            "is {given}, and one sequence of prompts.maxLength and generation.maxNewTokens, {} tokens, takes {needed}: {follows}; give at \
             least {needed}, or lower those",
            config.longest_sequence()
        ),
    })
}

#[cfg(test)]
mod tests {
    use crate::manifest::tests::job;
    use crate::memory::Shapes;
    use crate::memory::tests::LLAMA_8B;
    use crate::{Environment, Plan};

    fn warned(rollout: &str) -> Vec<String> {
        let roles = format!("rollout: {{{rollout}}}, reward: {{rules: [{{json: {{}}}}]}}");
        let shapes = Shapes {
            policy: LLAMA_8B,
            critic: None,
            reward: None,
        };
        let job = job("checkpoint: {pvc: checkpoints}", &roles);
        let plan = Plan::of(&job, &Environment::cluster(), Some(&shapes)).unwrap();
        let warnings = plan.warnings.iter().map(ToString::to_string);
        warnings.filter(|text| text.contains("kvCacheMebibytes")).collect()
    }

    #[test]
    fn a_cache_without_room_for_one_sequence_is_warned_of_with_what_one_takes() {
        // 2048 tokens of 128 KiB.
        let message = "spec.roles.rollout.kvCacheMebibytes: is 255, and one sequence of prompts.maxLength and generation.maxNewTokens, 2048 \
                       tokens, takes 256: an engine refuses a prompt that is too long for it, which ends the run; give at least 256, or \
                       lower those";
        assert_eq!(warned("kvCacheMebibytes: 255"), [message]);
        assert_eq!(warned("kvCacheMebibytes: 256"), [""; 0]);
        assert_eq!(warned(""), [""; 0]);
        let of_vllm = warned("engine: vllm, kvCacheMebibytes: 255");
        assert!(of_vllm[0].contains("vLLM does not start with less"), "{of_vllm:?}");
    }

    #[test]
    fn a_vllm_with_more_gpus_than_heads_of_keys_needs_a_cache_for_their_copies() {
        let needed = |gpus: u32| {
            let found = warned(&format!("engine: vllm, gpusPerReplica: {gpus}, kvCacheMebibytes: 1"));
            let (_, after) = found[0].split_once("tokens, takes ").unwrap();
            after.split_once(':').unwrap().0.to_owned()
        };
        // 8 heads of keys.
        assert_eq!([1, 8, 16, 32].map(needed), ["256", "256", "512", "1024"]);
    }
}
