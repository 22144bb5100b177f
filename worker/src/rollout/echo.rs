//! Completions that begin with their prompt (`echo`), as tools ask for them that measure how likely a text is.

use std::sync::Arc;

use super::choice::{Choice, Delta};
use super::job::{Dialect, Shown};
use super::model::Model;
use super::prompt::Prompt;
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

/// The texts of the prompts, where they are to be shown as they were sent: ids do not tell how white space was written. What is shortened is
/// another text.
pub fn texts(asked: &GenerateRequest, prompt: &Prompt) -> Vec<String> {
    match prompt {
        _ if asked.echo != Some(true) || asked.truncate_prompt_tokens.is_some() => Vec::new(),
        Prompt::Text(text) => vec![text.clone()],
        Prompt::Texts(texts) => texts.clone(),
        Prompt::Ids(_) | Prompt::IdLists(_) => Vec::new(),
    }
}

/// The prompt as it is shown before a response: its `text` where that was sent, else that of its ids, with their special tokens. `scores` are
/// those of its tokens but the first, or none.
///
/// # Errors
/// 500 when the tokenizer's decoder refuses it.
pub fn prompt(
    model: &Model,
    request: &Request,
    shown: &Shown,
    text: Option<&str>,
    scores: &[TokenScore],
) -> Result<Delta, ApiError> {
    let shown = &Shown {
        skip_special: false,
        ..shown.clone()
    };
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
    if let Some(text) = text.filter(|_| shown.text) {
        as_sent(&mut delta, text);
    }
    Ok(delta)
}

/// Shows `text` in place of what its ids stand for. What the tokenizer put before it (BOS) takes no character of it.
fn as_sent(delta: &mut Delta, text: &str) {
    let added = delta.text.strip_suffix(text).map_or(0, |added| added.chars().count());
    let characters = text.chars().count();
    for token in &mut delta.logprobs {
        token.offset = token.offset.saturating_sub(added).min(characters);
    }
    text.clone_into(&mut delta.text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::choice::{Name, ShownToken};

    /// The offsets of tokens whose text `decoded` begins at `offsets`, once `sent` is shown in its place.
    fn offsets(decoded: &str, offsets: &[usize], sent: &str) -> Vec<usize> {
        let token = |&offset: &usize| ShownToken {
            name: Name::default(),
            logprob: None,
            top: Vec::new(),
            offset,
        };
        let mut delta = Delta {
            text: decoded.to_owned(),
            token_ids: Vec::new(),
            logprobs: offsets.iter().map(token).collect(),
        };
        as_sent(&mut delta, sent);
        assert_eq!(delta.text, sent);
        delta.logprobs.iter().map(|token| token.offset).collect()
    }

    #[test]
    fn tokens_begin_where_they_do_in_the_text_that_was_sent() {
        assert_eq!(offsets("<s>a bc", &[0, 3, 4], "a bc"), [0, 0, 1]);
        assert_eq!(offsets("a bc", &[0, 1], "a bc"), [0, 1]);
        // A tokenizer that changes texts.
        assert_eq!(offsets("a bc d", &[0, 1, 5], "A b"), [0, 1, 3]);
    }
}
