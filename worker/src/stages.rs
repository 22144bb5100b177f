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
