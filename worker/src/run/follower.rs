//! The ranks other than rank 0: they hold the same models and carry out its orders.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use ppo_crds::RunConfig;
use ppo_crds::report::Reason;
use tch::Tensor;

use super::inputs::Held;
use super::learners::{fetch, learners};
use super::models::write_optimizers;
use crate::actor::checkpoint::{Files, hash_share};
use crate::actor::fence::Fence;
use crate::actor::lesson::Lesson;
use crate::actor::pieces::{Pieces, take_samples};
use crate::actor::update::Update;
use crate::actor::{Actor, Critic};
use crate::disk;
use crate::outcome::{Diverged, Ended, Relayed};
use crate::place::Owner;
use crate::ranks::Ranks;
use crate::ranks::order::Order;
use crate::stages::Sample;
use crate::stop::StopFlag;
use crate::telemetry::{Live, Stage, Watched};

/// A rank that follows.
struct Follower<'a> {
    config: &'a RunConfig,
    ranks: &'a Ranks,
    live: &'a Arc<Live>,
    fence: Fence,
    actor: Actor,
    critic: Option<Critic>,
    samples: Vec<Sample>,
    columns: usize,
    /// Steps completed before the present one.
    step: u64,
}

/// Follows rank 0 to the end of the run, which ends here as it does there. `folder` is that of the checkpoints, and `owner` the
/// attempt that may write there. `stop` ends a download; everything else ends when rank 0 says so.
///
/// # Errors
/// How rank 0 ended; when it, or another rank, is lost; what failed here.
pub fn follow(
    config: &RunConfig,
    ranks: &Ranks,
    watched: &Watched,
    (folder, owner): (&Path, Owner),
    stop: &StopFlag,
) -> Result<Ended> {
    ranks.enter("fetching models".into());
    let fetched = fetch(config, stop);
    let (checkpoint, total_steps) = loop {
        match ranks.next_order()? {
            Order::Verify { folder } => {
                ranks.enter("verifying a checkpoint".into());
                let place = (ranks.rank(), ranks.count());
                ranks.reply(Ok(hash_share(&folder, place, || watched.live.goes_on())))?;
            }
            Order::Open {
                checkpoint,
                total_steps,
            } => break (checkpoint, total_steps),
            Order::End { outcome, code } => return ended(ranks, Relayed { outcome, code }),
            other => bail!("rank 0 said {other:?} before it said what to load"),
        }
    };
    ranks.enter("loading models".into());
    let load = |fence| -> Result<_> {
        let policy = fetched?;
        let (mut actor, critic) = learners(config, &policy, checkpoint.as_deref(), total_steps, ranks)?;
        actor.mark_changes(config)?;
        // Rank 0 compares it with its own.
        let held = Held::of(config, &actor, critic.as_ref(), ranks)?;
        Ok((fence, actor, critic, held))
    };
    let loaded = Fence::join(folder, owner).and_then(load);
    ranks.reply(loaded.as_ref().map(|(_, _, _, held)| held))?;
    let (fence, actor, critic, _) = loaded?;
    watched.exposition.set_ready(true);
    let mut follower = Follower {
        config,
        ranks,
        live: &watched.live,
        fence,
        actor,
        critic,
        samples: Vec::new(),
        columns: 0,
        step: 0,
    };
    loop {
        match ranks.next_order()? {
            Order::End { outcome, code } => return ended(ranks, Relayed { outcome, code }),
            order => {
                let obeyed = follower.obey(order).inspect_err(|error| ranks.leave_word(error));
                obeyed.map_err(|error| ranks.placed(error))?;
            }
        }
    }
}

impl Follower<'_> {
    fn obey(&mut self, order: Order) -> Result<()> {
        match order {
            Order::Samples { step, lengths, columns } => {
                (self.step, self.columns) = (step, columns);
                self.samples = take_samples(self.ranks, &lengths)?;
            }
            Order::FrozenLogprobs => self.compute(Stage::Reference, |it, pieces| {
                it.actor
                    .frozen_logprobs(pieces, it.ranks, it.config.generation.temperature)
            })?,
            Order::Logprobs => self.compute(Stage::OldLogprobs, |it, pieces| {
                it.actor.old_logprobs(pieces, it.ranks, it.config)
            })?,
            Order::Values => self.compute(Stage::Values, |it, pieces| {
                let critic = it.critic.as_mut();
                let critic = critic.context("rank 0 has a critic, this rank has none")?;
                critic.old_values(pieces, it.ranks)
            })?,
            Order::Learn {
                kl_coefficient,
                reference,
                values,
            } => self.learn(kl_coefficient, reference, values)?,
            Order::Save { folder } => {
                self.enter(Stage::Checkpoint);
                // Rank 0 gets the words of an error alone.
                self.ranks.reply(self.save(&folder).map_err(disk::explain).as_ref())?;
            }
            Order::Verify { .. } | Order::Open { .. } | Order::End { .. } => {
                bail!("rank 0 said {order:?} in the middle of a run")
            }
        }
        Ok(())
    }

    /// Writes this rank's part of a checkpoint, and hashes it.
    fn save(&self, folder: &Path) -> Result<Files> {
        self.fence.check()?;
        let written = write_optimizers(&self.actor, self.critic.as_ref(), folder)?;
        Files::of(folder, &written, || ())
    }

    fn learn(&mut self, kl_coefficient: f64, reference: bool, values: bool) -> Result<()> {
        self.enter(Stage::UpdateActor);
        let lesson = Lesson::take(self.ranks, &self.samples, self.columns, reference, values)?;
        let update = Update {
            config: self.config,
            step: self.step,
            kl_coefficient,
            lesson: &lesson,
            ranks: self.ranks,
            live: self.live,
        };
        match update.run(&mut self.actor, self.critic.as_mut()) {
            // Rank 0 found the same and says how the run ends.
            Err(error) if error.is::<Diverged>() => Ok(()),
            learnt => learnt.map(drop),
        }
    }

    /// This rank's share of a forward pass; rank 0 has the whole.
    fn compute(&mut self, stage: Stage, forward: impl FnOnce(&mut Self, &Pieces) -> Result<Tensor>) -> Result<()> {
        self.enter(stage);
        let samples = std::mem::take(&mut self.samples);
        let pieces = Pieces::of(
            self.config,
            self.step,
            &samples,
            self.columns,
            self.ranks.count(),
            self.live,
        );
        let computed = forward(self, &pieces);
        self.samples = samples;
        computed.map(drop)
    }

    fn enter(&self, stage: Stage) {
        self.ranks.enter(stage.of_step(self.step + 1));
    }
}

fn ended(ranks: &Ranks, relayed: Relayed) -> Result<Ended> {
    // Rank 0 waits for it; the run is over either way.
    if let Err(error) = ranks.reply(Ok(())) {
        tracing::debug!("the end of the run: {error:#}");
    }
    match relayed.outcome.reason {
        Reason::Completed => Ok(Ended::Completed),
        Reason::Interrupted => Ok(Ended::Interrupted),
        _ => Err(relayed.into()),
    }
}
