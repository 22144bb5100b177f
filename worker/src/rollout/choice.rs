//! One choice of an answer while it grows. A stream takes from it again and again, a plain answer once at the end, so both
//! say the same.

use serde::Serialize;

use super::job::Shown;
use super::label::Labels;
use super::model::Model;
use super::text::Text;
use crate::engine::{FinishReason, Request, TokenLogprob};
use crate::serving::error::ApiError;

/// What a token is called.
#[derive(Clone, Debug, Default)]
pub struct Name {
    /// As the client wants tokens written.
    pub label: String,
    /// Its text, where the label is another one and the text is told too.
    text: Option<String>,
}

impl Name {
    /// The token's text, as far as it is known.
    pub fn text(&self) -> &str {
        self.text.as_deref().unwrap_or(&self.label)
    }
}

/// A token and its log-probability, ready to be shown.
#[derive(Clone, Debug)]
pub struct ShownToken {
    /// What it is called.
    pub name: Name,
    /// Its log-probability; a prompt's first token has none.
    pub logprob: Option<f32>,
    /// The likeliest tokens there.
    pub top: Vec<(Name, f32)>,
    /// Characters of the text before it.
    pub offset: usize,
}

/// What is new of a choice.
#[derive(Clone, Debug, Default)]
pub struct Delta {
    /// Text.
    pub text: String,
    /// Token ids.
    pub token_ids: Vec<u32>,
    /// Log-probabilities, if they are wanted.
    pub logprobs: Vec<ShownToken>,
}

impl Delta {
    /// This, and `next` behind it.
    pub fn then(mut self, next: Self) -> Self {
        let characters = self.text.chars().count();
        self.text += &next.text;
        self.token_ids.extend(next.token_ids);
        let behind = next.logprobs.into_iter().map(|token| ShownToken {
            offset: token.offset + characters,
            ..token
        });
        self.logprobs.extend(behind);
        self
    }
}

/// Tokens drawn by one version of the weights, half open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VersionSpan {
    /// The version.
    pub version: String,
    /// First token.
    pub start: usize,
    /// Behind the last token.
    pub end: usize,
}

/// What ended a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StopReason {
    /// A stop token of the request, or an end token of the model that is not its tokenizer's own.
    Token(u32),
    /// A stop string.
    Text(String),
}

/// One choice.
#[derive(Debug)]
pub struct Choice {
    text: Option<Text>,
    labels: Labels,
    fresh: Delta,
    tokens: usize,
    last: Option<u32>,
    spans: Vec<(u64, usize)>,
    /// Set once the choice is complete.
    finished: Option<FinishReason>,
    stop_reason: Option<StopReason>,
}

impl Choice {
    /// A choice without tokens.
    ///
    /// # Errors
    /// 500 when the tokenizer's decoder refuses the prompt.
    pub fn new(model: &Model, request: &Request, shown: &Shown) -> Result<Self, ApiError> {
        let text = shown.text.then(|| {
            Text::new(
                &model.tokenizer,
                &request.prompt,
                shown.skip_special,
                &request.params.stop,
                shown.include_stop,
            )
        });
        Ok(Self {
            text: text.transpose().map_err(internal)?,
            labels: Labels::default(),
            fresh: Delta::default(),
            tokens: 0,
            last: None,
            spans: Vec::new(),
            finished: None,
            stop_reason: None,
        })
    }

