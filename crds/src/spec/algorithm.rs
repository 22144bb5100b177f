//! `spec.algorithm`: the PPO maths. A field without a value takes the profile's.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AlgorithmSpec {
    #[serde(default)]
    pub profile: Profile,
    #[serde(default)]
    pub advantage: AdvantageSpec,
    #[serde(default)]
    pub kl: KlSpec,
    #[serde(default)]
    pub clip: ClipSpec,
    #[serde(default)]
    pub score: ScoreSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_coef: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entropy_coef: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregation: Option<Aggregation>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated_importance_sampling: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, Hash, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    #[default]
    Default,
    Openrlhf,
    Verl,
    Trl,
    Alpacafarm,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdvantageSpec {
    #[serde(default)]
    pub estimator: Estimator,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gamma: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lambda: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whiten: Option<bool>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, Hash, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Estimator {
    #[default]
    Gae,
    Rloo,
    Grpo,
    DrGrpo,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KlSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coef: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimator: Option<KlEstimator>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<KlPlacement>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<KlControllerSpec>,
    /// Bound on the absolute per-token estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clamp: Option<f64>,
    /// The run stops with reason Diverged when a step's mean sequence KL is above this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_above: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, Hash, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum KlEstimator {
    #[default]
    K1,
    K2,
    K3,
    Abs,
    OneSided,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, Hash, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum KlPlacement {
    #[default]
    Reward,
    Loss,
}

/// Exactly one of `fixed`, `adaptive`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KlControllerSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<FixedKl>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<AdaptiveKl>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FixedKl {}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdaptiveKl {
    pub target: f64,
    pub horizon: f64,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClipSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_low: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_high: Option<f64>,
    /// Dual clip's c, above 1. 0 switches it off where the profile has it on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dual: Option<f64>,
    /// 0 switches value clipping off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScoreSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<ScoreRange>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f64>,
    /// Subtracted from the score of a response that did not finish by EOS or stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_eos_penalty: Option<f64>,
    /// Whiten the shaped rewards, mean kept, before advantages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whiten_rewards: Option<bool>,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScoreRange {
    pub min: f64,
    pub max: f64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, Hash, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Aggregation {
    #[default]
    TokenMean,
    SequenceMeanTokenMean,
    SequenceMeanTokenSum,
    /// Sequence mean of token sums over the longest response allowed (Dr. GRPO).
    SequenceMeanTokenSumNorm,
    TokenSum,
    /// Mean over batch x time, padding included (AlpacaFarm).
    PaddedMean,
}
