//! Builds actor and critic where an adapter is trained: the two may share frozen weights, and each trains its own adapter above them.

use std::path::{Path, PathBuf};

use anyhow::Result;
use ppo_crds::run_config::Location;
use ppo_crds::spec::AdapterSpec;
use tch::Kind;

use super::learners::Learners;
use super::models::{ACTOR_OPTIMIZER, CRITIC, CRITIC_OPTIMIZER, POLICY};
use crate::actor::flat::Flat;
use crate::actor::{Actor, Critic, Frozen};
use crate::model::adapter::peft;
use crate::model::names::{SCORE_BIAS, SCORE_WEIGHT};
use crate::model::{Adapter, CriticFolder, Decoder, ModelConfig, Target, ValueModel, Weights, named};

/// The actor's adapter starts from a seed of its own beside whatever else the run draws, the critic's from another.
const ACTOR_SEED: u64 = 0x6163_746f_722d_6c72; // "actor-lr"
const CRITIC_SEED: u64 = 0x6372_6974_6963_6c72; // "criticlr"

/// What it takes to build them.
pub struct Adapted<'a> {
    /// What it takes where all weights are trained.
    pub above: &'a Learners<'a>,
    /// Sizes of the adapters.
    pub adapter: &'a AdapterSpec,
}

impl Adapted<'_> {
    /// The actor on the model in `folder`.
    ///
    /// # Errors
    /// When the model, or the checkpoint's part of it, cannot be read.
    pub fn actor(&self, folder: &Path, model: &ModelConfig) -> Result<Actor> {
        let base = named::found("model.policy", Weights::load(folder, model, self.above.target))?;
        let mut adapter = match self.above.checkpoint {
            None => Adapter::new(model, self.adapter, self.above.config.seed ^ ACTOR_SEED)?,
            Some(checkpoint) => peft::load(&checkpoint.folder.join(POLICY), model, self.adapter)?.0,
        };
        adapter = adapter.on(self.above.target.device)?;
        let flat = Flat::of(&mut adapter.weights, self.above.ranks)?;
        let mut learner = self.above.actor_learner(flat)?;
        self.above
            .restore(&mut learner, ACTOR_OPTIMIZER, |it| it.state.actor_updates)?;
        let below = Decoder::new(model, &base)?;
        let mut decoder = Decoder::new(model, &base)?;
        decoder.attach(&adapter)?;
        decoder.set_activation_checkpointing(self.above.config.model.activation_checkpointing);
        let adapter = self.adapter.clone();
        let frozen = Frozen {
            base,
            decoder: below,
            adapter,
        };
        Ok(Actor {
            decoder,
            learner,
            frozen: Some(frozen),
            kept: None,
        })
    }

    /// The critic on the model of a place and its folder, or on `shared` weights that are there already. Its head is float32, as its
    /// adapter is.
    ///
    /// # Errors
    /// When the model, or the checkpoint's part of it, cannot be read.
    pub fn critic(
        &self,
        (location, folder): (&Location, PathBuf),
        shared: Option<(&ModelConfig, &Weights)>,
    ) -> Result<Critic> {
        let Target { kind, device } = self.above.target;
        let (model, mut weights) = match shared {
            Some((model, base)) => ValueModel::upon(model.clone(), base, kind)?,
            None => {
                let source = CriticFolder::read(&folder, self.above.keeps_score());
                let source = named::described("model.critic", source)?;
                let weights = named::found("model.critic", source.load(self.above.target))?;
                (source.config().clone(), weights)
            }
        };
        let mut adapter = match self.above.checkpoint {
            None => Adapter::new(&model, self.adapter, self.above.config.seed ^ CRITIC_SEED)?,
            Some(checkpoint) => {
                let (adapter, head) = peft::load(&checkpoint.folder.join(CRITIC), &model, self.adapter)?;
                weights.0.extend(head.on(device)?.0);
                adapter
            }
        };
        adapter = adapter.on(device)?;
        // What learns is moved into one buffer, and comes back as views of it.
        for name in [SCORE_WEIGHT, SCORE_BIAS] {
            let head = weights.get(name)?.f_to_kind(Kind::Float)?;
            adapter.weights.0.insert(name.to_owned(), head);
        }
        let flat = Flat::of(&mut adapter.weights, self.above.ranks)?;
        let mut learner = self.above.critic_learner(flat)?;
        self.above
            .restore(&mut learner, CRITIC_OPTIMIZER, |it| it.state.critic_updates)?;
        for name in [SCORE_WEIGHT, SCORE_BIAS] {
            weights.0.extend(adapter.weights.0.remove_entry(name));
        }
        let mut model = ValueModel::new(&model, &weights)?;
        model.decoder.attach(&adapter)?;
        model
            .decoder
            .set_activation_checkpointing(self.above.config.model.activation_checkpointing);
        let adapter = Some(self.adapter.clone());
        let keeps_pass = self.above.keeps_pass(&model);
        Ok(Critic {
            model,
            learner,
            location: location.clone(),
            folder,
            adapter,
            keeps_pass,
            kept: None,
        })
    }
}
