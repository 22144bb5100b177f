//! Rows of data files as samples whose response is the target.

use std::borrow::Cow;
use std::path::Path;

use anyhow::{Context, anyhow, bail, ensure};
use ppo_crds::run_config::Prompts;
use serde_json::Value;

use super::config::SftData;
use crate::data::{Label, PromptSet};
use crate::engine::request::FinishReason;
use crate::model::ModelConfig;
use crate::stages::Sample;
use crate::tokenizer::Tokenizer;

/// Reads the pairs of `path` for `model`. Each response ends with EOS, or with the end token that its text has already.
///
/// # Errors
/// A row that does not fit, with file, line and field. A token that the model does not have would end the training at
/// whichever step or evaluation it came in; places beyond its context would be learnt, and no engine uses them.
pub fn read(path: &Path, data: &SftData, tokenizer: &Tokenizer, model: &ModelConfig) -> anyhow::Result<Vec<Sample>> {
    // A response is to a pair what a label is to a prompt.
    let wanted = Prompts {
        path: path.to_owned().into(),
        prompt_field: data.prompt_field.clone(),
        label_field: Some(data.response_field.clone()),
        chat_template: data.chat_template,
        chat_template_variables: Default::default(),
        max_length: data.max_length,
        shuffle: false,
    };
    let eos = tokenizer.require_eos().context("no response can be ended")?;
    let vocabulary = model.vocab;
    let pairs = PromptSet::load(&wanted, tokenizer)?.prompts.into_iter();
    let samples = pairs
        .map(|prompt| {
            let field = || format!("{}: field {:?}", prompt.place, data.response_field);
            let text = prompt
                .label
                .as_ref()
                .map(|label| answer(label, prompt.messages.as_deref()));
            let text = text.transpose().map_err(|wrong| anyhow!("{} {wrong}", field()))?;
            let text = text.unwrap_or_default();
            ensure!(!text.is_empty(), "{} is empty", field());
            let mut response = tokenizer.encode(&text, false)?;
            if response.last().is_none_or(|last| !tokenizer.eos_ids().contains(last)) {
                response.push(eos);
            }
            let mut tokens = prompt.ids.iter().chain(&response);
            if let Some(id) = tokens.find(|id| i64::from(**id) >= vocabulary) {
                bail!(
                    "{}: it has token {id}, and the model's vocabulary {vocabulary} tokens, from 0: the tokenizer \
                     in its folder is of another model",
                    prompt.place
                );
            }
            Ok(Sample {
                group: prompt.index as i64,
                rollout_logprobs: vec![0.0; response.len()],
                versions: Vec::new(),
                response,
                prompt,
                finish_reason: FinishReason::Stop,
            })
        })
        .collect::<anyhow::Result<Vec<Sample>>>()?;
    refuse_too_long(&samples, model.max_positions)?;
    Ok(samples)
}

/// The text of a response, which may be a list of messages that ends with it, the prompt's own before it or none: so `chosen` and `rejected`
/// of many data sets of preferences have it.
fn answer<'a>(response: &'a Label, prompt: Option<&[Value]>) -> Result<Cow<'a, str>, String> {
    let Value::Array(messages) = response.value() else {
        return response.text();
    };
    let last = messages.split_last().filter(|(last, _)| last["role"] == "assistant");
    let answer = last.and_then(|(last, before)| Some((last["content"].as_str()?, before)));
    let Some((text, before)) = answer else {
        return Err("is a list, want a text, or messages of which the last is a text of the assistant's".to_owned());
    };
    let same = |(a, b): (&Value, &Value)| a["role"] == b["role"] && a["content"] == b["content"];
    let is_prompt = |prompt: &[Value]| prompt.len() == before.len() && prompt.iter().zip(before).all(same);
    match (before, prompt) {
        ([], _) => Ok(text.into()),
        (_, Some(prompt)) if is_prompt(prompt) => Ok(text.into()),
        (_, Some(_)) => Err("has other messages before the last one than the prompt".to_owned()),
        (_, None) => {
            Err("has messages before the last one, and the prompt is plain text: set chatTemplate to true".to_owned())
        }
    }
}

