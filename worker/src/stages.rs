//! The types between the steps of the trainer's line. Each stage consumes the one before, so the compiler checks their
//! order and large tensors are freed as soon as nothing needs them.
//!
//! B samples of a step, T tokens of its longest response; every tensor is float32 [B, T], zero where the mask is.

use std::collections::BTreeMap;

use tch::Tensor;

use crate::data::Prompt;
use crate::engine::request::FinishReason;
use crate::ppo::advantage::Advantages;
use crate::ppo::shape::Shaped as ShapedRewards;

/// One response and where it came from.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The prompt; samples of one group share it.
    pub prompt: Prompt,
    /// Samples of one prompt in one step have the same group.
    pub group: i64,
    /// Token ids of the response, the stop token included.
    pub response: Vec<u32>,
    /// The engine's log-probability of each response token.
    pub rollout_logprobs: Vec<f32>,
    /// The policy version that drew each response token; empty where no engine did.
    pub versions: Vec<u64>,
    /// Why the response ended.
    pub finish_reason: FinishReason,
}

impl Sample {
    /// Prompt and response as one sequence.
    pub fn tokens(&self) -> Vec<u32> {
        [&self.prompt.ids[..], &self.response[..]].concat()
    }

    /// Tokens of prompt and response.
    pub fn length(&self) -> usize {
        self.prompt.ids.len() + self.response.len()
    }

    /// Whether the response ended by EOS or a stop, not by its length.
    pub fn finished(&self) -> bool {
        self.finish_reason == FinishReason::Stop
    }
}

/// What the engines generated.
#[derive(Debug)]
pub struct Rollouts {
    /// In the order of the step's prompts, the samples of a group together.
    pub samples: Vec<Sample>,
}

/// Samples and what the reward says of them; N of them.
#[derive(Debug, Default)]
pub struct Judged {
    /// The samples of a group together.
    pub samples: Vec<Sample>,
    /// Score of each sample, [N].
    pub scores: Vec<f32>,
    /// What dynamic sampling compares of each, [N]: see [`Scores`](crate::reward::Scores).
    pub compared: Vec<f32>,
    /// Extra numbers the reward sources gave, by name, each [N].
    pub extra: BTreeMap<String, Vec<f32>>,
}

/// What a step drew.
#[derive(Debug)]
pub struct Drawn {
    /// What it learns from: B samples.
    pub chosen: Judged,
    /// The other groups; none without dynamic sampling.
    pub left_out: Judged,
    /// How many times it drew.
    pub draws: u64,
}

impl Drawn {
    /// One draw, all of which is learnt from.
    pub fn of(chosen: Judged) -> Self {
        Self {
            chosen,
            left_out: Judged::default(),
            draws: 1,
        }
    }

    /// The oldest policy version that drew any of the samples, and the mean score of those that it drew.
    pub fn oldest_version(&self) -> Option<(u64, f64)> {
        let judged = || [&self.chosen, &self.left_out].into_iter();
        let samples = judged().flat_map(|it| &it.samples);
        let oldest = samples.flat_map(|sample| &sample.versions).copied().min()?;
        let scored = judged().flat_map(|it| it.samples.iter().zip(&it.scores));
        let own = scored.filter(|(sample, _)| sample.versions.iter().all(|version| *version == oldest));
        let scores: Vec<f64> = own.map(|(_, score)| f64::from(*score)).collect();
        (!scores.is_empty()).then(|| (oldest, scores.iter().sum::<f64>() / scores.len() as f64))
    }
}

/// What every role says of the samples.
#[derive(Debug)]
pub struct Scored {
    /// The samples and their scores, and those left out.
    pub drawn: Drawn,
    /// 1 on response tokens.
    pub mask: Tensor,
    /// The actor's log-probabilities before the step's updates.
    pub old_logprobs: Tensor,
    /// The engine's log-probabilities, under the version that drew each token.
    pub rollout_logprobs: Tensor,
    /// The reference's log-probabilities; None without a reference.
    pub reference_logprobs: Option<Tensor>,
    /// The critic's values; None without a critic.
    pub values: Option<Tensor>,
}

impl Scored {
    /// The samples.
    pub fn samples(&self) -> &[Sample] {
        &self.drawn.chosen.samples
    }
}

/// Scores and KL turned into per-token rewards.
#[derive(Debug)]
pub struct Shaped {
    /// The stage before.
    pub scored: Scored,
    /// Rewards and KL per token.
    pub shaped: ShapedRewards,
}

/// Everything the update reads.
#[derive(Debug)]
pub struct Batch {
    /// The stage before.
    pub scored: Scored,
    /// Rewards and KL per token, for the metrics and samples.
    pub shaped: ShapedRewards,
    /// Advantages and returns.
    pub advantages: Advantages,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(samples: &[(&[u64], f32)]) -> Judged {
        let sample = |versions: &[u64]| Sample {
            prompt: Prompt::default(),
            group: 0,
            response: vec![0; versions.len()],
            rollout_logprobs: vec![0.0; versions.len()],
            versions: versions.to_vec(),
            finish_reason: FinishReason::Stop,
        };
        Judged {
            samples: samples.iter().map(|(versions, _)| sample(versions)).collect(),
            scores: samples.iter().map(|(_, score)| *score).collect(),
            ..Judged::default()
        }
    }

    #[test]
    fn a_version_is_judged_by_what_it_drew_and_not_by_what_the_next_one_drew_on() {
        let drawn = Drawn {
            chosen: judged(&[(&[4, 4], 1.0), (&[5], 0.0)]),
            left_out: judged(&[(&[4], 0.5), (&[5, 5], 9.0)]),
            draws: 2,
        };
        assert_eq!(drawn.oldest_version(), Some((4, 0.75)));
        assert_eq!(Drawn::of(judged(&[(&[], 1.0)])).oldest_version(), None);
    }
}
