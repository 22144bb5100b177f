//! The reference model of a run.

use anyhow::{Context, Result};
use ppo_crds::run_config::Location;

use crate::hub::resolve_location;
use crate::model::{Decoder, ModelConfig, Target, Weights, named};

/// The field that names it.
const FIELD: &str = "model.reference";

/// The reference model.
///
/// # Errors
/// When it cannot be loaded; [`Invalid`](crate::manifest::Invalid) where the folder is none of a model.
pub fn load(location: &Location, target: Target) -> Result<Decoder> {
    let folder = resolve_location(location).context(FIELD)?;
    let model = named::described(FIELD, ModelConfig::read(&folder))?;
    let weights = named::found(FIELD, Weights::load(&folder, &model, target))?;
    let mut decoder = Decoder::new(&model, &weights)?;
    // Its ids are the policy's.
    decoder.take_unknown();
    Ok(decoder)
}
