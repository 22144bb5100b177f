//! `spec.model`: which weights, in which precision.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelSpec {
    pub policy: ModelSource,
    /// Trunk of the critic; its value head starts at zero. Default: the policy's trunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critic: Option<ModelSource>,
    /// Weights of the reference. Default: the policy as it was at step 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<ModelSource>,
    #[serde(default)]
    pub dtype: DType,
    #[serde(default)]
    pub activation_checkpointing: bool,
}

/// Exactly one of `path`, `pvc`, `hub`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelSource {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc: Option<PvcPath>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubModel>,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PvcPath {
    pub claim_name: String,
    /// Path inside the volume. Default: its root.
    #[serde(default)]
    pub path: String,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HubModel {
    pub id: String,
    #[serde(default = "default_revision")]
    pub revision: String,
}

fn default_revision() -> String {
    "main".into()
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    Float32,
    #[default]
    Bfloat16,
}
