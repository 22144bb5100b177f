//! Prompts from files: parsing, filtering, deterministic order.

mod fields;
mod order;
mod parquet;
mod rows;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use ppo_crds::run_config::{Evaluation, Prompts};
use serde_json::Value;

pub(crate) use fields::{describe, text_of_label};
pub use order::{PromptOrder, total_steps};
pub use rows::{Row, read_rows};

use crate::tokenizer::Tokenizer;

/// One prompt, ready for the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Position among the prompts that were kept.
    pub index: usize,
    /// What the model sees, special tokens kept.
    pub text: String,
    /// Token ids, never empty, at most `maxLength` of them.
    pub ids: Arc<[u32]>,
    /// What a rule or a remote reward compares the response with.
    pub label: Option<String>,
    /// Where it comes from, for an error: `line 7` or `row 7` of the file.
    pub place: String,
}

/// The prompts of one file, in the file's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptSet {
    /// At least one; `prompts[i].index == i`.
    pub prompts: Vec<Prompt>,
    /// How many rows were left out because they are longer than `maxLength` tokens.
    pub dropped: usize,
}

impl PromptSet {
    /// Reads the prompts of a run. Rows longer than `maxLength` tokens are dropped, counted and warned about.
    ///
    /// # Errors
    /// A file that cannot be read or a row that does not fit: with file and line (or row) number, the field, what was found
    /// and what is wanted. Also when no prompt is left.
    pub fn load(prompts: &Prompts, tokenizer: &Tokenizer) -> Result<Self> {
        Self::read(&prompts.path, prompts, None, tokenizer)
    }

    /// Reads held-out prompts, by the same fields as the run's own; the first `max_prompts` of them.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_evaluation(evaluation: &Evaluation, prompts: &Prompts, tokenizer: &Tokenizer) -> Result<Self> {
        Self::read(&evaluation.path, prompts, evaluation.max_prompts, tokenizer)
    }

    fn read(path: &Path, wanted: &Prompts, limit: Option<usize>, tokenizer: &Tokenizer) -> Result<Self> {
        let mut set = Self {
            prompts: Vec::new(),
            dropped: 0,
        };
        for row in read_rows(path)? {
            if limit.is_some_and(|limit| set.prompts.len() >= limit) {
                break;
            }
            let place = || format!("{}: {}", path.display(), row.place);
            let (text, ids) = prompt_ids(&row.value, wanted, tokenizer).with_context(place)?;
            if ids.len() > wanted.max_length {
                set.dropped += 1;
                continue;
            }
            let label = match &wanted.label_field {
                Some(field) => fields::label(&row.value, field).with_context(place)?,
                None => None,
            };
            set.prompts.push(Prompt {
                index: set.prompts.len(),
                text,
                ids: ids.into(),
                label,
                place: row.place,
            });
        }
        set.check(path, wanted.max_length)?;
        Ok(set)
    }

    fn check(&self, path: &Path, max_length: usize) -> Result<()> {
        let (kept, dropped) = (self.prompts.len(), self.dropped);
        if kept == 0 && dropped > 0 {
            bail!(
                "{}: all {dropped} prompts are longer than maxLength = {max_length} tokens; raise it",
                path.display()
            );
        }
        if kept == 0 {
            bail!("{}: no prompts in it; want one row for each prompt", path.display());
        }
        if dropped > 0 {
            tracing::warn!(
                file = %path.display(),
                dropped,
                kept,
                "{dropped} of {} prompts dropped: longer than maxLength = {max_length} tokens",
                dropped + kept
            );
        }
        Ok(())
    }
}

/// Text and ids of the row's prompt.
fn prompt_ids(row: &Value, wanted: &Prompts, tokenizer: &Tokenizer) -> Result<(String, Vec<u32>)> {
    let prompt = fields::prompt(row, &wanted.prompt_field)?;
    let ids = match prompt {
        fields::PromptValue::Text(text) if wanted.chat_template => {
            tokenizer.encode_chat(&[serde_json::json!({"role": "user", "content": text})], true)?
        }
        fields::PromptValue::Text(text) => tokenizer.encode(text, true)?,
        fields::PromptValue::Messages(messages) => tokenizer.encode_chat(messages, true)?,
    };
    if ids.is_empty() {
        bail!(
            "field {:?} is an empty prompt: no tokens for the model to continue",
            wanted.prompt_field
        );
    }
    Ok((tokenizer.decode(&ids, false)?, ids))
}

#[cfg(test)]
mod tests;
