//! What runs: a [`PpoJob`](crate::PpoJob) with every default filled in and every rule checked. The pods receive it as JSON,
//! `ppo-worker run -f job.yaml` builds it in place; nothing downstream reads the raw spec.

mod algorithm;
mod data_paths;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::spec::{
    AdapterSpec, Aggregation, DType, Deviation, Engine, Estimator, GenerationSpec, KlEstimator, KlPlacement,
    OptimizerSpec, Overlap, Profile, Ratio, RemoteRewardSpec, RewardRule, Role, RolloutCorrection, Surrogate,
    TelemetrySpec,
};

pub use data_paths::DataPaths;

/// A validated run. Paths are those of the machine or pod that runs it.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunConfig {
    /// `metadata.name` of the job.
    pub name: String,
    /// Seed of everything random.
    pub seed: u64,
    /// How long the run is.
    pub length: RunLength,
    /// Weights and precision.
    pub model: Model,
    /// Training prompts.
    pub prompts: Prompts,
    /// Held-out prompts. None: no evaluation.
    pub evaluation: Option<Evaluation>,
    /// How responses are sampled.
    pub generation: GenerationSpec,
    /// The PPO maths.
    pub algorithm: Algorithm,
    /// Batch arithmetic.
    pub batch: Batch,
    /// AdamW and its schedule.
    pub optimizer: OptimizerSpec,
    /// Whether engines generate while the actor learns.
    #[serde(default)]
    pub overlap: Overlap,
    /// The engines.
    pub rollout: Rollout,
    /// Where scores come from.
    pub reward: Reward,
    /// When and where state is saved.
    pub checkpoint: Checkpoint,
    /// What is written for people to look at.
    pub telemetry: TelemetrySpec,
}

impl RunConfig {
    /// Whether the reference is the policy without its adapter, which is wherever the policy is.
    pub fn reference_is_base(&self) -> bool {
        self.model.adapter.is_some() && self.algorithm.kl.coef != 0.0
    }

    /// Number format of what a role computes.
    pub fn dtype(&self, role: Role) -> DType {
        let own = match role {
            Role::Actor => None,
            Role::Rollout => self.rollout.dtype,
            Role::Reference => self.model.reference_dtype,
            Role::Reward => self.reward.model.as_ref().and_then(|model| model.dtype),
        };
        own.unwrap_or(self.model.dtype)
    }

    /// Tokens of the longest sequence that the manifest allows, prompt and response.
    pub fn longest_sequence(&self) -> usize {
        self.prompts
            .max_length
            .saturating_add(self.generation.max_new_tokens as usize)
    }

    /// Whether the step after `step` updates the policy, and not the critic alone.
    pub fn policy_learns(&self, step: u64) -> bool {
        step >= self.optimizer.critic_warmup_steps
    }

    /// Whether the forward pass that gives old log-probabilities of the first update's samples is kept, with its graph, for that update:
    /// where the share of an update of each of `ranks` is one micro-batch, unless memory is to be saved.
    pub fn keeps_first_pass(&self, ranks: u64) -> bool {
        let micro_batches = (self.batch.micro_train_batch_size as u64).saturating_mul(ranks);
        !self.model.activation_checkpointing && self.batch.train_batch_size as u64 <= micro_batches
    }
}

/// How long a run is.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum RunLength {
    /// Passes over the prompts.
    Episodes(u32),
    /// Steps, however many passes they take.
    Steps(u64),
}

/// Where a model lies: on a disk the process sees, or on the hub.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Location {
    /// Folder on a disk.
    Path(PathBuf),
    /// A model of the Hugging Face hub.
    Hub {
        /// Owner and name.
        id: String,
        /// Branch, tag or commit.
        revision: String,
    },
}

/// Weights and precision.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Model {
    /// The policy to train.
    pub policy: Location,
    /// None: no critic (every estimator but gae).
    pub critic: Option<Location>,
    /// None: no reference model, because the KL coefficient is 0 or the reference is the [adapter](Self::adapter)'s base.
    pub reference: Option<Location>,
    /// Train this adapter and nothing else. None: all weights. Absent without one, so that checkpoints of earlier versions go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<AdapterSpec>,
    /// Number format of weights and activations, of the actor and of every role without one of its own.
    pub dtype: DType,
    /// The reference's. None: [`dtype`](Self::dtype), and absent then, so that checkpoints of earlier versions go on, and their images read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_dtype: Option<DType>,
    /// Compute activations again in the backward pass.
    pub activation_checkpointing: bool,
}

/// The training prompts.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Prompts {
    /// Where they lie.
    pub path: DataPaths,
    /// Column or key of the prompt.
    pub prompt_field: String,
    /// Column or key of the label. None: no label.
    pub label_field: Option<String>,
    /// Render prompts through the model's chat template.
    pub chat_template: bool,
    /// For the template. Absent without any, so that checkpoints of earlier versions go on.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub chat_template_variables: Map<String, Value>,
    /// Longest prompt, in tokens.
    pub max_length: usize,
    /// Shuffle in each episode, by the seed.
    pub shuffle: bool,
}

