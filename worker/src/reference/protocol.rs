//! What the trainer asks of the reference, and what it answers.

use serde::{Deserialize, Serialize};

/// Where it is asked.
pub const PATH: &str = "/v1/logprobs";

/// Sequences to compute together.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LogprobsRequest {
    /// At least one.
    pub sequences: Vec<Sequence>,
    /// Logits are divided by it.
    pub temperature: f64,
}

/// Prompt and response.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Sequence {
    /// Token ids of the prompt; at least one.
    pub prompt: Vec<u32>,
    /// Token ids of the response.
    pub response: Vec<u32>,
}

/// The answer.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct LogprobsResponse {
    /// The log-probability of each response token, by sequence.
    pub logprobs: Vec<Vec<f32>>,
    /// Of the model that they were computed with. None: the pod is of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}
