//! Memory of `ppo-worker run`, which has all roles in one process: one rank of the actor, whatever the manifest's pods, and one engine.
//!
//! What the roles hold adds up. What they compute with does not, since they take turns; on a CPU neither do the engine's weights and cache,
//! which it leaves to training until it draws again, unless it draws meanwhile.

use serde::Serialize;

use super::model_shape::sum;
use super::{Part, Shapes, bytes, engine_cache, engine_passes, held_by_rank, is_on_gpu, part, product, total};
use super::{passes, process_on_cpu, reference, reward};
use crate::geometry::Geometry;
use crate::run_config::RunConfig;
use crate::spec::{Engine, Overlap, Role};

/// What the process takes, of its GPU where the actor has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessMemory {
    /// What the memory holds.
    pub parts: Vec<Part>,
    /// Bytes in all.
    pub total: u64,
}

impl ProcessMemory {
    /// Of a run, on a GPU where the manifest gives its actor one.
    pub fn of(config: &RunConfig, geometry: &Geometry, shapes: &Shapes) -> Self {
        let alone = Geometry {
            actor_ranks: 1,
            ..geometry.clone()
        };
        let mut here = config.clone();
        // There is no other here.
        here.rollout.engine = Engine::Builtin;
        let (config, on_gpu) = (&here, is_on_gpu(geometry, Role::Actor));
        let policy = &shapes.policy;
        let weights = product(&[policy.parameters(), bytes(config.dtype(Role::Rollout))]);
        let mut engine = vec![
            part("engine's weights", weights),
            part(
                "engine's key/value cache, at most",
                engine_cache(config, geometry, policy, u64::from(on_gpu)),
            ),
        ];
        let [batch, logits] = engine_passes(config, geometry, policy, 1);
        let drawing = batch.saturating_add(logits);

        let mut parts = Vec::new();
        if !on_gpu {
            parts.push(process_on_cpu());
        }
        parts.extend(held_by_rank(config, 1, shapes));
        let critic = shapes.of_critic(config);
        let mut computing = total(&passes::largest(config, &alone, policy, critic.as_ref()));
        let mut frozen = |name: &str, model: Vec<Part>| {
            // Its weights come first, then what its passes take.
            let mut model = model.into_iter();
            parts.extend(model.next().map(|weights| part(name, weights.bytes)));
            computing = computing.max(model.fold(0, |sum: u64, part| sum.saturating_add(part.bytes)));
        };
        if config.model.reference.is_some() {
            frozen("reference's weights", reference(config, &alone, policy));
        }
        if config.reward.model.is_some() {
            frozen(
                "reward model's weights",
                reward(config, &shapes.reward.unwrap_or(*policy)),
            );
        }
        match (config.overlap, on_gpu) {
            (Overlap::OneStep, _) => {
                parts.append(&mut engine);
                parts.push(part("passes of engine and actor", sum(&[drawing, computing])));
            }
            (Overlap::None, true) => {
                parts.append(&mut engine);
                parts.push(part("largest of their passes", drawing.max(computing)));
            }
            (Overlap::None, false) => {
                let awake = total(&engine).saturating_add(drawing);
                parts.push(match awake > computing {
                    true => part("engine with a full cache", awake),
                    false => part("passes of training", computing),
                });
            }
        }
        Self {
            total: total(&parts),
            parts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::tests::job;
    use crate::memory::estimate;
    use crate::memory::tests::LLAMA_8B;
    use crate::{Environment, resolve};

    fn shapes() -> Shapes {
        Shapes {
            policy: LLAMA_8B,
            critic: None,
            reward: None,
        }
    }

    fn planned(blocks: &str, roles: &str) -> (ProcessMemory, u64) {
        let job = job(blocks, &format!("{roles}, reward: {{rules: [{{json: {{}}}}]}}"));
        let config = resolve(&job, &Environment::cluster()).unwrap();
        let geometry = Geometry::of(&job).unwrap();
        let pods = estimate(&config, &geometry, &shapes());
        let pods = pods.iter().map(|role| role.total).sum();
        (ProcessMemory::of(&config, &geometry, &shapes()), pods)
    }

    fn bytes_of(memory: &ProcessMemory, name: &str) -> u64 {
        let mut parts = memory.parts.iter();
        parts.find(|part| part.name == name).map_or(0, |part| part.bytes)
    }

    #[test]
    fn one_process_shares_nothing_with_other_ranks_whatever_the_manifests_pods() {
        let (one, _) = planned("", "actor: {gpusPerNode: 1}");
        let (eight, _) = planned("", "actor: {gpusPerNode: 8}");
        for name in [
            "policy optimizer state",
            "gradients of one update",
            "reference's weights",
            "engine's weights",
        ] {
            assert!(bytes_of(&one, name) > 0, "{name}");
            assert_eq!(bytes_of(&one, name), bytes_of(&eight, name), "{name}");
        }
    }

    #[test]
    fn roles_that_take_turns_need_less_than_the_sum_of_their_pods() {
        let on_cpus = "actor: {gpusPerNode: 0}, reference: {gpusPerNode: 0}, rollout: {gpusPerReplica: 0}";
        // Small passes, so that the engine takes more.
        let batch = "batch: {microTrainBatchSize: 1, microRolloutBatchSize: 1}";
        let (turns, pods) = planned(batch, on_cpus);
        assert!(turns.total < pods, "{} and {pods}", turns.total);
        let engine = bytes_of(&turns, "engine with a full cache");
        assert!(engine > 2 * LLAMA_8B.parameters());
        // One that draws meanwhile leaves nothing.
        let (beside, _) = planned(&format!("{batch}\n  overlap: oneStep"), on_cpus);
        assert!(beside.total > turns.total);
        assert_eq!(bytes_of(&beside, "engine's weights"), 2 * LLAMA_8B.parameters());
    }

    #[test]
    fn on_a_cpu_the_process_itself_counts() {
        let process = |gpus: u32| {
            bytes_of(
                &planned("", &format!("actor: {{gpusPerNode: {gpus}}}")).0,
                "process and libraries",
            )
        };
        assert_eq!((process(0), process(1)), (256 << 20, 0));
    }

    #[test]
    fn a_vllm_of_the_manifest_is_the_builtin_engine_here() {
        let builtin = planned("", "rollout: {gpusPerReplica: 2}").0;
        assert_eq!(planned("", "rollout: {engine: vllm, gpusPerReplica: 2}").0, builtin);
    }
}
