//! Which roles run in this process and which are reached over HTTP: the one place that chooses.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use ppo_crds::RunConfig;
use ppo_crds::run_config::Location;
use ppo_crds::spec::{Engine as EngineKind, Overlap, Role};

use super::inputs::refuse_other_model;
use super::start::{Around, Start};
use crate::actor::Actor;
use crate::engine::{PolicyEngine, start_engine};
use crate::hub::resolve_unless_stopped;
use crate::model::digest::digest_of_model;
use crate::model::{MergedWeights, target};
use crate::pods::{Caller, Members};
use crate::reward::Reward;
use crate::roles::{Dealer, DealerOptions, Pool, Reference, ReferencePods, Rollout, SameModel, Transfers};
use crate::tokenizer::Tokenizer;
use crate::{reference, reward};

/// Fields of the manifest that name models which are in no checkpoint.
const REFERENCE: &str = "model.reference";
const REWARD_MODEL: &str = "roles.reward.model.source";

/// What it takes to reach the other roles.
pub struct Reach<'a> {
    /// What runs.
    pub config: &'a RunConfig,
    /// Where the roles may be, and who waits for them.
    pub around: &'a Around<'a>,
    /// What the run began with, where it goes on.
    pub start: Start<'a>,
}

impl Reach<'_> {
    /// The rollout role with `weights`, the version of `here`, which is the engine that this process would have.
    ///
    /// # Errors
    /// When the engine cannot be started, or an address is none.
    pub fn rollout(&self, here: &PolicyEngine, weights: MergedWeights, tokenizer: &Arc<Tokenizer>) -> Result<Rollout> {
        let rollout = &self.config.rollout;
        let there = self.there(Role::Rollout, rollout.replicas)?;
        let Some((peers, (members, caller))) = self.around.peers.zip(there) else {
            return Ok(Rollout::Here(start_engine(here, weights, Some(tokenizer.clone()))?));
        };
        let options = DealerOptions {
            members,
            floor: rollout.min_replicas,
            floor_deadline: peers.ready_deadline,
            caller,
            publication: self.around.publication.clone(),
            transfers: (rollout.engine == EngineKind::Vllm).then(Transfers::default),
            copies: self.config.overlap == Overlap::OneStep,
            live: self.around.live.clone(),
        };
        let (runtime, stop) = (self.around.runtime.clone(), self.around.stop.clone());
        let dealer = Dealer::new(options, weights, here.policy_version, runtime, stop)?;
        Ok(Rollout::There(dealer))
    }

    /// The reference role; None in a run without one. Below an adapter it is the actor's own frozen weights. It is asked
    /// about sequences of up to `longest` tokens.
    ///
    /// # Errors
    /// When the model cannot be loaded, or an address is none; [`Invalid`](crate::manifest::Invalid) where the run began with another one;
    /// [`Interrupted`](crate::stop::Interrupted).
    pub fn reference(&self, actor: &Actor, longest: usize) -> Result<Option<Reference>> {
        if actor.frozen.is_some() && self.config.reference_is_base() {
            return Ok(Some(Reference::Below));
        }
        let Some(location) = &self.config.model.reference else {
            return Ok(None);
        };
        let saved = self.start.inputs().and_then(|inputs| inputs.reference.as_deref());
        let pool = self.pool(Role::Reference, SameModel::new(REFERENCE, saved))?;
        Ok(Some(match pool {
            Some(pool) => Reference::There(Box::new(ReferencePods {
                pool,
                runtime: self.around.runtime.clone(),
            })),
            None => {
                self.fetch(REFERENCE, location)?;
                let decoder = reference::load(location, target(self.config.dtype(Role::Reference))?)?;
                let digest = digest_of_model(decoder.config(), decoder.parameters())?;
                refuse_other_model(saved, Some(&digest), (REFERENCE, location), self.start.afresh)?;
                let context = decoder.config().max_positions;
                if context < longest {
                    tracing::warn!(
                        "a sequence may have {longest} tokens, the context of model.reference has {context}: beyond it its \
                         log-probabilities, and so the KL, mean little; lower prompts.maxLength or generation.maxNewTokens"
                    );
                }
                Reference::Here {
                    decoder: Box::new(decoder),
                    digest,
                }
            }
        }))
    }

    /// The reward role's model; None in a run without one. It is asked about sequences of up to `longest` tokens.
    ///
    /// # Errors
    /// As [`reference`](Self::reference).
    pub fn reward(&self, longest: usize) -> Result<Option<Reward>> {
        let Some(model) = &self.config.reward.model else {
            return Ok(None);
        };
        let saved = self.start.inputs().and_then(|inputs| inputs.reward.as_deref());
        let pool = self.pool(Role::Reward, SameModel::new(REWARD_MODEL, saved))?;
        Ok(Some(match pool {
            Some(pool) => Reward::There(Box::new(pool)),
            None => {
                self.fetch(REWARD_MODEL, &model.source)?;
                let dtype = self.config.dtype(Role::Reward);
                let loaded = reward::load(&model.source, dtype, &self.config.model.policy)?;
                loaded.warn_beyond(longest);
                let afresh = self.start.afresh;
                refuse_other_model(saved, loaded.digest(), (REWARD_MODEL, &model.source), afresh)?;
                Reward::Here(loaded)
            }
        }))
    }

    /// Brings a model to this machine, unless the run is asked to stop meanwhile: whoever loads it does not look for that. In a role's own
    /// pod a signal ends the process whatever it does.
    fn fetch(&self, field: &'static str, location: &Location) -> Result<()> {
        resolve_unless_stopped(location, &self.around.stop).context(field)?;
        Ok(())
    }

    fn pool(&self, role: Role, model: SameModel) -> Result<Option<Pool>> {
        let there = self.there(role, 1)?;
        let ranks = self.around.peers.map_or(1, |peers| peers.ranks_per_pod(role));
        let ready = self.around.peers.map_or(Duration::ZERO, |peers| peers.ready_deadline);
        let pool = |(members, caller)| {
            let (stop, live) = (self.around.stop.clone(), self.around.live.clone());
            let pool = Pool::new((role, model), (members, ranks), caller, stop, live);
            pool.patient(ready)
        };
        Ok(there.map(pool))
    }

    /// How a role is reached whose pods are not this process; `count` of them at the least.
    fn there(&self, role: Role, count: usize) -> Result<Option<(Members, Caller)>> {
        let Some(peers) = self.around.peers else {
            return Ok(None);
        };
        let Some(service) = peers.service(role) else {
            return Ok(None);
        };
        let members = Members::of(&self.config.name, role, count, service)?;
        Ok(Some((members, Caller::new(peers.token.clone())?)))
    }
}
