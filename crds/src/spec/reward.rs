//! `spec.roles.reward`: where scores come from. Several sources add up, each times its weight.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ModelSource, PodPlacement};

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewardSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<RewardModelSpec>,
    #[serde(default)]
    pub rules: Vec<RewardRule>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteRewardSpec>,
    /// Where the reward role's own pods run (unused with `remote` alone).
    #[serde(default)]
    pub placement: PodPlacement,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewardModelSpec {
    pub source: ModelSource,
    #[serde(default = "one")]
    pub weight: f64,
}

/// Exactly one of `exactMatch`, `numericMatch`, `regex`, `length`, `json`. Each scores between 0 and 1.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewardRule {
    #[serde(default = "one")]
    pub weight: f64,
    /// Regular expression applied to the response first; its first group (else the whole match) is what the rule reads.
    /// The last match counts. No match scores 0. Default: the whole response, trimmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extract: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact_match: Option<ExactMatch>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numeric_match: Option<NumericMatch>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex: Option<RegexRule>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<LengthRule>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json: Option<JsonRule>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExactMatch {
    #[serde(default)]
    pub ignore_case: bool,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NumericMatch {
    /// Largest absolute difference that still matches. Default 0.
    #[serde(default)]
    pub tolerance: f64,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RegexRule {
    pub pattern: String,
}

/// 1 inside [min, max] tokens, falling linearly to 0 over `slope` tokens outside.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LengthRule {
    #[serde(default)]
    pub min: u32,
    pub max: u32,
    #[serde(default)]
    pub slope: u32,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JsonRule {
    /// Keys that a JSON object must have.
    #[serde(default)]
    pub required_keys: Vec<String>,
}

/// OpenRLHF's remote reward protocol.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoteRewardSpec {
    pub urls: Vec<String>,
    #[serde(default = "one")]
    pub weight: f64,
    #[serde(default = "default_timeout")]
    pub timeout_seconds: u32,
    #[serde(default = "default_retries")]
    pub max_retries: u32,
    /// Calls in flight at once, over all URLs.
    #[serde(default = "default_concurrency")]
    pub max_concurrency: u32,
    /// Samples per call.
    #[serde(default = "default_batch")]
    pub batch_size: u32,
}

fn one() -> f64 {
    1.0
}
fn default_timeout() -> u32 {
    60
}
fn default_retries() -> u32 {
    5
}
fn default_concurrency() -> u32 {
    8
}
fn default_batch() -> u32 {
    64
}
