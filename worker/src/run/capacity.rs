//! Checks, before the weights are read, that the models to be trained fit the GPU.

use ppo_crds::RunConfig;
use ppo_crds::memory::{Shapes, held_by_rank};
use ppo_crds::spec::DType;

use crate::manifest::Invalid;
use crate::native::driver::Gpu;

/// Refuses models of which `who`, one of `ranks`, cannot hold weights, gradients and optimizer state on its `gpu`. What the samples take
/// comes beside these and is only estimated: nothing is refused for it.
///
/// # Errors
/// [`Invalid`], with what is needed for what, and what would fit.
pub fn refuse_too_large(
    config: &RunConfig,
    shapes: &Shapes,
    (who, ranks): (&str, u64),
    gpu: &Gpu,
) -> Result<(), Invalid> {
    let bytes = |ranks: u64| {
        let parts = held_by_rank(config, ranks, shapes);
        parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.bytes))
    };
    let needed = bytes(ranks);
    if needed <= gpu.bytes {
        return Ok(());
    }
    let parts = held_by_rank(config, ranks, shapes);
    let parts: Vec<String> = parts
        .iter()
        .map(|part| format!("{} {}", part.name, gibibytes(part.bytes)))
        .collect();
    // What stays however many share the rest.
    let weights = bytes(u64::MAX);
    let more = match gpu.bytes.checked_sub(weights) {
        Some(room) if room > 0 => format!(
            "More ranks share all but the weights: there is room for it from {} on (roles.actor.nodes x roles.actor.gpusPerNode)",
            (bytes(1) - weights).div_ceil(room)
        ),
        Some(_) | None => "More ranks do not help, each holds all weights".to_owned(),
    };
    Err(Invalid::new(format!(
        "{who} needs {} of its GPU beside what the samples take, and {} has {}: {}. {more}. Less take {}",
        gibibytes(needed),
        gpu.name,
        gibibytes(gpu.bytes),
        parts.join(", "),
        smaller(config).join(", ")
    )))
}

/// What takes less memory than this run.
fn smaller(config: &RunConfig) -> Vec<&'static str> {
    let all = [
        (config.model.dtype == DType::Float32, "model.dtype bfloat16"),
        (config.model.adapter.is_none(), "model.adapter"),
        (config.model.critic.is_some(), "an estimator without a critic"),
        (true, "a smaller model"),
    ];
    let helps = all.into_iter().filter(|(helps, _)| *helps);
    helps.map(|(_, words)| words).collect()
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use ppo_crds::manifest::parse_manifest;
    use ppo_crds::memory::ModelShape;
    use ppo_crds::{Environment, resolve};
    use serde_json::json;

    use super::*;

    /// Llama 3.1 8B's config.json.
    const LLAMA_8B: ModelShape = ModelShape {
        hidden: 4096,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        intermediate: 14_336,
        vocab: 128_256,
        tied: false,
        qkv_bias: false,
        qk_norm: false,
    };

    fn refused(policy: ModelShape, ranks: u64) -> Option<String> {
        let manifest = json!({
            "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "large"},
            "spec": {"model": {"policy": {"path": "p"}}, "prompts": {"source": {"path": "d.jsonl"}},
                     "roles": {"reward": {"rules": [{"json": {}}]}}},
        });
        let job = parse_manifest(&manifest.to_string(), "job.json").unwrap();
        let here = Environment::Laptop {
            manifest_folder: "/".into(),
        };
        let config = resolve(&job, &here).unwrap();
        let shapes = Shapes {
            policy,
            critic: None,
            reward: None,
        };
        let gpu = Gpu {
            name: "NVIDIA H100".into(),
            bytes: 79 << 30,
            capability: (9, 0),
        };
        let fits = refuse_too_large(&config, &shapes, ("rank 0 of the actor", ranks), &gpu);
        fits.err().map(|error| error.to_string())
    }

    #[test]
    fn models_that_too_few_ranks_share_are_refused_with_how_many_have_room() {
        let words = refused(LLAMA_8B, 1).unwrap();
        for part in [
            "rank 0 of the actor needs 203.5 GiB of its GPU",
            "NVIDIA H100 has 79.0 GiB: policy weights 15.0 GiB,",
            "there is room for it from 4 on",
            "Less take model.adapter, an estimator without a critic, a smaller model",
        ] {
            assert!(words.contains(part), "{part} is not in: {words}");
        }
        assert!(refused(LLAMA_8B, 3).is_some());
        assert_eq!(refused(LLAMA_8B, 4), None);
    }

    #[test]
    fn where_the_weights_alone_are_too_large_more_ranks_are_not_advised() {
        let large = ModelShape {
            hidden: 8192,
            layers: 80,
            heads: 64,
            intermediate: 28_672,
            ..LLAMA_8B
        };
        let words = refused(large, 1024).unwrap();
        assert!(
            words.contains("More ranks do not help, each holds all weights"),
            "{words}"
        );
    }
}
