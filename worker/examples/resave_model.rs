//! Reads a model folder and writes it again, to compare both with `tests/fixtures/check_saved.py`.
//!
//! `cargo run --example resave_model -- SOURCE TARGET [SHARD_BYTES]`

use std::path::Path;

use anyhow::{Context, Result};
use ppo_worker::model::save::{SHARD_BYTES, save};
use ppo_worker::model::{ModelConfig, Weights};
use tch::Kind;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, target, rest @ ..] = arguments.as_slice() else {
        anyhow::bail!("which SOURCE and TARGET folder?")
    };
    let shard_bytes = rest
        .first()
        .map_or(Ok(SHARD_BYTES), |text| text.parse())
        .context("SHARD_BYTES")?;
    let source = Path::new(source);
    let config = ModelConfig::read(source)?;
    let weights = Weights::load(source, &config, config.dtype.unwrap_or(Kind::Float))?;
    save(Path::new(target), source, &config, &weights, shard_bytes)
}