/// Held-out prompts, read with the fields of [`Prompts`].
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Evaluation {
    /// Where they lie.
    pub path: DataPaths,
    /// Steps between two of them.
    pub every_steps: u64,
    /// Only the first so many prompts. None: all.
    pub max_prompts: Option<usize>,
    /// 0 is greedy.
    pub temperature: f64,
    /// Samples of each prompt. Absent where it is 1, so that images of earlier versions read it.
    #[serde(default = "one_sample", skip_serializing_if = "is_one_sample")]
    pub n_samples_per_prompt: usize,
    /// Score from which a sample counts as passed.
    pub pass_score: f64,
    /// Where a row names its test set. Absent where it is None, as the count above is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_field: Option<String>,
}

fn one_sample() -> usize {
    1
}

fn is_one_sample(count: &usize) -> bool {
    *count == 1
}

impl Evaluation {
    /// Whether its results can be compared with those of `other`: how often it is asked changes no answer, and neither do the sets that
    /// figures are made of.
    pub fn asks_the_same(&self, other: &Self) -> bool {
        let as_often = Self {
            every_steps: self.every_steps,
            set_field: self.set_field.clone(),
            ..other.clone()
        };
        *self == as_often
    }
}

/// The PPO maths with the profile's conventions applied.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Algorithm {
    /// Selects the conventions that have no field of their own.
    pub profile: Profile,
    /// How rewards become advantages.
    pub estimator: Estimator,
    /// Discount per token.
    pub gamma: f64,
    /// GAE's lambda.
    pub lambda: f64,
    /// Whiten advantages over the step.
    pub whiten: bool,
    /// Whose deviation grpo divides by. Absent where it is the group's, so that images of earlier versions read it.
    #[serde(default, skip_serializing_if = "Deviation::is_of_group")]
    pub deviation: Deviation,
    /// KL penalty.
    pub kl: Kl,
    /// Clipping of policy and value.
    pub clip: Clip,
    /// Whose ratio is clipped.
    #[serde(default)]
    pub ratio: Ratio,
    /// What the loss takes of it. Absent where it is the clipped ratio, so that images of earlier versions read it.
    #[serde(default, skip_serializing_if = "Surrogate::is_clipped")]
    pub surrogate: Surrogate,
    /// Treatment of scores.
    pub score: Score,
    /// Weight of the value loss.
    pub value_coef: f64,
    /// Weight of the entropy bonus.
    pub entropy_coef: f64,
    /// How token losses become one number.
    pub aggregation: Aggregation,
    /// Leave responses that did not finish out of the losses.
    #[serde(default)]
    pub mask_truncated: bool,
    /// Cap on the ratio of the actor's policy to the engine's. None: off.
    pub truncated_importance_sampling: Option<f64>,
    /// The correction with bounds of its own, in place of that cap. Absent where it is None, so that images of earlier versions read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout_correction: Option<RolloutCorrection>,
}

impl Algorithm {
    /// What samples weigh for the policy that drew them, however it was written. None: all weigh the same.
    pub fn correction(&self) -> Option<RolloutCorrection> {
        let truncated = self.truncated_importance_sampling.map(RolloutCorrection::truncated);
        self.rollout_correction.or(truncated)
    }

    /// Whether a token mean is that of TRL's PPOTrainer: the mean over an update's micro-batches of their own token means, so that their size
    /// matters.
    pub fn means_micro_batches(&self) -> bool {
        self.profile == Profile::Trl && self.estimator == Estimator::Gae
    }
}

/// The KL penalty.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Kl {
    /// 0: no reference, no KL.
    pub coef: f64,
    /// Per-token estimate.
    pub estimator: KlEstimator,
    /// In the reward or in the loss.
    pub placement: KlPlacement,
    /// Whether the coefficient moves.
    pub controller: KlController,
    /// Bound on the absolute per-token estimate. None: unclamped.
    pub clamp: Option<f64>,
    /// Mean sequence KL at which the run stops as diverged. None: no limit.
    pub stop_above: Option<f64>,
}

/// Whether the KL coefficient moves.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum KlController {
    /// The coefficient stays.
    Fixed,
    /// The coefficient follows a target.
    Adaptive {
        /// Mean sequence KL to hold.
        target: f64,
        /// Samples over which it adapts.
        horizon: f64,
    },
}

/// Clipping of policy and value.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Clip {
    /// The ratio is clipped at 1 - this.
    pub policy_low: f64,
    /// The ratio is clipped at 1 + this.
    pub policy_high: f64,
    /// Dual clip's c, above 1. None: off.
    pub dual: Option<f64>,
    /// Range of the clipped value. None: off.
    pub value: Option<f64>,
}

/// What happens to a score before it becomes a reward.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Score {
    /// (least, greatest)
    pub clip: Option<(f64, f64)>,
    /// Factor on the score.
    pub scale: f64,
    /// Subtracted when a response did not finish. None: nothing.
    pub missing_eos_penalty: Option<f64>,
    /// Whiten token rewards, mean kept.
    pub whiten_rewards: bool,
}

