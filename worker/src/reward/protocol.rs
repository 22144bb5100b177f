//! OpenRLHF's remote reward protocol (`openrlhf/utils/remote_rm_utils.py`, `openrlhf/cli/serve_rm.py`): one POST of JSON.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::lists::{chats, labels, list, list_or_null};
use super::numbers::numbers;
use super::sample::ScoredSample;
use crate::data::Label;

/// What is asked: `{"query": [..], "prompts": [..], "labels": [.. | null]}`. Old trainers send `query` alone.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct ScoreRequest {
    /// Prompt and response in one text, special tokens kept.
    #[serde(deserialize_with = "list")]
    pub query: Vec<String>,
    /// The prompts alone.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "list_or_null")]
    pub prompts: Option<Vec<String>>,
    /// What the responses are compared with, as the rows of the data have it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "labels")]
    pub labels: Option<Vec<Option<Label>>>,
    /// Our addition, which other servers pass over: what a job's own trainer knows beyond the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyView>,
}

/// The queries as the policy has them, so that a reward model behind HTTP reads what one in the trainer's process would.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct PolicyView {
    /// [`Tokenizer::fingerprint`](crate::tokenizer::Tokenizer::fingerprint) of what made the ids.
    pub tokenizer: String,
    /// The prompts' token ids.
    #[serde(deserialize_with = "list")]
    pub prompt_ids: Vec<Vec<u32>>,
    /// The responses' token ids.
    #[serde(deserialize_with = "list")]
    pub response_ids: Vec<Vec<u32>>,
    /// The prompts without special tokens.
    #[serde(deserialize_with = "list")]
    pub visible_prompts: Vec<String>,
    /// The responses without special tokens.
    #[serde(deserialize_with = "list")]
    pub visible_responses: Vec<String>,
    /// The messages of the prompts that are chats; left out where none is.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "chats")]
    pub messages: Option<Vec<Option<Vec<Value>>>>,
    /// Seconds since 1970 at the moment that chat templates take for now; left out where that is the clock's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moment: Option<i64>,
    /// Whether the responses came to their ends. Where it is left out all did.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "list_or_null")]
    pub has_ended: Option<Vec<bool>>,
}

impl ScoreRequest {
    /// What any server of the protocol is asked about `samples`.
    pub fn of(samples: &[ScoredSample]) -> Self {
        let queries = samples
            .iter()
            .map(|sample| format!("{}{}", sample.prompt, sample.response));
        Self {
            query: queries.collect(),
            prompts: Some(samples.iter().map(|sample| sample.prompt.clone()).collect()),
            labels: Some(samples.iter().map(|sample| sample.label.clone()).collect()),
            policy: None,
        }
    }

    /// What a reward pod of the same job is asked: all that is known, but for labels. Those are for rules, and a pod has a model alone.
    pub fn of_job(samples: &[ScoredSample]) -> Self {
        let tokenizer = samples.first().and_then(|sample| sample.tokenizer.as_deref());
        let moment = samples.first().and_then(|sample| sample.moment);
        let policy = tokenizer.map(|tokenizer| PolicyView {
            tokenizer: tokenizer.to_owned(),
            prompt_ids: samples.iter().map(|sample| sample.prompt_ids.to_vec()).collect(),
            response_ids: samples.iter().map(|sample| sample.response_ids.clone()).collect(),
            visible_prompts: samples.iter().map(|sample| sample.visible_prompt.clone()).collect(),
            visible_responses: samples.iter().map(|sample| sample.visible_response.clone()).collect(),
            messages: messages(samples),
            moment: moment.map(Timestamp::as_second),
            has_ended: Some(samples.iter().map(|sample| sample.has_ended).collect()),
        });
        Self {
            labels: None,
            policy,
            ..Self::of(samples)
        }
    }
}

/// Of the samples; None where none has any.
fn messages(samples: &[ScoredSample]) -> Option<Vec<Option<Vec<Value>>>> {
    let messages = samples.iter().map(|sample| sample.messages.as_deref());
    let any = messages.clone().any(|messages| messages.is_some());
    any.then(|| messages.map(|messages| messages.map(<[Value]>::to_vec)).collect())
}

/// What is answered: `{"rewards": [f], "scores": [f], "extra_logs": {"name": [f]}}`, and ours. Old servers answer `rewards` alone.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct ScoreResponse {
    /// One number per query: what the trainer optimises.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "numbers")]
    pub rewards: Option<Vec<Option<f64>>>,
    /// One number per query on the scale people read; `rewards` where absent.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "numbers")]
    pub scores: Option<Vec<Option<f64>>>,
    /// Further numbers for the logs, `{"name": [f]}`. Servers that declare it as optional send null for none. Whatever else it may be: scores are
    /// read without it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub extra_logs: Value,
    /// Our addition: digest of the reward model, which a job's own trainer compares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_digest: Option<String>,
}