    /// Adds a token.
    ///
    /// # Errors
    /// 500 when the tokenizer's decoder refuses it.
    pub fn push(
        &mut self,
        model: &Model,
        request: &Request,
        shown: &Shown,
        drawn: TokenLogprob,
        top: &[TokenLogprob],
        version: u64,
    ) -> Result<(), ApiError> {
        self.tokens += 1;
        self.last = Some(drawn.token);
        match self.spans.last_mut() {
            Some((last, end)) if *last == version => *end = self.tokens,
            _ => self.spans.push((version, self.tokens)),
        }
        if shown.token_ids {
            self.fresh.token_ids.push(drawn.token);
        }
        if shown.logprobs.is_some() {
            let name = |token: u32| match shown.bare_logprobs {
                true => Name::default(),
                false => name(model, shown, &self.labels, token),
            };
            let own = name(drawn.token);
            let top = top.iter().map(|entry| (name(entry.token), finite(entry.logprob)));
            let top = top.collect();
            self.labels.push(drawn.token, own.text());
            self.fresh.logprobs.push(ShownToken {
                name: own,
                logprob: Some(finite(drawn.logprob)),
                top,
                offset: self.text.as_ref().map_or(0, Text::characters),
            });
        }
        let params = &request.params;
        // After the minimum a stop token always ends the response, and what ends it is not part of the text.
        let ends = self.tokens >= params.min_new_tokens && params.stop_token_ids.contains(&drawn.token);
        if let Some(text) = self.text.as_mut().filter(|_| !ends || shown.include_stop) {
            text.push(&model.tokenizer, drawn.token).map_err(internal)?;
        }
        Ok(())
    }

    /// No token follows.
    ///
    /// # Errors
    /// 500 when the tokenizer's decoder refuses the tokens.
    pub fn finish(
        &mut self,
        model: &Model,
        request: &Request,
        shown: &Shown,
        reason: FinishReason,
    ) -> Result<(), ApiError> {
        self.finished = Some(reason);
        if let Some(text) = &mut self.text {
            text.end(&model.tokenizer).map_err(internal)?;
        }
        if reason != FinishReason::Stop {
            return Ok(());
        }
        let params = &request.params;
        match self.last.filter(|token| params.stop_token_ids.contains(token)) {
            // As in vLLM (`check_stop` in `vllm/v1/core/sched/utils.py`), which takes the other ends of generation_config.json for stop tokens.
            Some(token) if shown.usual_end == Some(token) => {}
            Some(token) => self.stop_reason = Some(StopReason::Token(token)),
            None => {
                let cut = self.text.as_mut().and_then(|text| text.cut(&params.stop));
                self.stop_reason = cut.map(|stop| StopReason::Text(stop.to_owned()));
            }
        }
        Ok(())
    }

    /// What is new since it was last taken.
    pub fn take(&mut self) -> Delta {
        let mut fresh = std::mem::take(&mut self.fresh);
        if let Some(text) = &mut self.text {
            fresh.text = text.take();
        }
        fresh
    }

    /// Tokens so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Why it ended; None while it goes on.
    pub fn finish_reason(&self) -> Option<&'static str> {
        self.finished.map(|reason| match reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Abort => "abort",
        })
    }

    /// What ended it.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.stop_reason.clone()
    }

    /// Which weights drew which tokens.
    pub fn version_spans(&self) -> Vec<VersionSpan> {
        let starts = std::iter::once(0).chain(self.spans.iter().map(|(_, end)| *end));
        let spans = starts.zip(&self.spans);
        spans
            .map(|(start, (version, end))| VersionSpan {
                version: version.to_string(),
                start,
                end: *end,
            })
            .collect()
    }
}

/// What a token is called behind those of `before`.
fn name(model: &Model, shown: &Shown, before: &Labels, token: u32) -> Name {
    let is_told_too = shown.tokens_as_ids && shown.bytes;
    Name {
        label: label(model, shown, before, token),
        text: is_told_too.then(|| before.label(&model.tokenizer, token)),
    }
}

/// A token as log-probabilities show it behind those of `before`.
pub fn label(model: &Model, shown: &Shown, before: &Labels, token: u32) -> String {
    match shown.tokens_as_ids {
        true => format!("token_id:{token}"),
        false => before.label(&model.tokenizer, token),
    }
}

/// JSON has no infinity; vLLM writes -9999 too.
pub fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}

fn internal(error: anyhow::Error) -> ApiError {
    ApiError::internal(format!("{error:#}"))
}
