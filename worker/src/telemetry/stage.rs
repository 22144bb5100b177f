//! The stages of a step, as they are timed.

use serde::{Deserialize, Serialize};

use ppo_crds::spec::Profile;

/// A part of a step.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The rollout engines draw responses; with `overlap: oneStep` only the time that is waited for them.
    Generate,
    /// The reward role scores them.
    Score,
    /// The reference's log-probabilities.
    Reference,
    /// The actor's log-probabilities before the updates.
    OldLogprobs,
    /// The critic's values.
    Values,
    /// Scores and KL become token rewards.
    Shape,
    /// Rewards and values become advantages.
    Advantage,
    /// Optimizer updates of the actor.
    UpdateActor,
    /// Optimizer updates of the critic.
    UpdateCritic,
    /// New weights travel to the rollout engines.
    Publish,
    /// A checkpoint is written.
    Checkpoint,
    /// Held-out prompts are answered and scored.
    Evaluate,
}

impl Stage {
    /// Every stage, in the order of a step.
    pub const ALL: [Stage; 12] = [
        Stage::Generate,
        Stage::Score,
        Stage::Reference,
        Stage::OldLogprobs,
        Stage::Values,
        Stage::Shape,
        Stage::Advantage,
        Stage::UpdateActor,
        Stage::UpdateCritic,
        Stage::Publish,
        Stage::Checkpoint,
        Stage::Evaluate,
    ];

    /// The stage of a step, counted from 1, as messages name it.
    pub fn of_step(self, step: u64) -> String {
        format!("{} of step {step}", self.name())
    }

    /// The label in `ppo_stage_seconds` and the key in metrics.jsonl.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Generate => "generate",
            Stage::Score => "score",
            Stage::Reference => "reference",
            Stage::OldLogprobs => "old_logprobs",
            Stage::Values => "values",
            Stage::Shape => "shape",
            Stage::Advantage => "advantage",
            Stage::UpdateActor => "update_actor",
            Stage::UpdateCritic => "update_critic",
            Stage::Publish => "publish",
            Stage::Checkpoint => "checkpoint",
            Stage::Evaluate => "evaluate",
        }
    }

    /// The stage of that name, if there is one.
    pub fn from_name(name: &str) -> Option<Stage> {
        Stage::ALL.into_iter().find(|stage| stage.name() == name)
    }

    /// Whether it comes between two steps: it takes none of the wall-clock time of a step, though a step's report tells of it.
    pub fn is_between_steps(self) -> bool {
        matches!(self, Stage::Checkpoint | Stage::Evaluate)
    }

    /// The tag this duration has in TensorBoard under the framework that `profile` reproduces.
    pub fn alias(self, profile: Profile) -> Option<&'static str> {
        match (profile, self) {
            (Profile::Verl, Stage::Generate) => Some("timing_s/gen"),
            (Profile::Verl, Stage::Score) => Some("timing_s/reward"),
            (Profile::Verl, Stage::Reference) => Some("timing_s/ref"),
            (Profile::Verl, Stage::OldLogprobs) => Some("timing_s/old_log_prob"),
            (Profile::Verl, Stage::Values) => Some("timing_s/values"),
            (Profile::Verl, Stage::Advantage) => Some("timing_s/adv"),
            (Profile::Verl, Stage::UpdateActor) => Some("timing_s/update_actor"),
            (Profile::Verl, Stage::UpdateCritic) => Some("timing_s/update_critic"),
            (Profile::Verl, Stage::Publish) => Some("timing_s/update_weights"),
            (Profile::Verl, Stage::Checkpoint) => Some("timing_s/save_checkpoint"),
            (Profile::Verl, Stage::Evaluate) => Some("timing_s/testing"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_has_one_name_in_json_and_in_labels() {
        for stage in Stage::ALL {
            assert_eq!(serde_json::to_value(stage).unwrap(), stage.name());
            assert_eq!(Stage::from_name(stage.name()), Some(stage));
        }
    }
}
