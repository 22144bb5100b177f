//! Prompts from files: parsing, filtering, deterministic order.

mod fields;
mod label;
mod order;
mod parquet;
mod rows;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use ppo_crds::run_config::{Evaluation, Prompts};
use serde_json::Value;

pub(crate) use fields::describe;
pub use label::Label;
pub use order::{PromptOrder, total_steps};
use rows::read_fields;
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
    pub label: Option<Label>,
    /// The chat that `text` is the policy's rendering of; None for plain text.
    pub messages: Option<Arc<[Value]>>,
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
        let mut began_twice = 0;
        let fields = [Some(&wanted.prompt_field), wanted.label_field.as_ref()];
        let fields: Vec<&str> = fields.into_iter().flatten().map(String::as_str).collect();
        for row in read_fields(path, &fields)? {
            if limit.is_some_and(|limit| set.prompts.len() >= limit) {
                break;
            }
            let place = || format!("{}: {}", path.display(), row.place);
            let mut given = Given::of(&row.value, wanted, tokenizer).with_context(place)?;
            began_twice += usize::from(given.drop_second_bos(tokenizer));
            if given.ids.len() > wanted.max_length {
                set.dropped += 1;
                continue;
            }
            let label = match &wanted.label_field {
                Some(field) => fields::label(&row.value, field).with_context(place)?,
                None => None,
            };
            set.prompts.push(Prompt {
                index: set.prompts.len(),
                text: tokenizer.decode(&given.ids, false).with_context(place)?,
                ids: given.ids.into(),
                label,
                messages: given.messages.map(Arc::from),
                place: row.place,
            });
        }
        if began_twice > 0 {
            tracing::info!(
                file = %path.display(),
                began_twice,
                "{began_twice} prompts begin with the tokenizer's BOS: no second one is put before them"
            );
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

/// The prompt of a row as the model sees it.
struct Given {
    ids: Vec<u32>,
    /// Those of a chat; None for plain text.
    messages: Option<Vec<Value>>,
}

impl Given {
    fn of(row: &Value, wanted: &Prompts, tokenizer: &Tokenizer) -> Result<Self> {
        let chat = |messages: Vec<Value>| {
            let ids = tokenizer.encode_chat_with(&messages, true, &wanted.chat_template_variables)?;
            Ok::<_, anyhow::Error>((ids, Some(messages)))
        };
        let (ids, messages) = match fields::prompt(row, &wanted.prompt_field)? {
            fields::PromptValue::Text(text) if wanted.chat_template => {
                chat(vec![serde_json::json!({"role": "user", "content": text})])?
            }
            fields::PromptValue::Text(text) => (tokenizer.encode(text, true)?, None),
            fields::PromptValue::Messages(messages) => chat(messages.to_vec())?,
        };
        if ids.is_empty() {
            bail!(
                "field {:?} is an empty prompt: no tokens for the model to continue",
                wanted.prompt_field
            );
        }
        Ok(Self { ids, messages })
    }

    /// A text that was rendered before begins with BOS, and the tokenizer has put one before it: no model has seen two. True where it was so.
    fn drop_second_bos(&mut self, tokenizer: &Tokenizer) -> bool {
        let bos = tokenizer.bos_id().filter(|_| self.messages.is_none());
        let twice = bos.is_some_and(|bos| self.ids.starts_with(&[bos, bos]));
        if twice {
            self.ids.remove(0);
        }
        twice
    }
}

#[cfg(test)]
mod tests;
