//! The reward model of a run.

use std::sync::Arc;

use anyhow::{Context, Result};
use ppo_crds::run_config::Location;
use ppo_crds::spec::DType;

use super::model::{ModelReward, SequenceScorer};
use crate::device;
use crate::hub::resolve_location;
use crate::model::budget::PASS_TOKENS;
use crate::model::digest::digest_of_model;
use crate::model::{RewardModel, kind, named};
use crate::tokenizer::Tokenizer;

/// The field that names it.
const SOURCE: &str = "roles.reward.model.source";

/// A reward model from its folder, with its own tokenizer: a copy on each of this process' devices. It scores samples of `policy`.
///
/// # Errors
/// When it cannot be loaded; [`Invalid`](crate::manifest::Invalid) where the folder is none of a reward model.
pub fn load(location: &Location, dtype: DType, policy: &Location) -> Result<ModelReward> {
    let folder = resolve_location(location).context(SOURCE)?;
    named::described(SOURCE, RewardModel::configuration(&folder))?;
    let tokenizer = Arc::new(named::found(SOURCE, Tokenizer::load(&folder))?);
    let copies = device::on_each(|device| RewardModel::load(&folder, (kind(dtype), device)));
    let copies = named::found(SOURCE, copies)?;
    let first = copies.first().context("there is nothing to compute on")?;
    let digest = digest_of_model(first.config(), first.parameters())?;
    let (context, at_end_token) = (first.config().max_positions, first.config().scores_at_end_token());
    let copies = copies.into_iter().map(|copy| Box::new(copy) as Box<dyn SequenceScorer>);
    let loaded = ModelReward::new(copies.collect(), tokenizer, PASS_TOKENS)?;
    let policy = match policy {
        Location::Hub { id, .. } => id.clone(),
        Location::Path(folder) => folder.display().to_string(),
    };
    let loaded = loaded.with_digest(digest).made_for(context).of_policy(policy);
    Ok(match at_end_token {
        true => loaded.scored_at_end_token(),
        false => loaded,
    })
}

impl SequenceScorer for RewardModel {
    fn scores(&mut self, sequences: &[Vec<u32>]) -> Result<Vec<f32>> {
        device::enter(self.device())?;
        RewardModel::scores(self, sequences)
    }
}
