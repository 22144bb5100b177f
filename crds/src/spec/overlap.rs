//! `spec.overlap`: whether engines generate while the actor learns.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether the engines draw the next step's samples while the actor learns from this one's.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, Hash, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Overlap {
    /// Generation and training take turns: a step learns from samples of its own policy version.
    #[default]
    None,
    /// The engines draw the next step's samples while the actor learns: they are of the version before.
    OneStep,
}

impl Overlap {
    /// Its word in the manifest.
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::OneStep => "oneStep",
        }
    }

    /// The most policy versions that a sample may be behind the policy that learns from it.
    pub fn staleness(self) -> u64 {
        match self {
            Self::None => 0,
            Self::OneStep => 1,
        }
    }
}