fn refuse_too_long(samples: &[Sample], most: usize) -> anyhow::Result<()> {
    let mut too_long = samples.iter().filter(|sample| sample.length() > most);
    let Some(first) = too_long.next() else {
        return Ok(());
    };
    bail!(
        "{}: prompt and response have {} tokens, the model's context (max_position_embeddings) {most}; {} of {} rows are \
         longer than that: shorten them or leave them out",
        first.prompt.place,
        first.length(),
        1 + too_long.count(),
        samples.len()
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The pairs of these rows, for a model that `change` has changed.
    fn pairs(rows: &[[&str; 2]], change: impl FnOnce(&mut ModelConfig)) -> anyhow::Result<Vec<Sample>> {
        let rows: Vec<[Value; 2]> = rows.iter().map(|row| row.map(Value::from)).collect();
        pairs_of(&rows, false, change)
    }

    /// The same of rows of any values, with or without the chat template.
    fn pairs_of(
        rows: &[[Value; 2]],
        chat_template: bool,
        change: impl FnOnce(&mut ModelConfig),
    ) -> anyhow::Result<Vec<Sample>> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pairs.jsonl");
        let lines = rows
            .iter()
            .map(|[prompt, response]| json!({"prompt": prompt, "response": response}).to_string());
        std::fs::write(&file, lines.collect::<Vec<_>>().join("\n")).unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let tokenizer = Tokenizer::load(&fixtures.join("tokenizer/chatml")).unwrap();
        let mut model = ModelConfig::read(&fixtures.join("llama")).unwrap();
        change(&mut model);
        let data: SftData = serde_json::from_value(json!({"path": &file, "chatTemplate": chat_template})).unwrap();
        read(&file, &data, &tokenizer, &model)
    }

    fn turn(role: &str, content: &str) -> Value {
        json!({"role": role, "content": content})
    }

    #[test]
    fn a_response_may_be_messages_of_which_the_last_is_the_assistants() {
        let (user, answer) = (turn("user", "a"), turn("assistant", "x"));
        let rows = [
            [json!("a"), json!("x")],
            [json!("a"), json!([user, answer])],
            [json!([user]), json!([user, answer])],
            [json!([user]), json!([answer])],
        ];
        let pairs = pairs_of(&rows, true, |model| (model.vocab, model.max_positions) = (1000, 1000)).unwrap();
        for pair in &pairs[1..] {
            assert_eq!(
                (&pair.prompt.ids, &pair.response),
                (&pairs[0].prompt.ids, &pairs[0].response)
            );
        }
        assert_eq!(pairs[0].response, [90, 2]);
    }

    #[test]
    fn messages_that_are_no_response_to_the_prompt_are_refused_by_their_place_and_field() {
        let (user, answer) = (turn("user", "a"), turn("assistant", "x"));
        for (chat_template, response, words) in [
            (true, json!([]), "is a list, want a text, or messages"),
            (true, json!([answer, user]), "is a list, want a text, or messages"),
            (true, json!(["x"]), "is a list, want a text, or messages"),
            (
                true,
                json!([turn("user", "b"), answer]),
                "has other messages before the last one than the prompt",
            ),
            (
                false,
                json!([user, answer]),
                "has messages before the last one, and the prompt is plain text: set chatTemplate to true",
            ),
        ] {
            let refused = pairs_of(&[[json!("a"), response]], chat_template, |_| ());
            let refused = format!("{:#}", refused.unwrap_err());
            let words = format!("pairs.jsonl: line 1: field \"response\" {words}");
            assert!(refused.contains(&words), "{refused}");
        }
    }

    #[test]
    fn a_row_with_a_token_that_the_model_lacks_is_refused_by_its_place_before_any_step() {
        // Token 67 is `a`, token 90 `x`.
        let pairs = |vocabulary| pairs(&[["a", "a"], ["a", "x"]], |model| model.vocab = vocabulary);
        assert_eq!(pairs(91).unwrap()[1].response, [90, 2]);
        let refused = format!("{:#}", pairs(90).unwrap_err());
        assert!(
            refused.contains("pairs.jsonl: line 2: it has token 90, and the model's vocabulary 90 tokens"),
            "{refused}"
        );
    }

    #[test]
    fn a_row_longer_than_the_models_context_is_refused_by_its_place_before_any_step() {
        let rows = [["a", "a"], ["a", "xa"], ["a", "a"], ["x", "ax"]];
        let pairs = |most| pairs(&rows, |model| model.max_positions = most);
        assert_eq!(pairs(4).unwrap()[1].length(), 4);
        let refused = format!("{:#}", pairs(3).unwrap_err());
        let words = "pairs.jsonl: line 2: prompt and response have 4 tokens, the model's context (max_position_embeddings) 3; \
                     2 of 4 rows are longer";
        assert!(refused.contains(words), "{refused}");
    }

    #[test]
    fn the_pairs_of_a_folder_are_those_of_its_files_and_a_bad_one_is_named_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let tokenizer = Tokenizer::load(&fixtures.join("tokenizer/chatml")).unwrap();
        let model = ModelConfig::read(&fixtures.join("llama")).unwrap();
        let data: SftData = serde_json::from_value(json!({"path": folder.path()})).unwrap();
        let pairs_with = |name: &str, response: &str| {
            let line = json!({"prompt": "a", "response": response}).to_string();
            std::fs::write(folder.path().join(name), line).unwrap();
            read(folder.path(), &data, &tokenizer, &model)
        };
        pairs_with("a.jsonl", "x").unwrap();
        assert_eq!(pairs_with("b.jsonl", "a").unwrap().len(), 2);
        let refused = pairs_with("c.jsonl", "").unwrap_err().to_string();
        assert!(
            refused.contains("c.jsonl: line 1: field \"response\" is empty"),
            "{refused}"
        );
    }

    #[test]
    fn a_response_that_ends_with_the_end_token_gets_no_second_one() {
        let pairs = pairs(&[["a", "x"], ["a", "x<|im_end|>"]], |_| ()).unwrap();
        assert!(pairs.iter().all(|pair| pair.response == [90, 2]), "{pairs:?}");
    }
}
