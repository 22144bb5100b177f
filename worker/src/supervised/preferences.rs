//! Rows of data files as pairs of a better and a worse response to one prompt.

use std::path::Path;

use anyhow::Result;

use super::config::PreferenceData;
use super::pairs::{Wanted, answered};
use crate::data::Prompt;
use crate::model::ModelConfig;
use crate::tokenizer::Tokenizer;

/// Two whole sequences: the prompt with the better response, and with the worse one. Both end with EOS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preference {
    /// The better one.
    pub chosen: Vec<u32>,
    /// The worse one.
    pub rejected: Vec<u32>,
}

/// Reads the pairs of `path` for `model`. Rows whose two responses are one are dropped, counted and warned about, too.
///
/// # Errors
/// As [`answered`].
pub fn read(path: &Path, data: &PreferenceData, tokenizer: &Tokenizer, model: &ModelConfig) -> Result<Vec<Preference>> {
    let wanted = Wanted {
        path,
        prompt_field: &data.prompt_field,
        response_fields: [&data.chosen_field, &data.rejected_field],
        chat_template: data.chat_template,
        chat_template_variables: &data.chat_template_variables,
        max_length: data.max_length,
    };
    let rows = answered(&wanted, tokenizer, model)?.into_iter();
    let preference = |(prompt, responses): (Prompt, [Vec<u32>; 2])| {
        let [chosen, rejected] = responses.map(|response| [&prompt.ids[..], &response].concat());
        Preference { chosen, rejected }
    };
    Ok(rows.map(preference).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn preferences(rows: &[[&str; 3]]) -> Result<Vec<Preference>> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pairs.jsonl");
        let line = |[prompt, chosen, rejected]: &[&str; 3]| {
            json!({"prompt": prompt, "chosen": chosen, "rejected": rejected}).to_string()
        };
        std::fs::write(&file, rows.iter().map(line).collect::<Vec<_>>().join("\n")).unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let tokenizer = Tokenizer::load(&fixtures.join("tokenizer/chatml")).unwrap();
        let model = ModelConfig::read(&fixtures.join("llama")).unwrap();
        let data: PreferenceData = serde_json::from_value(json!({"path": &file})).unwrap();
        read(&file, &data, &tokenizer, &model)
    }

    #[test]
    fn a_row_without_a_better_response_is_dropped_and_the_others_keep_their_own() {
        // Token 67 is `a`, token 90 `x`.
        let rows = [
            ["a", "a", "x"],
            ["a", "x", "x"],
            ["x", "x", "a"],
            ["a", "", "x"],
            ["a", "x", "a"],
        ];
        let read = preferences(&rows).unwrap();
        let wanted = [
            ([67, 67, 2], [67, 90, 2]),
            ([90, 90, 2], [90, 67, 2]),
            ([67, 90, 2], [67, 67, 2]),
        ];
        let wanted = wanted.map(|(chosen, rejected)| Preference {
            chosen: chosen.into(),
            rejected: rejected.into(),
        });
        assert_eq!(read, wanted);
    }

    #[test]
    fn rows_of_which_none_is_left_are_refused_with_the_place_of_the_first() {
        let refused = format!("{:#}", preferences(&[["a", "x", "x"], ["a", "a", "a"]]).unwrap_err());
        for words in [
            "pairs.jsonl: 2 of 2 rows dropped",
            "pairs.jsonl: line 1: the better and the worse response are the same",
        ] {
            assert!(refused.contains(words), "{refused}");
        }
    }
}
