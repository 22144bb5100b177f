//! Answers in the words of OpenAI's API and vLLM's additions to it.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::choice::{Choice, Delta, Name, ShownToken, StopReason, VersionSpan, finite, label};
use super::job::{Dialect, Job};
use super::label::Labels;
use super::model::Model;
use crate::engine::TokenScore;
use crate::serving::error::ApiError;

/// Counts of tokens. A prompt counts once, whatever the number of its samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Of all prompts.
    pub prompt_tokens: usize,
    /// Of all responses.
    pub completion_tokens: usize,
    /// Both.
    pub total_tokens: usize,
}

impl Usage {
    /// Counts of a job whose responses have so many tokens.
    pub fn of(job: &Job, completion_tokens: usize) -> Self {
        let prompt_tokens = job.requests.iter().map(|request| request.prompt.len()).sum();
        Self::sum(prompt_tokens, completion_tokens)
    }

    /// Counts of the job's choice `index`, which has so many tokens.
    pub fn of_choice(job: &Job, index: usize, tokens: usize) -> Self {
        Self::sum(job.prompt(index).map_or(0, <[u32]>::len), tokens)
    }

    fn sum(prompt_tokens: usize, completion_tokens: usize) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
        }
    }
}

/// An answer, or a piece of one.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    choices: Vec<ShownChoice>,
    /// Chat has one prompt, so what is told of it stands here and not at every choice, as in vLLM.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs>,
    /// Counts; absent from a stream's pieces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// One choice of an answer.
#[derive(Clone, Debug, Serialize)]
pub struct ShownChoice {
    index: usize,
    #[serde(flatten)]
    said: Said,
    logprobs: Option<ShownLogprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight_versions: Option<Vec<VersionSpan>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs>,
}

/// The text, where each path has it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Said {
    Text(String),
    Message { role: String, content: String },
    Delta(ChatDelta),
}

#[derive(Clone, Debug, Serialize)]
struct ChatDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    content: String,
}

/// Log-probabilities in the shape of each path.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum ShownLogprobs {
    Bare {
        token_logprobs: Vec<Option<f32>>,
    },
    Completions {
        tokens: Vec<String>,
        token_logprobs: Vec<Option<f32>>,
        top_logprobs: Vec<Option<Map<String, Value>>>,
        text_offset: Vec<usize>,
    },
    Chat {
        content: Vec<ChatToken>,
    },
}

#[derive(Clone, Debug, Serialize)]
struct ChatToken {
    token: String,
    logprob: Option<f32>,
    bytes: Vec<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<ChatToken>>,
}

impl Answer {
    /// An answer to `job`; `is_piece` for one of a stream.
    pub fn new(model: &Model, job: &Job, created: u64, is_piece: bool) -> Self {
        let object = match (job.dialect, is_piece) {
            (Dialect::Completions, _) => "text_completion",
            (Dialect::Chat, false) => "chat.completion",
            (Dialect::Chat, true) => "chat.completion.chunk",
        };
        Self {
            id: id(job),
            object,
            created,
            model: model.name.clone(),
            choices: Vec::new(),
            prompt_token_ids: None,
            prompt_logprobs: None,
            usage: None,
        }
    }

    /// Adds a choice, or what is new of one.
    pub fn push(&mut self, dialect: Dialect, mut choice: ShownChoice) {
        if dialect == Dialect::Chat {
            let (ids, scores) = (choice.prompt_token_ids.take(), choice.prompt_logprobs.take());
            self.prompt_token_ids = self.prompt_token_ids.take().or(ids);
            self.prompt_logprobs = self.prompt_logprobs.take().or(scores);
        }
        self.choices.push(choice);
    }
}

