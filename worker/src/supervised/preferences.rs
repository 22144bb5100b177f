//! Rows of data files as pairs of a better and a worse response to one prompt.

use std::path::Path;

use anyhow::{Result, ensure};

use super::config::{PreferenceData, SftData};
use super::pairs;
use crate::model::ModelConfig;
use crate::stages::Sample;
use crate::tokenizer::Tokenizer;

/// Two whole sequences: the prompt with the better response, and with the worse one. Both end with EOS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preference {
    /// The better one.
    pub chosen: Vec<u32>,
    /// The worse one.
    pub rejected: Vec<u32>,
}

/// Reads the pairs of `path` for `model`.
///
/// # Errors
/// A row that does not fit, with file, line and field.
pub fn read(path: &Path, data: &PreferenceData, tokenizer: &Tokenizer, model: &ModelConfig) -> Result<Vec<Preference>> {
    let read = |response_field: &str| {
        let data = SftData {
            path: data.path.clone(),
            prompt_field: data.prompt_field.clone(),
            response_field: response_field.to_owned(),
            chat_template: data.chat_template,
            max_length: data.max_length,
        };
        pairs::read(path, &data, tokenizer, model)
    };
    let (chosen, rejected) = (read(&data.chosen_field)?, read(&data.rejected_field)?);
    chosen.into_iter().zip(rejected).map(preference).collect()
}

fn preference((chosen, rejected): (Sample, Sample)) -> Result<Preference> {
    ensure!(
        chosen.response != rejected.response,
        "{}: the better and the worse response are the same",
        chosen.prompt.place
    );
    Ok(Preference {
        chosen: chosen.tokens(),
        rejected: rejected.tokens(),
    })
}
