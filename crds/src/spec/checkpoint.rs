//! `spec.checkpoint`, `spec.telemetry`: what a run leaves behind.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CheckpointSpec {
    /// Folder. Default: `checkpoints` below the run's folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvc: Option<String>,
    /// 0 saves only at the end and on SIGTERM.
    pub every_steps: u64,
    /// Newest checkpoints kept.
    pub keep: u32,
    /// Keep the best one too: by held-out score where `evaluation` is set, else by mean score.
    pub keep_best: bool,
}

impl Default for CheckpointSpec {
    fn default() -> Self {
        Self {
            path: None,
            pvc: None,
            every_steps: 20,
            keep: 3,
            keep_best: true,
        }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TelemetrySpec {
    /// Decoded samples are written every so many steps. 0: never.
    pub samples_every_steps: u64,
    /// Samples written each time.
    pub samples: u32,
    pub tensorboard: bool,
}

impl Default for TelemetrySpec {
    fn default() -> Self {
        Self {
            samples_every_steps: 10,
            samples: 8,
            tensorboard: true,
        }
    }
}
