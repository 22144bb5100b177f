//! Which samples share a forward pass. A micro-batch is a measure of memory: as many samples of the greatest length that the manifest allows.
//! Most are shorter, so more of them fit, and weights and gradients are gone over less often. (verl's `use_dynamic_bsz` packs by tokens,
//! verl/utils/seqlen_balancing.py; there the number of tokens is for the user to find.)

use ppo_crds::RunConfig;

use super::mini_batches::Shares;
use crate::stages::Sample;

/// What a pass may hold, as `plan` counts its memory: activations go by all tokens, logits by those of responses.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    tokens: usize,
    responses: usize,
}

impl Room {
    /// That of `samples` samples of the greatest length.
    pub fn of(config: &RunConfig, samples: usize) -> Self {
        Self {
            tokens: samples.saturating_mul(config.longest_sequence()),
            responses: samples.saturating_mul(config.generation.max_new_tokens as usize),
        }
    }

    /// The samples of `share`, places among `samples`, in their order in as few passes as there is room for: the places of each pass.
    pub fn pack(self, samples: &[Sample], share: &[usize]) -> Vec<Vec<usize>> {
        self.spread(samples, share, self.fill(samples, share, 0).len())
    }

    /// In `count` passes, which are at least as many as there have to be and no more than samples: the longest of them as short as can be.
    fn spread(self, samples: &[Sample], share: &[usize], count: usize) -> Vec<Vec<usize>> {
        let needs_more = |tokens: usize| Self { tokens, ..self }.fill(samples, share, 0).len() > count;
        // The fewest tokens a pass with which so many passes are enough: `low` are too few, `high` are not.
        let (mut low, mut high) = (0, self.tokens);
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if needs_more(middle) {
                low = middle
            } else {
                high = middle
            }
        }
        Self { tokens: high, ..self }.fill(samples, share, count)
    }

    /// Each pass takes samples while there is room, but leaves one for each of those that come after it where there have to be `least`. One
    /// that is longer than the room comes alone.
    fn fill(self, samples: &[Sample], share: &[usize], least: usize) -> Vec<Vec<usize>> {
        let mut passes = Vec::new();
        let mut start = 0;
        while start < share.len() {
            let most = share.len().saturating_sub(least.saturating_sub(passes.len() + 1));
            let (mut tokens, mut responses, mut end) = (0, 0, start);
            while end < most.max(start + 1) {
                let sample = &samples[share[end]];
                tokens += sample.length();
                responses += sample.response.len();
                if end > start && (tokens > self.tokens || responses > self.responses) {
                    break;
                }
                end += 1;
            }
            passes.push(share[start..end].to_vec());
            start = end;
        }
        passes
    }
}

