//! The reference model of a run.

use anyhow::{Context, Result};
use ppo_crds::run_config::Location;

use crate::hub::resolve_location;
use crate::model::{Decoder, ModelConfig, Target, Weights};

/// The reference model.
///
/// # Errors
/// When it cannot be loaded.
pub fn load(location: &Location, target: Target) -> Result<Decoder> {
    let folder = resolve_location(location).context("model.reference")?;
    let model = ModelConfig::read(&folder)?;
    Decoder::new(&model, &Weights::load(&folder, &model, target)?)
}
