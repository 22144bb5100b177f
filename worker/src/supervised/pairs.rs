//! Rows of a data file as samples whose response is the target.

use std::path::Path;

use anyhow::{Context, anyhow, ensure};
use ppo_crds::run_config::Prompts;

use super::config::SftData;
use crate::data::{Label, PromptSet};
use crate::engine::request::FinishReason;
use crate::stages::Sample;
use crate::tokenizer::Tokenizer;

/// Reads the pairs of `path`; each response ends with EOS.
///
/// # Errors
/// A row that does not fit, with file, line and field.
pub fn read(path: &Path, data: &SftData, tokenizer: &Tokenizer) -> anyhow::Result<Vec<Sample>> {
    // A response is to a pair what a label is to a prompt.
    let wanted = Prompts {
        path: path.to_owned(),
        prompt_field: data.prompt_field.clone(),
        label_field: Some(data.response_field.clone()),
        chat_template: data.chat_template,
        chat_template_variables: Default::default(),
        max_length: data.max_length,
        shuffle: false,
    };
    let eos = tokenizer.require_eos().context("no response can be ended")?;
    let pairs = PromptSet::load(&wanted, tokenizer)?.prompts;
    pairs
        .into_iter()
        .map(|prompt| {
            let field = || format!("{}: {}: field {:?}", path.display(), prompt.place, data.response_field);
            let text = prompt.label.as_ref().map(Label::text).transpose();
            let text = text
                .map_err(|wrong| anyhow!("{} {wrong}", field()))?
                .unwrap_or_default();
            ensure!(!text.is_empty(), "{} is empty", field());
            let mut response = tokenizer.encode(&text, false)?;
            response.push(eos);
            Ok(Sample {
                group: prompt.index as i64,
                rollout_logprobs: vec![0.0; response.len()],
                versions: Vec::new(),
                response,
                prompt,
                finish_reason: FinishReason::Stop,
            })
        })
        .collect()
}
