//! Rows of data files as samples whose response is the target.

use std::borrow::Cow;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use ppo_crds::run_config::Prompts;
use serde_json::{Map, Value, json};

use super::config::SftData;
use crate::data::{Label, Place, Prompt, PromptSet};
use crate::engine::request::FinishReason;
use crate::model::ModelConfig;
use crate::stages::Sample;
use crate::tokenizer::Tokenizer;

/// What is read of each row: a prompt, and so many responses to it.
pub(super) struct Wanted<'a, const N: usize> {
    pub(super) path: &'a Path,
    pub(super) prompt_field: &'a str,
    pub(super) response_fields: [&'a str; N],
    pub(super) chat_template: bool,
    pub(super) chat_template_variables: &'a Map<String, Value>,
    pub(super) max_length: usize,
}

/// Reads the pairs of `path` for `model`.
///
/// # Errors
/// As [`answered`].
pub fn read(path: &Path, data: &SftData, tokenizer: &Tokenizer, model: &ModelConfig) -> Result<Vec<Sample>> {
    let wanted = Wanted {
        path,
        prompt_field: &data.prompt_field,
        response_fields: [&data.response_field],
        chat_template: data.chat_template,
        chat_template_variables: &data.chat_template_variables,
        max_length: data.max_length,
    };
    let rows = answered(&wanted, tokenizer, model)?.into_iter();
    let sample = |(prompt, [response]): (Prompt, [Vec<u32>; 1])| Sample {
        group: prompt.index as i64,
        rollout_logprobs: vec![0.0; response.len()],
        versions: Vec::new(),
        response,
        prompt,
        finish_reason: FinishReason::Stop,
    };
    Ok(rows.map(sample).collect())
}

/// The prompts of some rows with the responses to each, for `model`. A response ends with EOS, or with the end token that its text has
/// already. Rows of which nothing can be learnt are dropped, counted and warned about.
///
/// # Errors
/// A row that does not fit, with file, line and field. A token that the model does not have would end the training at
/// whichever step or evaluation it came in; places beyond its context would be learnt, and no engine uses them. Also when no row is left.
pub(super) fn answered<const N: usize>(
    wanted: &Wanted<'_, N>,
    tokenizer: &Tokenizer,
    model: &ModelConfig,
) -> Result<Vec<(Prompt, [Vec<u32>; N])>> {
    let prompts = Prompts {
        path: wanted.path.to_owned().into(),
        prompt_field: wanted.prompt_field.to_owned(),
        label_field: None,
        chat_template: wanted.chat_template,
        chat_template_variables: wanted.chat_template_variables.clone(),
        max_length: wanted.max_length,
        shuffle: false,
    };
    let reader = Reader {
        tokenizer,
        variables: wanted.chat_template_variables,
        eos: tokenizer.require_eos().context("no response can be ended")?,
        vocabulary: model.vocab,
    };
    let (set, values) = PromptSet::load_with(&prompts, wanted.response_fields, tokenizer)?;
    let (mut rows, mut dropped) = (Vec::new(), Dropped::default());
    for (prompt, values) in set.prompts.into_iter().zip(values) {
        match reader.responses(&prompt, wanted.response_fields, &values)? {
            Ok(responses) => rows.push((prompt, responses)),
            Err(why) => dropped.add(&prompt.place, &why),
        }
    }
    if let Some(words) = dropped.words(rows.len()) {
        let path = wanted.path.display();
        match rows.is_empty() {
            true => bail!("{path}: {words}"),
            false => tracing::warn!(files = %path, dropped = dropped.count, kept = rows.len(), "{words}"),
        }
    }
    refuse_too_long(&rows, model.max_positions)?;
    Ok(rows)
}

/// Rows of which nothing can be learnt.
#[derive(Debug, Default)]
struct Dropped {
    count: usize,
    /// Where the first one is, and why.
    first: String,
}

impl Dropped {
    fn add(&mut self, place: &Place, why: &str) {
        if self.count == 0 {
            self.first = format!("{place}: {why}");
        }
        self.count += 1;
    }

    /// What is said of them where `kept` rows are left; None without one.
    fn words(&self, kept: usize) -> Option<String> {
        let Self { count, first } = self;
        let all = count + kept;
        (*count > 0)
            .then(|| format!("{count} of {all} rows dropped: nothing can be learnt of them; the first is {first}"))
    }
}

/// Why nothing can be learnt of a row.
type Unusable = String;

