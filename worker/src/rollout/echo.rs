//! Completions that begin with their prompt (`echo`), as tools ask for them that measure how likely a text is.

use std::sync::Arc;

use super::choice::{Choice, Delta};
use super::job::{Dialect, Shown};
use super::model::Model;
use super::protocol::GenerateRequest;
use crate::engine::{Details, FinishReason, Request, SamplingParams, TokenLogprob, TokenScore};
use crate::serving::error::ApiError;

/// Whether a completion shows its prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Echo {
    /// The response alone is shown.
    Nothing,
    /// The prompt is shown before the response.
    Before,
    /// The prompt alone is shown: no token was asked for.
    Alone,
}

impl Echo {
    /// What the request asks for.
    ///
    /// # Errors
    /// 400 where a prompt is not shown.
    pub fn of(asked: &GenerateRequest, dialect: Dialect) -> Result<Self, ApiError> {
        if asked.echo != Some(true) {
            return Ok(Self::Nothing);
        }
        let wrong = |words: &str| Err(ApiError::field("echo", words));
        if dialect == Dialect::Chat {
            return wrong("a conversation is not repeated: you have it");
        }
        if asked.stream == Some(true) {
            return wrong("not with stream: ask without it");
        }
        if asked.prompt_logprobs.is_some() || asked.return_bare_logprobs == Some(true) {
            return wrong("not with prompt_logprobs or return_bare_logprobs: logprobs has all");
        }
        Ok(match asked.response_tokens() {
            Some(0) => Self::Alone,
            _ => Self::Before,
        })
    }
}

/// The prompt as it is shown before a response. `scores` are those of its tokens but the first, or none.
///
/// # Errors
/// 500 when the tokenizer's decoder refuses it.
pub fn prompt(model: &Model, request: &Request, shown: &Shown, scores: &[TokenScore]) -> Result<Delta, ApiError> {
    // It is written as a response to nothing, which nothing ends.
    let said = Request {
        prompt: Arc::from([]),
        seeds: Vec::new(),
        params: Arc::new(SamplingParams {
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ..(*request.params).clone()
        }),
        details: Details::default(),
    };
    let mut choice = Choice::new(model, &said, shown)?;
    for (at, &token) in request.prompt.iter().enumerate() {
        let score = at.checked_sub(1).and_then(|before| scores.get(before));
        let (logprob, top) = score.map_or((0.0, &[][..]), |score| (score.logprob, score.top.as_slice()));
        choice.push(model, &said, shown, TokenLogprob { token, logprob }, top, 0)?;
    }
    choice.finish(model, &said, shown, FinishReason::Length)?;
    let mut delta = choice.take();
    delta.token_ids.clear();
    // Nothing stands before the first token; none has a score when the request ended before it was computed.
    for (at, token) in delta.logprobs.iter_mut().enumerate() {
        token.logprob = token.logprob.filter(|_| (1..=scores.len()).contains(&at));
    }
    Ok(delta)
}
