//! `spec.batch`: how many samples, in which pieces.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many prompts and samples make a step, and the pieces they are computed in. With `R = rolloutBatchSize`,
/// `n = nSamplesPerPrompt`: samples per step = R x n; updates per epoch = samples / trainBatchSize; accumulation =
/// trainBatchSize / (microTrainBatchSize x actor ranks), at the most. Each must be whole; `ppo-worker plan` writes them out.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BatchSpec {
    /// Prompts per step, over all engines; a multiple of `roles.rollout.replicas`. 1 to 1048576. Default 128. OpenRLHF
    /// `rollout.batch_size`, verl `data.train_batch_size`; TRL's `batch_size` counts samples.
    #[serde(default = "default_rollout")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub rollout_batch_size: u32,
    /// Samples of each prompt: the size of a group. rloo, grpo, drGrpo and reinforcePlusPlusBaseline compare the samples of a
    /// group and need more than 1. 1 to 1024. Default 1. OpenRLHF `rollout.n_samples_per_prompt`, verl
    /// `actor_rollout_ref.rollout.n`, TRL `num_generations`, in older RLOO `rloo_k`.
    #[serde(default = "default_n")]
    #[schemars(range(min = 1, max = 1024))]
    pub n_samples_per_prompt: u32,
    /// Samples per forward pass of one rank where nothing is learned: reference, old log-probs and values. The last two take more
    /// of them where they are shorter than they may be, as with `microTrainBatchSize`. Must divide
    /// the share of a step that a rank of the actor has. Changes memory and speed, not results. Default: the greatest such
    /// divisor up to 8. A reward model takes as many samples at once as come to 16384 tokens, whatever this says. OpenRLHF
    /// `rollout.micro_batch_size`, verl `log_prob_micro_batch_size_per_gpu`, TRL `local_rollout_forward_batch_size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_073_741_824))]
    pub micro_rollout_batch_size: Option<u32>,
    /// Samples per optimizer update, over all actor ranks. Must divide the samples of a step, and be a multiple of the actor's
    /// ranks. Default: a quarter of the step (4 updates per epoch), or the whole step where a quarter is not whole,
    /// or no multiple of the actor's ranks x `microTrainBatchSize`. OpenRLHF `train.batch_size`, verl
    /// `actor_rollout_ref.actor.ppo_mini_batch_size` (which counts prompts), TRL `per_device_train_batch_size` x
    /// `gradient_accumulation_steps` x processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_073_741_824))]
    pub train_batch_size: Option<u32>,
    /// Samples per forward and backward pass of one actor rank; gradients accumulate until `trainBatchSize` is reached. It stands for memory, that
    /// of so many samples of `prompts.maxLength` and `generation.maxNewTokens`: of shorter ones a pass takes more, up to as many tokens, and as
    /// many of responses (what verl's `use_dynamic_bsz` and OpenRLHF's `train.dynamic_batch_enable` do by a number of tokens). Changes
    /// memory and speed, not results, but for gae under trl (see `algorithm.aggregation`), where it is just this number. Default: the greatest
    /// divisor of the rank's share up to 8. OpenRLHF `train.micro_batch_size`, verl `ppo_micro_batch_size_per_gpu`, TRL
    /// `per_device_train_batch_size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_073_741_824))]
    pub micro_train_batch_size: Option<u32>,
    /// Passes over a step's samples. 1 to 1000. Default 1. OpenRLHF `train.max_epochs`, verl
    /// `actor_rollout_ref.actor.ppo_epochs`, TRL `num_ppo_epochs` (4 there).
    #[serde(default = "default_epochs")]
    #[schemars(range(min = 1, max = 1000))]
    pub ppo_epochs: u32,
    /// Learn from groups only whose samples differ in score: the others teach a group estimator nothing. A step draws `rolloutBatchSize`
    /// prompts after the other until as many of their groups differ, and leaves the rest out. For rloo, grpo, drGrpo and
    /// reinforcePlusPlusBaseline. With `overlap: oneStep` the first draw of a step is made ahead, and further ones with the newest weights.
    /// Of a remote reward that gives `rewards` and `scores` it compares the `scores`, as OpenRLHF does.
    /// Default: none, every group is learnt from. DAPO (arXiv 2503.14476, section 3.2), OpenRLHF `algo.dynamic_filtering_enable`, verl's DAPO
    /// recipe `algorithm.filter_groups`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_sampling: Option<DynamicSampling>,
}

/// How a step draws until enough of its groups differ in score.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DynamicSampling {
    /// How many times a step may draw `rolloutBatchSize` prompts at the most. What is still missing then are groups of equal scores, those
    /// drawn first: a policy that has learnt its prompts goes on, and its last steps change little. 2 to 1000. Default 10. verl's DAPO recipe
    /// `algorithm.filter_groups.max_num_gen_batches`, which ends the run there instead.
    #[serde(default = "default_draws")]
    #[schemars(range(min = DynamicSampling::LEAST, max = DynamicSampling::MOST))]
    pub max_draws: u32,
}

impl DynamicSampling {
    /// The least that `maxDraws` may be.
    pub const LEAST: u32 = 2;
    /// The most that `maxDraws` may be.
    pub const MOST: u32 = 1000;
}

impl Default for BatchSpec {
    fn default() -> Self {
        Self {
            rollout_batch_size: default_rollout(),
            n_samples_per_prompt: default_n(),
            micro_rollout_batch_size: None,
            train_batch_size: None,
            micro_train_batch_size: None,
            ppo_epochs: default_epochs(),
            dynamic_sampling: None,
        }
    }
}

fn default_rollout() -> u32 {
    128
}
fn default_n() -> u32 {
    1
}
fn default_epochs() -> u32 {
    1
}
fn default_draws() -> u32 {
    10
}