/// Makes token ids of responses.
struct Reader<'a> {
    tokenizer: &'a Tokenizer,
    /// Of the chat template.
    variables: &'a Map<String, Value>,
    eos: u32,
    vocabulary: i64,
}

impl Reader<'_> {
    fn responses<const N: usize>(
        &self,
        prompt: &Prompt,
        fields: [&str; N],
        values: &[Option<Label>; N],
    ) -> Result<Result<[Vec<u32>; N], Unusable>> {
        let mut responses = [const { Vec::new() }; N];
        for (response, (field, value)) in responses.iter_mut().zip(fields.into_iter().zip(values)) {
            match self.response(prompt, field, value.as_ref())? {
                Ok(ids) => *response = ids,
                Err(why) => return Ok(Err(why)),
            }
        }
        if N > 1 && responses.windows(2).all(|two| two[0] == two[1]) {
            return Ok(Err("the better and the worse response are the same".to_owned()));
        }
        Ok(Ok(responses))
    }

    fn response(&self, prompt: &Prompt, field: &str, value: Option<&Label>) -> Result<Result<Vec<u32>, Unusable>> {
        let messages = prompt.messages.as_deref();
        let text = value.map(|value| answer(value, messages)).transpose();
        let text = text.map_err(|wrong| anyhow!("{}: field {field:?} {wrong}", prompt.place))?;
        let text = text.unwrap_or_default();
        if text.is_empty() {
            return Ok(Err(format!("field {field:?} is empty")));
        }
        if messages.is_none() && self.repeats(prompt, &text)? {
            return Ok(Err(format!(
                "field {field:?} begins with the whole prompt, which the model would learn to say again: leave only the response in it"
            )));
        }
        let mut response = self.encode(&text, messages)?;
        if response
            .last()
            .is_none_or(|last| !self.tokenizer.eos_ids().contains(last))
        {
            response.push(self.eos);
        }
        let vocabulary = self.vocabulary;
        let mut tokens = prompt.ids.iter().chain(&response);
        if let Some(id) = tokens.find(|id| i64::from(**id) >= vocabulary) {
            bail!(
                "{}: it has token {id}, and the model's vocabulary {vocabulary} tokens, from 0: the tokenizer \
                 in its folder is of another model",
                prompt.place
            );
        }
        Ok(Ok(response))
    }

    /// Whether `text` is the prompt and its response, as `chosen` of HH-RLHF is. A prompt of one word may well begin its response.
    fn repeats(&self, prompt: &Prompt, text: &str) -> Result<bool> {
        let visible = self.tokenizer.decode(&prompt.ids, true)?;
        let goes_on = |whole: &str| text.len() > whole.len() && text.starts_with(whole);
        Ok(visible.trim().contains(char::is_whitespace) && (goes_on(&visible) || goes_on(&prompt.text)))
    }

    /// Token ids of a response as they stand behind its prompt. The space that some tokenizers put before a text is there only where the
    /// chat template writes it, as Llama 2's does.
    fn encode(&self, text: &str, messages: Option<&[Value]>) -> Result<Vec<u32>> {
        let space = match messages {
            Some(messages) if self.tokenizer.puts_space()? => self.space_before(text, messages),
            _ => String::new(),
        };
        self.tokenizer.encode_behind(&format!("{space}{text}"))
    }

    /// The spaces that the chat template writes between its prompt and an answer to it. None where it refuses an answer, or writes more.
    fn space_before(&self, text: &str, messages: &[Value]) -> String {
        let turn = json!({"role": "assistant", "content": text});
        let whole: Vec<Value> = messages.iter().cloned().chain([turn]).collect();
        let render = |messages: &[Value], asks| {
            let rendered = self.tokenizer.render_chat_with(messages, asks, self.variables);
            rendered.ok()
        };
        let rest = render(messages, true)
            .zip(render(&whole, false))
            .and_then(|(begun, whole)| Some(whole.strip_prefix(&begun)?.to_owned()));
        let rest = rest.unwrap_or_default();
        let behind = rest.trim_start_matches(' ');
        match !text.starts_with(' ') && behind.starts_with(text.trim()) {
            true => rest[..rest.len() - behind.len()].to_owned(),
            false => String::new(),
        }
    }
}

/// What a chat template writes of an answer besides its content.
const BESIDE: [&str; 5] = [
    "tool_calls",
    "function_call",
    "reasoning_content",
    "reasoning",
    "thinking",
];