/// The micro-batches of an update: the samples of each, rank by rank. All ranks have as many, since they sum their gradients after each.
/// Where a loss is the mean of micro-batches' means they have the size that the manifest says.
pub fn micro_batches(config: &RunConfig, samples: &[Sample], shares: &Shares) -> Vec<Vec<Vec<usize>>> {
    let size = config.batch.micro_train_batch_size;
    if config.algorithm.means_micro_batches() {
        let of_rank = |share: &Vec<usize>| share.chunks(size).map(<[usize]>::to_vec).collect();
        return shares.iter().map(of_rank).collect();
    }
    let room = Room::of(config, size);
    let fewest = |share: &Vec<usize>| room.fill(samples, share, 0).len();
    let count = shares.iter().map(fewest).max().unwrap_or(0);
    let of_rank = |share: &Vec<usize>| room.spread(samples, share, count);
    shares.iter().map(of_rank).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ppo_crds::manifest::parse_manifest;
    use ppo_crds::spec::{Estimator, Profile};
    use ppo_crds::{Environment, resolve};
    use proptest::prelude::*;

    use super::*;
    use crate::data::Prompt;
    use crate::engine::FinishReason;

    fn sample((prompt, response): (usize, usize)) -> Sample {
        Sample {
            prompt: Prompt {
                ids: vec![1; prompt].into(),
                ..Prompt::default()
            },
            group: 0,
            response: vec![2; response],
            rollout_logprobs: Vec::new(),
            versions: Vec::new(),
            finish_reason: FinishReason::Stop,
        }
    }

    /// Room for `count` samples of 6 tokens of prompt and 4 of response.
    fn room(count: usize) -> Room {
        Room {
            tokens: count * 10,
            responses: count * 4,
        }
    }

    #[test]
    fn a_pass_takes_more_samples_than_its_size_where_they_are_shorter_than_they_may_be() {
        let pack = |lengths: &[(usize, usize)]| {
            let samples: Vec<Sample> = lengths.iter().copied().map(sample).collect();
            room(1).pack(&samples, &(0..samples.len()).collect::<Vec<_>>())
        };
        assert_eq!(pack(&[(6, 4); 2]), [[0], [1]], "of the greatest length");
        assert_eq!(pack(&[(3, 2); 4]), [[0, 1], [2, 3]], "of half of it");
        assert_eq!(pack(&[(1, 4); 2]), [[0], [1]], "logits go by responses alone");
        assert_eq!(pack(&[(1, 1); 5]), [vec![0, 1, 2], vec![3, 4]], "and as even as can be");
        assert!(pack(&[]).is_empty());
    }

    /// Micro-batches of two samples of 6 tokens of prompt and 4 of response.
    fn config() -> RunConfig {
        let manifest = "{apiVersion: ppojob.dev/v1alpha1, kind: PpoJob, metadata: {name: test}, spec: {\
             model: {policy: {path: llama}, dtype: float32}, prompts: {source: {path: prompts.jsonl}, maxLength: 6}, \
             generation: {maxNewTokens: 4}, batch: {rolloutBatchSize: 16, nSamplesPerPrompt: 1, microTrainBatchSize: 2}, \
             roles: {reward: {rules: [{json: {}}]}}}}";
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let here = Environment::Laptop {
            manifest_folder: fixtures,
        };
        resolve(&parse_manifest(manifest, "test").unwrap(), &here).unwrap()
    }

    #[test]
    fn all_ranks_make_as_many_passes_as_the_one_that_needs_most() {
        let samples: Vec<Sample> = (0..8)
            .map(|place| sample(if place < 4 { (6, 4) } else { (1, 1) }))
            .collect();
        let passes = micro_batches(&config(), &samples, &vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7]]);
        assert_eq!(passes, [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]);
        let alone = micro_batches(&config(), &samples, &vec![vec![4, 5, 6, 7]]);
        assert_eq!(alone, [[[4, 5, 6, 7]]]);
    }

    #[test]
    fn where_a_loss_is_the_mean_of_micro_batches_means_they_have_their_size() {
        let samples: Vec<Sample> = (0..4).map(|_| sample((1, 1))).collect();
        let mut config = config();
        config.algorithm.profile = Profile::Trl;
        config.algorithm.estimator = Estimator::Gae;
        let passes = |config: &RunConfig| micro_batches(config, &samples, &vec![vec![3, 2, 1, 0]]);
        assert_eq!(passes(&config), [[[3, 2], [1, 0]]]);
        config.algorithm.profile = Profile::Default;
        assert_eq!(passes(&config), [[[3, 2, 1, 0]]]);
    }

    proptest! {
        #[test]
        fn passes_keep_the_order_fit_into_the_room_and_are_no_more_than_by_size(
            lengths in prop::collection::vec((1usize..7, 1usize..5), 1..60), size in 1usize..9, more in 0usize..70,
        ) {
            let samples: Vec<Sample> = lengths.into_iter().map(sample).collect();
            // In another order than theirs, and not all of them.
            let share: Vec<usize> = (0..samples.len()).rev().step_by(2).collect();
            let packed = room(size).pack(&samples, &share);
            prop_assert!(packed.len() <= share.len().div_ceil(size));
            // Another rank may need more passes.
            let count = (packed.len() + more).min(share.len());
            let spread = room(size).spread(&samples, &share, count);
            prop_assert_eq!(spread.len(), count);
            for passes in [packed, spread] {
                prop_assert_eq!(&passes.concat(), &share);
                for pass in passes {
                    prop_assert!(pass.iter().map(|&place| samples[place].length()).sum::<usize>() <= size * 10);
                    prop_assert!(pass.iter().map(|&place| samples[place].response.len()).sum::<usize>() <= size * 4);
                }
            }
        }
    }
}
