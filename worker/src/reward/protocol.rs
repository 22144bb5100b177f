//! OpenRLHF's remote reward protocol (`openrlhf/utils/remote_rm_utils.py`, `openrlhf/cli/serve_rm.py`): one POST of JSON.

use std::collections::BTreeMap;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::sample::ScoredSample;
use crate::data::text_of_label;

/// What is asked: `{"query": [..], "prompts": [..], "labels": [.. | null]}`. Old trainers send `query` alone.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct ScoreRequest {
    /// Prompt and response in one text, special tokens kept.
    pub query: Vec<String>,
    /// The prompts alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompts: Option<Vec<String>>,
    /// What the responses are compared with; numbers and truths are taken as the text that a data file's are.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "labels")]
    pub labels: Option<Vec<Option<String>>>,
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
    pub prompt_ids: Vec<Vec<u32>>,
    /// The responses' token ids.
    pub response_ids: Vec<Vec<u32>>,
    /// The prompts without special tokens.
    pub visible_prompts: Vec<String>,
    /// The responses without special tokens.
    pub visible_responses: Vec<String>,
}

fn labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Option<String>>>, D::Error> {
    let Some(values) = Option::<Vec<Value>>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let text = |(index, value): (usize, &Value)| {
        text_of_label(value).map_err(|wrong| D::Error::custom(format!("labels[{index}] {wrong}")))
    };
    values.iter().enumerate().map(text).collect::<Result<_, _>>().map(Some)
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

    /// What a reward pod of the same job is asked: all that is known.
    pub fn of_job(samples: &[ScoredSample]) -> Self {
        let tokenizer = samples.first().and_then(|sample| sample.tokenizer.as_deref());
        let policy = tokenizer.map(|tokenizer| PolicyView {
            tokenizer: tokenizer.to_owned(),
            prompt_ids: samples.iter().map(|sample| sample.prompt_ids.to_vec()).collect(),
            response_ids: samples.iter().map(|sample| sample.response_ids.clone()).collect(),
            visible_prompts: samples.iter().map(|sample| sample.visible_prompt.clone()).collect(),
            visible_responses: samples.iter().map(|sample| sample.visible_response.clone()).collect(),
        });
        Self {
            policy,
            ..Self::of(samples)
        }
    }
}

/// What is answered: `{"rewards": [f], "scores": [f], "extra_logs": {"name": [f]}}`, and ours. Old servers answer `rewards` alone.
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
    /// Our addition: digest of the reward model, which a job's own trainer compares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_digest: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels_of(json: &str) -> Result<Option<Vec<Option<String>>>, String> {
        let request = format!("{{\"query\": [], \"labels\": {json}}}");
        let read: Result<ScoreRequest, _> = serde_json::from_str(&request);
        read.map(|read| read.labels).map_err(|error| error.to_string())
    }

    #[test]
    fn labels_are_taken_as_those_of_a_data_file() {
        let read = labels_of(r#"["a", 42, 0.5, true, null]"#).unwrap().unwrap();
        let read: Vec<Option<&str>> = read.iter().map(Option::as_deref).collect();
        assert_eq!(read, [Some("a"), Some("42"), Some("0.5"), Some("true"), None]);
        assert_eq!(labels_of("null"), Ok(None));
        let error = labels_of("[1, [2]]").unwrap_err();
        assert!(error.contains("labels[1] is the list [2], want a string"), "{error}");
        let error = labels_of("[123456789012345678901234567890]").unwrap_err();
        assert!(
            error.contains("labels[0] is the number") && error.contains("too large"),
            "{error}"
        );
    }
}