/// The name of an answer.
pub fn id(job: &Job) -> String {
    match job.dialect {
        Dialect::Completions => format!("cmpl-{}", job.name),
        Dialect::Chat => format!("chatcmpl-{}", job.name),
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

/// A choice, complete or a piece of one: `is_first` pieces carry what is said once, finished ones what is known at the end. Of a chat the
/// first piece is its [`opening`].
pub fn choice(job: &Job, index: usize, choice: &Choice, delta: Delta, is_piece: bool, is_first: bool) -> ShownChoice {
    let shown = &job.shown;
    let Delta {
        text,
        token_ids,
        logprobs,
    } = delta;
    let said = match (job.dialect, is_piece) {
        (Dialect::Completions, _) => Said::Text(text),
        (Dialect::Chat, false) => Said::Message {
            role: job.role(),
            content: text,
        },
        (Dialect::Chat, true) => Said::Delta(ChatDelta {
            role: None,
            content: text,
        }),
    };
    let is_finished = choice.finish_reason().is_some();
    ShownChoice {
        index,
        said,
        logprobs: shown.logprobs.map(|_| show_logprobs(job, logprobs)),
        finish_reason: choice.finish_reason(),
        stop_reason: choice.stop_reason(),
        prompt_token_ids: is_first.then(|| prompt_token_ids(job, index)).flatten(),
        token_ids: shown.token_ids.then_some(token_ids),
        weight_versions: (shown.weight_versions && is_finished).then(|| choice.version_spans()),
        prompt_logprobs: None,
    }
}

/// The first piece of a choice of a chat: it says who speaks, and nothing else, as OpenAI's and vLLM's.
pub fn opening(job: &Job, index: usize) -> ShownChoice {
    ShownChoice {
        index,
        said: Said::Delta(ChatDelta {
            role: Some(job.role()),
            content: String::new(),
        }),
        logprobs: None,
        finish_reason: None,
        stop_reason: None,
        prompt_token_ids: prompt_token_ids(job, index),
        token_ids: None,
        weight_versions: None,
        prompt_logprobs: None,
    }
}

/// The ids of a choice's prompt, where they are wanted.
fn prompt_token_ids(job: &Job, index: usize) -> Option<Vec<u32>> {
    let prompt = job.prompt(index).filter(|_| job.shown.token_ids);
    prompt.map(<[u32]>::to_vec)
}

/// Scores of a prompt's tokens as they are written: once a prompt, shared by the choices of all its samples.
#[derive(Clone, Debug)]
pub struct PromptLogprobs(Arc<RawValue>);

impl Serialize for PromptLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.as_ref().serialize(serializer)
    }
}

impl PromptLogprobs {
    /// Those of `prompt`, whose tokens but the first have `scores`.
    ///
    /// # Errors
    /// 500 when they cannot be written.
    pub fn new(model: &Model, job: &Job, prompt: &[u32], scores: &[TokenScore]) -> Result<Self, ApiError> {
        let entry = |name: &str, token: u32, logprob: f32, rank: usize| {
            (
                token.to_string(),
                json!({"logprob": number(finite(logprob)), "rank": rank, "decoded_token": name}),
            )
        };
        let mut before = Labels::default();
        let name = |before: &Labels, token: u32| label(model, &job.shown, before, token);
        // Nothing stands before the first token.
        let mut list = vec![Value::Null];
        if let Some(&first) = prompt.first() {
            let own = name(&before, first);
            before.push(first, &own);
        }
        for (&token, score) in prompt.iter().skip(1).zip(scores) {
            let own = name(&before, token);
            let top = (1..).zip(&score.top).map(|(rank, top)| {
                let name = name(&before, top.token);
                entry(&name, top.token, top.logprob, rank)
            });
            let drawn = entry(&own, token, score.logprob, score.rank);
            let fields: Map<String, Value> = std::iter::once(drawn).chain(top).collect();
            list.push(Value::Object(fields));
            before.push(token, &own);
        }
        let written = serde_json::value::to_raw_value(&list).map_err(ApiError::internal)?;
        Ok(Self(written.into()))
    }
}

impl ShownChoice {
    /// Adds the scores of the prompt's tokens.
    pub fn with_prompt_logprobs(mut self, scores: Option<PromptLogprobs>) -> Self {
        self.prompt_logprobs = scores;
        self
    }
}

/// The shortest decimal that reads back as this number, as everywhere else in an answer; widened it would have 17 digits.
fn number(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

fn show_logprobs(job: &Job, tokens: Vec<ShownToken>) -> ShownLogprobs {
    match job.dialect {
        Dialect::Completions if job.shown.bare_logprobs => ShownLogprobs::Bare {
            token_logprobs: tokens.iter().map(|token| token.logprob).collect(),
        },
        Dialect::Completions => ShownLogprobs::Completions {
            tokens: tokens.iter().map(|token| token.name.label.clone()).collect(),
            token_logprobs: tokens.iter().map(|token| token.logprob).collect(),
            text_offset: tokens.iter().map(|token| token.offset).collect(),
            // The drawn token first, then the likeliest ones, as vLLM has it.
            top_logprobs: tokens
                .into_iter()
                .map(|token| {
                    let own = (token.name.label, number(token.logprob?));
                    let top = token.top.into_iter();
                    let top = top.map(|(name, logprob)| (name.label, number(logprob)));
                    Some(std::iter::once(own).chain(top).collect())
                })
                .collect(),
        },
        Dialect::Chat => ShownLogprobs::Chat {
            content: tokens
                .into_iter()
                .map(|token| {
                    let top = token
                        .top
                        .into_iter()
                        .map(|(name, logprob)| chat_token(name, Some(logprob), None));
                    let top = top.collect();
                    chat_token(token.name, token.logprob, Some(top))
                })
                .collect(),
        },
    }
}

fn chat_token(name: Name, logprob: Option<f32>, top_logprobs: Option<Vec<ChatToken>>) -> ChatToken {
    ChatToken {
        bytes: name.text().bytes().collect(),
        token: name.label,
        logprob,
        top_logprobs,
    }
}
