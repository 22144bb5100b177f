//! What a run goes on from besides tensors: a checkpoint says it, and rank 0 tells it to the others.

use std::path::PathBuf;

use ppo_crds::run_config::Evaluation;
use serde::{Deserialize, Serialize};

/// What a run needs to go on besides tensors.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Steps completed: the policy version of the weights beside it.
    pub step: u64,
    /// Draws of these steps. None: an earlier version made the checkpoint, which drew once a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draws: Option<u64>,
    /// KL coefficient the next step uses.
    pub kl_coefficient: f64,
    /// Updates of the actor's optimizer.
    pub actor_updates: u64,
    /// Updates of the critic's optimizer.
    pub critic_updates: u64,
    /// What "best" is judged by: the held-out score of these weights, where there are held-out prompts and this step was
    /// evaluated; where there are none, the mean score of the samples that these weights drew for a later step, from when it is known.
    pub quality: Option<f64>,
    /// Mean sequence KL of these weights to the reference, where `algorithm.kl.stopAbove` bounds it, from when the next step has measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<f64>,
    /// The run's configuration, to refuse a resume under another one.
    pub run_config: serde_json::Value,
    /// What the run reads beside it. None: an earlier version made the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<Inputs>,
}

/// Digests of what a configuration only names, and a run that goes on reads again; and when it began.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Inputs {
    /// Ids and labels of the prompts, in their order.
    pub prompts: String,
    /// The same of the held-out prompts. None: there are none, or an earlier version made the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out: Option<String>,
    /// The tokenizer that made those ids. None: an earlier version made the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
    /// The chat template. None: as of the tokenizer, or prompts are plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// What the chat template took for now, in seconds since 1970. None: it read the clock, since an earlier version made the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moment: Option<i64>,
    /// Ids that end a response, ascending. None: an earlier version made the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<Vec<u32>>,
    /// What the policy below its adapter computes with its weights. None: as of those weights, or an earlier version made the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_conventions: Option<String>,
    /// What the critic computes with its own. None: as of the policy's, or they are the policy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critic_conventions: Option<String>,
    /// The weights below the policy's adapter. None: all weights are trained, and in the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Those below the critic's, where they are not the policy's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critic: Option<String>,
    /// The reference. None: it is no model of its own, its pods have not said, or an earlier version made the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The reward model. None: as of the reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<String>,
}

impl Inputs {
    /// Whether answers to the held-out prompts of `own` can be compared with those of `others`. Where both digests are known these say which
    /// prompts they are, and not the path to them.
    pub fn ask_the_same(&self, own: &Evaluation, (others, inputs): (&Evaluation, &Self)) -> bool {
        match (&self.held_out, &inputs.held_out) {
            (Some(asked), Some(others_asked)) => {
                let there = Evaluation {
                    path: own.path.clone(),
                    ..others.clone()
                };
                asked == others_asked && own.asks_the_same(&there)
            }
            _ => own.asks_the_same(others),
        }
    }
}

/// A checkpoint whose files were all found intact.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub struct Verified {
    /// Its folder.
    pub folder: PathBuf,
    /// Its state.
    pub state: State,
}
