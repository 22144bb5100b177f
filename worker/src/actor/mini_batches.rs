//! Which samples each update of a step learns from, and which rank computes them: a function of seed, step and epoch alone.

use ppo_crds::RunConfig;

use crate::data::PromptOrder;
use crate::ranks::deal::deal;
use crate::stages::Sample;

/// The mini-batches of a step.
#[derive(Clone, Copy, Debug)]
pub struct MiniBatches<'a> {
    /// What runs.
    pub config: &'a RunConfig,
    /// Steps completed before this one.
    pub step: u64,
    /// The step's samples.
    pub samples: &'a [Sample],
    /// Ranks that train together.
    pub ranks: usize,
}

/// The samples of one update that each rank computes, by their place in the step.
pub type Shares = Vec<Vec<usize>>;

impl MiniBatches<'_> {
    /// Those of an epoch. Each rank has as many samples of each, and as many tokens as can be.
    pub fn of_epoch(&self, epoch: usize) -> Vec<Shares> {
        let order = self.order(epoch);
        let chosen = order.chunks(self.config.batch.train_batch_size);
        chosen.map(|chosen| self.dealt(chosen)).collect()
    }

    /// The first of the step, where each rank computes its share in one pass that can be kept.
    pub fn first_kept(&self) -> Option<Shares> {
        if !self.config.keeps_first_pass(self.ranks as u64) {
            return None;
        }
        let order = self.order(0);
        let first = order.chunks(self.config.batch.train_batch_size).next();
        first.map(|chosen| self.dealt(chosen))
    }

    fn order(&self, epoch: usize) -> Vec<usize> {
        let samples = self.samples.len();
        // The order of updates is a domain of its own beside the order of prompts.
        let seed = self.config.seed ^ 0x7570_6461_7465; // "update"
        let epoch = self.step * self.config.batch.ppo_epochs as u64 + epoch as u64;
        let order = PromptOrder {
            seed,
            prompts: samples,
            batch: samples,
            shuffle: true,
        };
        order.batch(epoch)
    }

    fn dealt(&self, chosen: &[usize]) -> Shares {
        let lengths: Vec<usize> = chosen.iter().map(|&index| self.samples[index].length()).collect();
        let hands = deal(&lengths, self.ranks).into_iter();
        hands
            .map(|hand| hand.into_iter().map(|place| chosen[place]).collect())
            .collect()
    }
}
