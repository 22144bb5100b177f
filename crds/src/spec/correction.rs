//! `spec.algorithm.rolloutCorrection`: what samples weigh that another policy drew than the one that learns.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a token weighs in the policy's loss for how much likelier the actor's policy before the step was to draw it than the engine's was: a
/// ratio, exp(old log-prob - engine log-prob), between two bounds.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RolloutCorrection {
    /// Whose ratio the bounds are for: `token` (its own, which it weighs), `sequence` (its whole response's, the product of its tokens', which
    /// all of them weigh) or `geometric` (the geometric mean of its response's tokens', with `outside: mask` alone: the responses within the
    /// bounds are learnt from, and each of their tokens weighs its own ratio, however great). For rloo under trl, which takes a response as one
    /// action, `token` is what `sequence` is. Default token. OpenRLHF `algo.advantage.is_correction_level` (whose seq is geometric), verl
    /// `algorithm.rollout_correction.rollout_is`, TRL `vllm_importance_sampling_mode`.
    #[serde(default)]
    pub level: CorrectionLevel,
    /// What becomes of a ratio outside the bounds: `truncate` (it counts as the bound that it is beyond) or `mask` (it counts as 0: the token or
    /// the response is not learnt from, but stays in what the loss is divided by). Default truncate. OpenRLHF
    /// `algo.advantage.is_correction_mode` (clip, mask), TRL `vllm_importance_sampling_mode`.
    #[serde(default)]
    pub outside: Outside,
    /// The lower bound, below `high`. 0 to 1000. Default 0: none. TRL `vllm_importance_sampling_clip_min`; the first number of OpenRLHF's
    /// `algo.advantage.is_correction_threshold` and of verl's `rollout_is_threshold`.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub low: f64,
    /// The upper bound, above `low`. 0 to 1000. Default 2. TRL `vllm_importance_sampling_clip_max` (3 there); the second number of OpenRLHF's
    /// `algo.advantage.is_correction_threshold` (5 there) and of verl's `rollout_is_threshold`.
    #[serde(default = "default_high")]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub high: f64,
}

impl RolloutCorrection {
    /// Truncated importance sampling: a token's ratio, at most this.
    pub fn truncated(cap: f64) -> Self {
        Self {
            high: cap,
            ..Self::default()
        }
    }
}

impl Default for RolloutCorrection {
    fn default() -> Self {
        Self {
            level: CorrectionLevel::default(),
            outside: Outside::default(),
            low: 0.0,
            high: default_high(),
        }
    }
}

fn default_high() -> f64 {
    2.0
}

/// Whose ratio the bounds are for.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, Hash, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CorrectionLevel {
    /// A token's own.
    #[default]
    Token,
    /// The product of a response's tokens' ratios.
    Sequence,
    /// The geometric mean of a response's tokens' ratios.
    Geometric,
}

/// What becomes of a ratio outside the bounds.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, Hash, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Outside {
    /// It counts as the bound.
    #[default]
    Truncate,
    /// It counts as 0.
    Mask,
}
