//! A sample as the sources of scores see it.

use std::sync::Arc;

use anyhow::Result;
use jiff::Timestamp;
use serde_json::Value;

use crate::data::{Label, Prompt};
use crate::engine::FinishReason;
use crate::tokenizer::{Tokenizer, text_after};

/// One prompt with one response, to be scored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoredSample {
    /// The sample's number in its step; errors name it.
    pub index: usize,
    /// What the model saw, special tokens kept.
    pub prompt: String,
    /// The prompt without special tokens: a reward model with another tokenizer reads it.
    pub visible_prompt: String,
    /// The chat that the prompt is the policy's rendering of: a reward model with another tokenizer renders it its own way. None
    /// for plain text, and where only text is known.
    pub messages: Option<Arc<[Value]>>,
    /// [`Tokenizer::moment`] of the policy's: a reward model's chat template that prints the date prints the run's. None is that of the
    /// reward model's own.
    pub moment: Option<Timestamp>,
    /// What the model wrote, special tokens (its EOS) kept: remote servers read it.
    pub response: String,
    /// The response without special tokens: rules read it.
    pub visible_response: String,
    /// Whether the response came to its end, by an end token or whatever else stops one: one that ran out of room did not.
    pub has_ended: bool,
    /// [`Tokenizer::fingerprint`] of the policy's, which made the ids; None where only text is known.
    pub tokenizer: Option<Arc<str>>,
    /// The prompt's token ids under the policy's tokenizer.
    pub prompt_ids: Arc<[u32]>,
    /// The response's token ids under the policy's tokenizer.
    pub response_ids: Vec<u32>,
    /// What the response is compared with.
    pub label: Option<Label>,
}

impl ScoredSample {
    /// The sample of `prompt` whose response is `response_ids`, decoded by the policy's tokenizer, and ended for `reason`.
    ///
    /// # Errors
    /// When the tokenizer cannot decode the ids.
    pub fn new(
        tokenizer: &Tokenizer,
        index: usize,
        prompt: &Prompt,
        response_ids: &[u32],
        reason: FinishReason,
    ) -> Result<Self> {
        Ok(Self {
            index,
            prompt: prompt.text.clone(),
            visible_prompt: tokenizer.decode(&prompt.ids, true)?,
            messages: prompt.messages.clone(),
            moment: tokenizer.moment(),
            response: text_after(tokenizer, &prompt.ids, response_ids, false)?,
            visible_response: text_after(tokenizer, &prompt.ids, response_ids, true)?,
            has_ended: reason == FinishReason::Stop,
            tokenizer: Some(tokenizer.fingerprint()?),
            prompt_ids: prompt.ids.clone(),
            response_ids: response_ids.to_vec(),
            label: prompt.label.clone(),
        })
    }

    /// Tokens of prompt and response under the policy's tokenizer.
    pub fn tokens(&self) -> usize {
        self.prompt_ids.len() + self.response_ids.len()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn sample(family: &str, prompt: &str, response: &[u32], reason: FinishReason) -> ScoredSample {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer");
        let tokenizer = Tokenizer::load(&folder.join(family)).unwrap();
        let ids = tokenizer.encode(prompt, true).unwrap();
        let prompt = Prompt {
            text: tokenizer.decode(&ids, false).unwrap(),
            ids: ids.into(),
            ..Prompt::default()
        };
        ScoredSample::new(&tokenizer, 0, &prompt, response, reason).unwrap()
    }

    #[test]
    fn a_response_keeps_the_space_between_it_and_its_prompt() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer");
        let llama2 = Tokenizer::load(&folder.join("llama2")).unwrap();
        // Encoded as a text of its own, a word has its space in front.
        let word = llama2.encode("the", false).unwrap();
        let read = sample("llama2", "What is", &word, FinishReason::Length);
        assert_eq!(
            (read.response.as_str(), read.visible_response.as_str()),
            (" the", " the")
        );
        assert_eq!(
            format!("{}{}", read.prompt, read.response),
            llama2
                .decode(&[&read.prompt_ids[..], &word[..]].concat(), false)
                .unwrap()
        );
        let chatml = Tokenizer::load(&folder.join("chatml")).unwrap();
        for text in ["the", " the", "\u{1f600}"] {
            let ids = chatml.encode(text, false).unwrap();
            let read = sample("chatml", "What is", &ids, FinishReason::Length);
            assert_eq!(read.visible_response, text);
        }
    }

    #[test]
    fn a_response_has_ended_where_the_engine_says_so_with_an_end_token_or_without() {
        let cases: [(&[u32], FinishReason, bool); 5] = [
            (&[40, 2], FinishReason::Stop, true),
            // By a stop string.
            (&[40], FinishReason::Stop, true),
            (&[40], FinishReason::Length, false),
            (&[40], FinishReason::Abort, false),
            (&[], FinishReason::Length, false),
        ];
        for (response, reason, has_ended) in cases {
            let read = sample("chatml", "Hi", response, reason);
            assert_eq!(read.has_ended, has_ended, "{response:?} {reason:?}");
        }
    }
}
