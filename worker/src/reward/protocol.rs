//! OpenRLHF's remote reward protocol (`openrlhf/utils/remote_rm_utils.py`, `openrlhf/cli/serve_rm.py`): one POST of JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What is asked: `{"query": [..], "prompts": [..], "labels": [.. | null]}`. Old trainers send `query` alone.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct ScoreRequest {
    /// Prompt and response in one text, special tokens kept.
    pub query: Vec<String>,
    /// The prompts alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompts: Option<Vec<String>>,
    /// What the responses are compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<Vec<Option<String>>>,
}

/// What is answered: `{"rewards": [f], "scores": [f], "extra_logs": {"name": [f]}}`. Old servers answer `rewards` alone.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct ScoreResponse {
    /// One number per query: what the trainer optimises.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewards: Option<Vec<Option<f64>>>,
    /// One number per query on the scale people read; `rewards` where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scores: Option<Vec<Option<f64>>>,
    /// Further numbers for the logs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_logs: BTreeMap<String, Value>,
}
