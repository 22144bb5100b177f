//! What a source of scores sees of a sample.

use std::sync::Arc;

use anyhow::Result;

use crate::data::Prompt;
use crate::tokenizer::Tokenizer;

/// One prompt with one response, to be scored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoredSample {
    /// The sample's number in its step; errors name it.
    pub index: usize,
    /// What the model saw, special tokens kept.
    pub prompt: String,
    /// The prompt without special tokens: a reward model with another tokenizer reads it.
    pub visible_prompt: String,
    /// What the model wrote, special tokens (its EOS) kept: remote servers read it.
    pub response: String,
    /// The response without special tokens: rules read it.
    pub visible_response: String,
    /// [`Tokenizer::fingerprint`] of the policy's, which made the ids; None where only text is known.
    pub tokenizer: Option<Arc<str>>,
    /// The prompt's token ids under the policy's tokenizer.
    pub prompt_ids: Arc<[u32]>,
    /// The response's token ids under the policy's tokenizer.
    pub response_ids: Vec<u32>,
    /// What the response is compared with.
    pub label: Option<String>,
}

impl ScoredSample {
    /// The sample of `prompt` whose response is `response_ids`, decoded by the policy's tokenizer.
    ///
    /// # Errors
    /// When the tokenizer cannot decode the ids.
    pub fn new(tokenizer: &Tokenizer, index: usize, prompt: &Prompt, response_ids: &[u32]) -> Result<Self> {
        Ok(Self {
            index,
            prompt: prompt.text.clone(),
            visible_prompt: tokenizer.decode(&prompt.ids, true)?,
            response: tokenizer.decode(response_ids, false)?,
            visible_response: tokenizer.decode(response_ids, true)?,
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
