//! Reads an adapter of PEFT's and writes what a run would leave of it, for `tests/fixtures/check_adapter.py`: the adapter, a
//! critic with the same one and a constant value head, and the merged model.
//!
//! `cargo run --example resave_adapter -- BASE ADAPTER TARGET`

use std::path::Path;

use anyhow::{Context, Result};
use ppo_crds::spec::AdapterSpec;
use ppo_worker::model::adapter::peft;
use ppo_worker::model::names::{SCORE_BIAS, SCORE_WEIGHT};
use ppo_worker::model::save::{SHARD_BYTES, save};
use ppo_worker::model::{Head, MergedWeights, ModelConfig, Weights};
use tch::{Device, Kind, Tensor};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [base, adapter, target] = arguments.as_slice() else {
        anyhow::bail!("which BASE, ADAPTER and TARGET folder?")
    };
    let (base, adapter, target) = (Path::new(base), Path::new(adapter), Path::new(target));
    let text = std::fs::read_to_string(adapter.join(peft::CONFIG))?;
    let written: serde_json::Value = serde_json::from_str(&text)?;
    let spec = AdapterSpec {
        rank: serde_json::from_value(written["r"].clone())?,
        alpha: written["lora_alpha"].as_f64().context("lora_alpha")?,
        ..AdapterSpec::default()
    };
    let config = ModelConfig::read(base)?;
    let (adapter, _) = peft::load(adapter, &config, &spec)?;
    let name = peft::Base {
        name: base.canonicalize()?.display().to_string(),
        revision: None,
    };
    peft::save(&target.join("adapter"), &name, config.head, &spec, &adapter.weights)?;

    let mut critic = adapter.weights.shallow_clone();
    let constant = |dims: &[i64], value: f64| Tensor::f_full(dims, value, (Kind::Float, Device::Cpu));
    critic
        .0
        .insert(SCORE_WEIGHT.into(), constant(&[1, config.hidden], 0.5)?);
    critic.0.insert(SCORE_BIAS.into(), constant(&[1], 1.0)?);
    peft::save(&target.join("critic"), &name, Head::Value, &spec, &critic)?;

    let weights = Weights::load(base, &config, Kind::Float)?;
    let merged = MergedWeights::new(weights, &adapter);
    save(&target.join("model"), base, &config, merged, SHARD_BYTES)
}
