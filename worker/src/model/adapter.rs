//! Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685): `x W^T + (alpha / rank) (x A^T) B^T` with W frozen.
//!
//! A and B are float32 whatever the model's precision, as PEFT keeps those it trains (`autocast_adapter_dtype` in
//! `peft/tuners/tuners_utils.py`), so they are their own master weights.

pub mod low_rank;
pub mod merged;
pub mod peft;

use std::collections::BTreeMap;

use anyhow::Result;
use ppo_crds::spec::AdapterSpec;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use tch::{Kind, Tensor};

use self::low_rank::LowRank;
use super::config::ModelConfig;
use super::names;
use super::weights::Weights;

/// Ends the name of an adapted projection's A, `[rank, in]`.
pub const LORA_A: &str = ".lora_A.weight";
/// Ends the name of an adapted projection's B, `[out, rank]`.
pub const LORA_B: &str = ".lora_B.weight";

/// An adapter's sizes and tensors.
#[derive(Debug)]
pub struct Adapter {
    /// Rank, scale and targets.
    pub spec: AdapterSpec,
    /// Named `{projection}.lora_A.weight` and `{projection}.lora_B.weight`, such as
    /// `model.layers.0.self_attn.q_proj.lora_A.weight`.
    pub weights: Weights,
}

impl Adapter {
    /// An adapter that changes nothing yet: B is zero, A uniform within `1 / sqrt(in)`, which is PEFT's Kaiming initialisation
    /// with `a = sqrt(5)` (`reset_lora_parameters` in `peft/tuners/lora/layer.py`; not the same draws). A function of the seed.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(config: &ModelConfig, spec: &AdapterSpec, seed: u64) -> Result<Self> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut weights = BTreeMap::new();
        for (name, dims) in names::adapter(config, spec) {
            let tensor = if name.ends_with(LORA_A) {
                uniform(&mut random, &dims)?
            } else {
                Tensor::f_zeros(&dims, (Kind::Float, tch::Device::Cpu))?
            };
            weights.insert(name, tensor);
        }
        Ok(Self {
            spec: spec.clone(),
            weights: Weights(weights),
        })
    }

    /// The same values on a device.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn on(self, device: tch::Device) -> Result<Self> {
        let weights = self.weights.on(device)?;
        Ok(Self { weights, ..self })
    }

    /// What it adds to the projection of that name, such as `model.layers.0.self_attn.q_proj`; None where it adds nothing.
    pub fn low_rank(&self, projection: &str) -> Option<LowRank> {
        let tensor = |suffix: &str| self.weights.0.get(&format!("{projection}{suffix}"));
        Some(LowRank {
            a: tensor(LORA_A)?.shallow_clone(),
            b: tensor(LORA_B)?.shallow_clone(),
            scale: self.spec.scale(),
        })
    }
}

fn uniform(random: &mut ChaCha8Rng, dims: &[i64]) -> Result<Tensor> {
    let [rows, width] = [dims[0], dims[1]];
    let bound = (width as f32).sqrt().recip();
    // 24 bits are all that a float32 below 1 holds.
    let mut draw = || (random.next_u32() >> 8) as f32 * (2.0 / (1 << 24) as f32) - 1.0;
    let values: Vec<f32> = (0..rows * width).map(|_| draw() * bound).collect();
    Ok(Tensor::f_from_slice(&values)?.f_view(dims)?)
}

#[cfg(test)]
mod tests;
