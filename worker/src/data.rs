//! Prompts from files: parsing, filtering, deterministic order.

mod fields;
mod folder;
mod json;
mod label;
pub mod message;
mod order;
mod parquet;
mod place;
mod rows;
mod sets;

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use ppo_crds::run_config::{DataPaths, Evaluation, Prompts};
use serde_json::Value;

pub(crate) use json::describe;
pub use label::Label;
pub use order::{PromptOrder, total_steps};
pub use place::{At, Place};
use rows::read_fields;
pub use rows::{Row, read_rows};
use sets::Sets;

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
    /// The test set that it is of; None without `evaluation.setField`.
    pub set: Option<Arc<str>>,
    /// Where it comes from, for an error.
    pub place: Place,
}

/// The prompts of one source, in the order of its files and of their rows.
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
        Ok(Self::load_with(prompts, [], tokenizer)?.0)
    }

    /// As [`load`](Self::load), and beside each prompt what its row has in each of `fields`, read as a label is.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_with<const N: usize>(
        prompts: &Prompts,
        fields: [&str; N],
        tokenizer: &Tokenizer,
    ) -> Result<(Self, Vec<[Option<Label>; N]>)> {
        let mut beside = Vec::new();
        let of_row = |row: &Value| {
            let mut values = [const { None }; N];
            for (value, field) in values.iter_mut().zip(fields) {
                *value = fields::label(row, field)?;
            }
            beside.push(values);
            Ok(())
        };
        let set = Self::read(&prompts.path, prompts, Kept::all(&fields, of_row), tokenizer)?;
        Ok((set, beside))
    }

    /// Reads held-out prompts, by the same fields as the run's own; the first `max_prompts` of them, each with its test set.
    ///
    /// # Errors
    /// As [`load`](Self::load), and where a row names no test set or the rows name too many.
    pub fn load_evaluation(evaluation: &Evaluation, prompts: &Prompts, tokenizer: &Tokenizer) -> Result<Self> {
        let kept = Kept {
            limit: evaluation.max_prompts,
            set_field: evaluation.set_field.as_deref(),
            ..Kept::all(&[], |_| Ok(()))
        };
        Self::read(&evaluation.path, prompts, kept, tokenizer)
    }

    fn read(
        path: &DataPaths,
        wanted: &Prompts,
        mut kept: Kept<impl FnMut(&Value) -> Result<()>>,
        tokenizer: &Tokenizer,
    ) -> Result<Self> {
        let mut set = Self {
            prompts: Vec::new(),
            dropped: 0,
        };
        let mut began_twice = 0;
        let mut sets = Sets::named_by(kept.set_field);
        let fields = [Some(&wanted.prompt_field), wanted.label_field.as_ref()];
        let fields = fields.into_iter().flatten().map(String::as_str);
        let fields: Vec<&str> = fields
            .chain(kept.set_field)
            .chain(kept.fields.iter().copied())
            .collect();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut rows = read_fields(path.as_slice(), &fields)?.into_iter();
        let is_full = |set: &Self| kept.limit.is_some_and(|limit| set.prompts.len() >= limit);
        while !is_full(&set) && !rows.as_slice().is_empty() {
            let block: Vec<Row> = rows.by_ref().take(BLOCK).collect();
            let all = by_threads(&block, cores, |row| Given::of(row, wanted, tokenizer))?;
            for (row, given) in block.into_iter().zip(all) {
                if is_full(&set) {
                    break;
                }
                let place = || row.place.to_string();
                let given = given.with_context(place)?;
                began_twice += usize::from(given.began_twice);
                if given.ids.len() > wanted.max_length {
                    set.dropped += 1;
                    continue;
                }
                let label = match &wanted.label_field {
                    Some(field) => fields::label(&row.value, field).with_context(place)?,
                    None => None,
                };
                let test_set = sets.of_row(&row.value).with_context(place)?;
                (kept.of_row)(&row.value).with_context(place)?;
                set.prompts.push(Prompt {
                    index: set.prompts.len(),
                    text: given.text,
                    ids: given.ids.into(),
                    label,
                    messages: given.messages.map(Arc::from),
                    set: test_set,
                    place: row.place,
                });
            }
        }
        if began_twice > 0 {
            tracing::info!(
                files = %path,
                began_twice,
                "{began_twice} prompts begin with the tokenizer's BOS: no second one is put before them"
            );
        }
        set.check(path, wanted.max_length)?;
        sets.check().with_context(|| path.to_string())?;
        Ok(set)
    }

    fn check(&self, path: &DataPaths, max_length: usize) -> Result<()> {
        let (kept, dropped) = (self.prompts.len(), self.dropped);
        if kept == 0 && dropped > 0 {
            bail!("{path}: all {dropped} prompts are longer than maxLength = {max_length} tokens; raise it");
        }
        if kept == 0 {
            bail!("{path}: no prompts in it; want one row for each prompt");
        }
        if dropped > 0 {
            tracing::warn!(
                files = %path,
                dropped,
                kept,
                "{dropped} of {} prompts dropped: longer than maxLength = {max_length} tokens",
                dropped + kept
            );
        }
        Ok(())
    }
}