/// Batch arithmetic with every quotient exact.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Batch {
    /// Prompts per step.
    pub rollout_batch_size: usize,
    /// Samples of a group.
    pub n_samples_per_prompt: usize,
    /// Samples per forward pass of one rank.
    pub micro_rollout_batch_size: usize,
    /// Samples per update, over all ranks.
    pub train_batch_size: usize,
    /// Samples per forward and backward pass of one rank.
    pub micro_train_batch_size: usize,
    /// Passes over a step's samples.
    pub ppo_epochs: usize,
    /// Draws that a step may take until enough groups differ in score. None: one, and every group is learnt from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_draws: Option<u64>,
}

impl Batch {
    /// Samples of one step.
    pub fn samples_per_step(&self) -> usize {
        self.rollout_batch_size * self.n_samples_per_prompt
    }

    /// Optimizer updates in one pass over a step's samples.
    pub fn updates_per_epoch(&self) -> usize {
        self.samples_per_step() / self.train_batch_size
    }
}

/// The rollout engines.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rollout {
    /// What generates.
    pub engine: Engine,
    /// Engines.
    pub replicas: usize,
    /// Engines without which the run stops.
    pub min_replicas: usize,
    /// Tokens per cache block.
    pub block_size: usize,
    /// Tokens computed at once.
    pub max_batch_tokens: usize,
    /// Sequences that run at once.
    pub max_sequences: usize,
    /// Memory of the cache in MiB. None: as much as `max_sequences` need.
    pub kv_cache_mebibytes: Option<u64>,
    /// Number format of what an engine computes. None, and absent: [the actor's](Model::dtype).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<DType>,
}

/// Sources of the score; their weighted sum is the score.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reward {
    /// A reward model. None: no model.
    pub model: Option<RewardModel>,
    /// Checks of the response's text.
    pub rules: Vec<RewardRule>,
    /// Remote servers. None: none.
    pub remote: Option<RemoteRewardSpec>,
}

/// A reward model.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewardModel {
    /// The weights.
    pub source: Location,
    /// Factor on its score.
    pub weight: f64,
    /// Number format of what it computes. None, and absent: [the actor's](Model::dtype).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<DType>,
}

/// When and where state is saved.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Checkpoint {
    /// None: `checkpoints` below the run's folder.
    pub path: Option<PathBuf>,
    /// Steps between two of them; 0 (checkpoints only): at the end only.
    pub every_steps: u64,
    /// Newest ones kept.
    pub keep: usize,
    /// Keep the best one too.
    pub keep_best: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn evaluation(samples: Option<usize>) -> Evaluation {
        let mut written = json!({
            "path": "/e.jsonl", "everySteps": 2, "maxPrompts": null, "temperature": 0.5, "passScore": 1.0,
        });
        if let Some(samples) = samples {
            written["nSamplesPerPrompt"] = samples.into();
        }
        serde_json::from_value(written).unwrap()
    }

    #[test]
    fn one_sample_of_a_held_out_prompt_is_written_as_it_was_before_there_could_be_more() {
        let written = |samples| serde_json::to_value(evaluation(samples)).unwrap();
        assert_eq!(evaluation(None).n_samples_per_prompt, 1);
        assert_eq!(written(Some(1)).get("nSamplesPerPrompt"), None);
        assert_eq!(written(Some(4))["nSamplesPerPrompt"], 4);
    }

    #[test]
    fn an_evaluation_without_test_sets_is_written_as_it_was_before_there_could_be_any() {
        let mut evaluation = evaluation(None);
        assert_eq!(evaluation.set_field, None);
        assert_eq!(serde_json::to_value(&evaluation).unwrap().get("setField"), None);
        evaluation.set_field = Some("data_source".into());
        assert_eq!(serde_json::to_value(&evaluation).unwrap()["setField"], "data_source");
    }

    #[test]
    fn the_clipped_ratio_is_written_as_it_was_before_there_was_another_surrogate() {
        let written = |surrogate| {
            let algorithm = crate::defaults::algorithm_by(Profile::Default, Estimator::Gae, Ratio::Token, surrogate);
            serde_json::to_value(&algorithm).unwrap()
        };
        let clipped = written(Surrogate::Clipped);
        assert_eq!(clipped.get("surrogate"), None);
        assert!(
            serde_json::from_value::<Algorithm>(clipped)
                .unwrap()
                .surrogate
                .is_clipped()
        );
        assert_eq!(written(Surrogate::Cispo)["surrogate"], "cispo");
    }

    #[test]
    fn the_questions_are_the_same_whichever_sets_they_are_counted_in() {
        let plain = evaluation(None);
        let by_set = Evaluation {
            set_field: Some("data_source".into()),
            ..plain.clone()
        };
        assert!(plain.asks_the_same(&by_set) && by_set.asks_the_same(&plain));
    }

    #[test]
    fn another_number_of_samples_is_another_question_and_how_often_it_is_asked_is_not() {
        let four = evaluation(Some(4));
        assert!(!four.asks_the_same(&evaluation(None)));
        let rarer = Evaluation {
            every_steps: 7,
            ..four.clone()
        };
        assert!(four.asks_the_same(&rarer));
    }
}