fn says_something(value: &Value) -> bool {
    !(value.is_null() || value == "" || value.as_array().is_some_and(Vec::is_empty))
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
    let last = &messages[before.len()];
    if let Some(field) = BESIDE.into_iter().find(|field| says_something(&last[*field])) {
        return Err(format!(
            "has {field:?} beside the content of its last message, which would not be learnt: write it into the content, as the model writes it"
        ));
    }
    // A prompt's message of calls alone has an empty text.
    let said = |message: &Value| Some(message["content"].clone()).filter(says_something);
    let same = |(a, b): (&Value, &Value)| a["role"] == b["role"] && said(a) == said(b);
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

fn refuse_too_long<const N: usize>(rows: &[(Prompt, [Vec<u32>; N])], most: usize) -> Result<()> {
    let length = |(prompt, responses): &(Prompt, [Vec<u32>; N])| {
        let longest = responses.iter().map(Vec::len).max().unwrap_or_default();
        prompt.ids.len() + longest
    };
    let mut too_long = rows.iter().filter(|row| length(row) > most);
    let Some(first) = too_long.next() else {
        return Ok(());
    };
    bail!(
        "{}: prompt and response have {} tokens, the model's context (max_position_embeddings) {most}; {} of {} rows are \
         longer than that: shorten them or leave them out",
        first.0.place,
        length(first),
        1 + too_long.count(),
        rows.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::At;

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
            // As Parquet has it, where other rows have calls.
            [
                json!([user]),
                json!([{"role": "assistant", "content": "x", "tool_calls": null, "reasoning_content": null}]),
            ],
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
                json!([{"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}]),
                "has \"tool_calls\" beside the content of its last message",
            ),
            (
                true,
                json!([{"role": "assistant", "content": "x", "reasoning_content": "y"}]),
                "has \"reasoning_content\" beside the content of its last message",
            ),
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
        std::fs::write(
            folder.path().join("c.jsonl"),
            json!({"prompt": "a", "response": []}).to_string(),
        )
        .unwrap();
        let refused = read(folder.path(), &data, &tokenizer, &model).unwrap_err().to_string();
        assert!(
            refused.contains("c.jsonl: line 1: field \"response\" is a list"),
            "{refused}"
        );
    }

    #[test]
    fn a_response_that_ends_with_the_end_token_gets_no_second_one() {
        let pairs = pairs(&[["a", "x"], ["a", "x<|im_end|>"]], |_| ()).unwrap();
        assert!(pairs.iter().all(|pair| pair.response == [90, 2]), "{pairs:?}");
    }

    /// What is said of the rows that were dropped, and the prompts of the others.
    fn dropped(responses: [&str; 5]) -> (Option<String>, Vec<usize>) {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let tokenizer = Tokenizer::load(&fixtures.join("tokenizer/chatml")).unwrap();
        let variables = Map::new();
        let reader = Reader {
            variables: &variables,
            tokenizer: &tokenizer,
            eos: 2,
            vocabulary: 400,
        };
        let (mut said, mut kept) = (Dropped::default(), Vec::new());
        for (index, response) in responses.into_iter().enumerate() {
            let ids = tokenizer.encode("What is it?", true).unwrap();
            let prompt = Prompt {
                text: "What is it?".into(),
                ids: ids.into(),
                place: At::line(index).in_file(&"a.jsonl".into()),
                ..Prompt::default()
            };
            match reader
                .response(&prompt, "response", Some(&Label::from(response)))
                .unwrap()
            {
                Ok(_) => kept.push(index),
                Err(why) => said.add(&prompt.place, &why),
            }
        }
        (said.words(kept.len()), kept)
    }

    #[test]
    fn rows_without_a_response_are_dropped_and_counted_in_one_warning_with_the_place_of_the_first() {
        let (said, kept) = dropped(["a", "", "x", "", "xa"]);
        assert_eq!(kept, [0, 2, 4]);
        assert_eq!(
            said.unwrap(),
            "2 of 5 rows dropped: nothing can be learnt of them; the first is a.jsonl: line 2: field \"response\" is empty"
        );
        assert_eq!(dropped(["a"; 5]).0, None);
        let rows = [["a", "x"], ["a", ""], ["a", "a"], ["a", ""], ["a", "xa"]];
        let pairs = pairs(&rows, |_| ()).unwrap();
        let responses: Vec<&[u32]> = pairs.iter().map(|pair| &pair.response[..1]).collect();
        assert_eq!(responses, [[90], [67], [90]]);
    }

    #[test]
    fn rows_of_which_none_is_left_are_refused_with_what_the_first_one_lacks() {
        let refused = format!("{:#}", pairs(&[["a", ""], ["x", ""]], |_| ()).unwrap_err());
        for words in [
            "pairs.jsonl: 2 of 2 rows dropped: nothing can be learnt of them; the first is ",
            "pairs.jsonl: line 1: field \"response\" is empty",
        ] {
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn a_response_that_begins_with_its_whole_prompt_is_dropped_with_its_field_and_one_that_only_echoes_it_is_not() {
        let (said, kept) = dropped(["What is it? x", "x", "What is it?", "What is x", "What is it?\nx"]);
        assert_eq!(kept, [1, 2, 3]);
        let words = "2 of 5 rows dropped: nothing can be learnt of them; the first is a.jsonl: line 1: field \"response\" begins with the whole prompt";
        assert!(said.as_ref().unwrap().starts_with(words), "{said:?}");
        // One word may begin its own answer, and a chat may repeat the question.
        let count = |prompt: &str, response: &str, chat_template| {
            let large = |model: &mut ModelConfig| (model.vocab, model.max_positions) = (1000, 1000);
            let pairs = pairs_of(&[[json!(prompt), json!(response)]], chat_template, large);
            pairs.map(|pairs| pairs.len()).ok()
        };
        assert_eq!(count("a", "a x", false), Some(1));
        assert_eq!(count("a x", "a x is a", true), Some(1));
        assert_eq!(count("a x", "a x is a", false), None);
    }

    /// The text of each pair under the tokenizer of `family`, without its end.
    fn texts(family: &str, rows: &[[&str; 2]], chat_template: bool) -> Vec<String> {
        texts_with(family, rows, &json!({"chatTemplate": chat_template}))
    }

    fn texts_with(family: &str, rows: &[[&str; 2]], data: &Value) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pairs.jsonl");
        let lines = rows
            .iter()
            .map(|[prompt, response]| json!({"prompt": prompt, "response": response}).to_string());
        std::fs::write(&file, lines.collect::<Vec<_>>().join("\n")).unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let tokenizer = Tokenizer::load(&fixtures.join("tokenizer").join(family)).unwrap();
        let mut model = ModelConfig::read(&fixtures.join("llama")).unwrap();
        (model.vocab, model.max_positions) = (1000, 1000);
        let mut data = data.clone();
        data["path"] = json!(&file);
        let data: SftData = serde_json::from_value(data).unwrap();
        let pairs = read(&file, &data, &tokenizer, &model).unwrap();
        let whole = pairs
            .iter()
            .map(|pair| [&pair.prompt.ids[..], &pair.response[..pair.response.len() - 1]].concat());
        whole.map(|ids| tokenizer.decode(&ids, false).unwrap()).collect()
    }

    #[test]
    fn prompt_and_response_are_the_text_of_both_whatever_the_tokenizer_puts_before_a_text() {
        let rows = [
            ["What is it?", "the"],
            ["What is", " the"],
            ["2+2=", "42"],
            ["What is", "\nthe"],
        ];
        for (family, begins) in [("llama2", "<s> "), ("chatml", ""), ("llama3", "<|begin_of_text|>")] {
            let wanted = rows.map(|[prompt, response]| format!("{begins}{prompt}{response}"));
            assert_eq!(texts(family, &rows, false), wanted, "{family}");
        }
    }

    #[test]
    fn a_space_that_the_chat_template_writes_before_an_answer_is_kept() {
        let llama2 = texts("llama2", &[["Hi", "the"], ["Hi", " the"]], true);
        assert!(
            llama2.iter().all(|text| text.ends_with("[INST] Hi [/INST]\n the")),
            "{llama2:?}"
        );
        let chatml = texts("chatml", &[["Hi", "the"]], true);
        assert!(chatml[0].ends_with("assistant\nthe"), "{chatml:?}");
    }
    #[test]
    fn the_chat_template_gets_the_variables_of_the_data_as_that_of_a_job_gets_them() {
        let thinks = |variables: &Value| {
            let data = json!({"chatTemplate": true, "chatTemplateVariables": variables});
            texts_with("qwen3", &[["Hi", "the"]], &data)
        };
        let (without, with) = (thinks(&json!({"enable_thinking": false})), thinks(&json!({})));
        // What the fixture's template writes then.
        assert!(without[0].ends_with("assistant\nxthe"), "{without:?}");
        assert!(with[0].ends_with("assistant\nthe"), "{with:?}");
    }
}