/// Which rows become prompts, and what else is read of them.
struct Kept<'a, F> {
    /// So many at the most.
    limit: Option<usize>,
    set_field: Option<&'a str>,
    /// Those of which `of_row` makes something.
    fields: &'a [&'a str],
    of_row: F,
}

impl<'a, F: FnMut(&Value) -> Result<()>> Kept<'a, F> {
    fn all(fields: &'a [&'a str], of_row: F) -> Self {
        Self {
            limit: None,
            set_field: None,
            fields,
            of_row,
        }
    }
}

/// Rows that are made prompts of at once. There may be a million of them.
const BLOCK: usize = 4096;

/// What `of` makes of each row, in their order, on so many threads at the most.
fn by_threads<T: Send>(rows: &[Row], threads: usize, of: impl Fn(&Row) -> T + Sync) -> Result<Vec<T>> {
    /// A thread is not made for fewer.
    const FEWEST: usize = 64;
    let share = rows.len().div_ceil(threads.max(1)).max(FEWEST);
    let of = &of;
    std::thread::scope(|scope| -> Result<Vec<T>> {
        let others = rows.chunks(share).skip(1);
        let others: Vec<_> = others
            .map(|part| scope.spawn(move || part.iter().map(of).collect::<Vec<T>>()))
            .collect();
        let mut all: Vec<T> = rows.iter().take(share).map(of).collect();
        for part in others {
            let part = part.join().map_err(|_| anyhow!("a thread that reads prompts panicked"));
            all.extend(part?);
        }
        Ok(all)
    })
}

/// The prompt of a row as the model sees it.
struct Given {
    ids: Vec<u32>,
    /// Of the ids; of more than `maxLength` nobody reads it.
    text: String,
    /// Those of a chat; None for plain text.
    messages: Option<Vec<Value>>,
    /// Whether it began with BOS before the tokenizer put one there.
    began_twice: bool,
}

impl Given {
    fn of(row: &Row, wanted: &Prompts, tokenizer: &Tokenizer) -> Result<Self> {
        let chat = |messages: Vec<Value>| {
            let ids = tokenizer.encode_chat_with(&messages, true, &wanted.chat_template_variables)?;
            Ok::<_, anyhow::Error>((ids, Some(messages)))
        };
        let (ids, messages) = match fields::prompt(&row.value, &wanted.prompt_field)? {
            fields::PromptValue::Text(text) if wanted.chat_template => {
                chat(vec![serde_json::json!({"role": "user", "content": text})])?
            }
            fields::PromptValue::Text(text) => (tokenizer.encode(text, true)?, None),
            fields::PromptValue::Messages(messages) => chat(messages)?,
        };
        if ids.is_empty() {
            bail!(
                "field {:?} is an empty prompt: no tokens for the model to continue",
                wanted.prompt_field
            );
        }
        let mut given = Self {
            ids,
            text: String::new(),
            messages,
            began_twice: false,
        };
        given.drop_second_bos(tokenizer);
        if given.ids.len() <= wanted.max_length {
            given.text = tokenizer.decode(&given.ids, false)?;
        }
        Ok(given)
    }

    /// A text that was rendered before begins with BOS, and the tokenizer has put one before it: no model has seen two.
    fn drop_second_bos(&mut self, tokenizer: &Tokenizer) {
        let bos = tokenizer.bos_id().filter(|_| self.messages.is_none());
        self.began_twice = bos.is_some_and(|bos| self.ids.starts_with(&[bos, bos]));
        if self.began_twice {
            self.ids.remove(0);
        }
    }
}

#[cfg(test)]
mod tests;
