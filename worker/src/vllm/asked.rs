//! A request to generate as it arrives at the door: the fields that the door handles, those that go on to vLLM, and whether it asks for
//! too much.

use std::collections::BTreeMap;

use axum::http::HeaderMap;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use crate::rollout::generate::{check_name, name};
use crate::rollout::job::check_request_id;
use crate::rollout::listing;
use crate::rollout::prompt::Prompt;
use crate::rollout::settings::POLICY;
use crate::serving::error::ApiError;
use crate::serving::limits::Limits;
use crate::serving::values;

/// Fields as they were sent: to keep them takes no more memory than their text.
pub type Fields = BTreeMap<String, Box<RawValue>>;

/// vLLM's default length of a completion, in tokens.
const DEFAULT_TOKENS: usize = 16;
/// Bytes of a text that are taken for one token: nothing here splits it.
const TOKEN_BYTES: usize = 4;
/// Likeliest tokens where all of a vocabulary are asked for (-1): more than most models have.
const VOCABULARY: usize = 1 << 18;
/// Bytes of what a question adds, but for its prompt and its name.
const OWN_BYTES: usize = 100;

/// A request.
#[derive(Debug)]
pub struct Asked {
    /// What goes on to vLLM. With seeds it goes with each of them, less what [`Question`] adds.
    pub fields: Fields,
    /// The name that its client gave it.
    pub name: Option<String>,
    /// The model that it is for; None: the one that is served.
    model: Option<String>,
    /// A choice tells its version (completions of vLLM 0.32 and 0.33 do not).
    pub versions: bool,
    /// Token ids are part of the answer.
    pub token_ids: bool,
    /// Log-probabilities are numbers alone (our extension): vLLM labels each, and lists it again under the likeliest.
    pub bare: bool,
    /// vLLM answers with server-sent events.
    pub streams: bool,
    /// The seed of each choice (our extension).
    seeds: Option<Vec<u64>>,
    /// None: a conversation, or vectors.
    prompts: Option<Prompt>,
    is_chat: bool,
    /// Samples of each prompt.
    pub n: usize,
    /// Tokens of a response at most; None: vLLM's default.
    response: Option<usize>,
}

/// What vLLM is asked for one seed.
pub struct Question<'a> {
    fields: &'a Fields,
    prompt: OnePrompt<'a>,
    seed: u64,
    name: Option<String>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum OnePrompt<'a> {
    Text(&'a str),
    Ids(&'a [u32]),
}

impl Asked {
    /// Reads the fields of a request at `path`.
    ///
    /// # Errors
    /// 400 naming the field that is not what it has to be.
    pub fn new(mut fields: Fields, path: &str) -> Result<Self, ApiError> {
        let mut flag = |name: &str| fields.remove(name).is_some_and(|value| value.get() == "true");
        let (versions, token_ids) = (flag("return_weight_versions"), flag("return_token_ids"));
        // vLLM always decodes.
        flag("detokenize");
        let is_chat = path.ends_with("/chat/completions");
        let bare = flag("return_bare_logprobs") && !is_chat;
        let response = match whole(&fields, "max_completion_tokens")? {
            None => whole(&fields, "max_tokens")?,
            tokens => tokens,
        };
        let mut asked = Self {
            name: read(&fields, "request_id")?,
            model: read(&fields, "model")?,
            versions,
            token_ids,
            bare,
            streams: fields.get("stream").is_some_and(|value| value.get() == "true"),
            seeds: read(&fields, "seeds")?,
            prompts: if is_chat { None } else { read(&fields, "prompt")? },
            is_chat,
            n: whole(&fields, "n")?.unwrap_or(1).max(1),
            response,
            fields,
        };
        asked.fields.remove("seeds");
        if asked.seeds.is_some() {
            for name in ["prompt", "n", "seed", "request_id"] {
                asked.fields.remove(name);
            }
        }
        asked.fields.insert("model".into(), written(POLICY)?);
        let returned = written(&(token_ids || versions))?;
        asked.fields.insert("return_token_ids".into(), returned);
        Ok(asked)
    }

    /// Takes the name that the request has in its headers, else that in its body. vLLM hears of it in the body: headers do not go there.
    ///
    /// # Errors
    /// When it cannot be written as JSON.
    pub fn named_by(&mut self, headers: &HeaderMap) -> Result<(), ApiError> {
        self.name = name(headers, self.name.take());
        if let Some(name) = self.name.as_ref().filter(|_| self.seeds.is_none()) {
            self.fields.insert("request_id".into(), written(name)?);
        }
        Ok(())
    }

    /// Refuses what is asked in contradiction, or too much of, before anything waits for it. `longest` is the longest sequence in tokens.
    ///
    /// # Errors
    /// 400 naming the field; 404 for another model.
    pub fn check(&self, limits: &Limits, longest: usize) -> Result<(), ApiError> {
        check_name(POLICY, self.model.as_deref())?;
        if self.streams && self.seeds.is_some() {
            let words = "a stream has none here: ask without stream, or with seed";
            return Err(ApiError::field("seeds", words));
        }
        if self.streams && self.versions {
            let words = "a stream does not tell them here: ask without stream";
            return Err(ApiError::field("return_weight_versions", words));
        }
        self.name.as_deref().map_or(Ok(()), check_request_id)?;
        let (prompts, samples) = (self.count(), self.samples());
        limits.check_prompts(prompts)?;
        limits.check_samples(samples)?;
        if let Some(seeds) = &self.seeds {
            if prompts == 0 {
                return Err(ApiError::field("seeds", "a conversation has none here: use seed"));
            }
            if seeds.len() != samples {
                let words = format!("{} for {prompts} prompts of {} samples", seeds.len(), self.n);
                return Err(ApiError::field("seeds", words));
            }
        }
        limits.check_tokens(self.tokens(longest))?;
        self.check_listed(limits, longest)
    }

    /// Refuses an answer that would list more log-probabilities than there is memory for: it is read whole, a hundred bytes and more of each.
    /// A stream goes on as it comes.
    fn check_listed(&self, limits: &Limits, longest: usize) -> Result<(), ApiError> {
        let (of_prompts, of_responses) = self.listed_of(longest);
        let are_prompts = of_prompts > of_responses && self.echoed().is_none();
        let field = if are_prompts { "prompt_logprobs" } else { "logprobs" };
        let is_endless = self.is_chat && self.response.is_none() && !are_prompts;
        listing::check(limits, of_prompts.saturating_add(of_responses), field, is_endless)
    }

    /// Log-probabilities that its answer may list.
    pub fn listed(&self, longest: usize) -> usize {
        let (of_prompts, of_responses) = self.listed_of(longest);
        of_prompts.saturating_add(of_responses)
    }

    /// The same, of prompts and of responses. A stream goes on as it comes and has none.
    fn listed_of(&self, longest: usize) -> (usize, usize) {
        if self.streams {
            return (0, 0);
        }
        let of_prompts = number(&self.fields, "prompt_logprobs").or(self.echoed());
        // Of the answer to each seed numbers alone are kept.
        let of_responses = self.likeliest().filter(|_| !(self.bare && self.split().is_some()));
        let of_token = |top: Option<usize>| top.map_or(0, |top| top.saturating_add(1));
        let (prompts, responses) = self.lengths(longest);
        let of_prompts = prompts.saturating_mul(self.n).saturating_mul(of_token(of_prompts));
        (of_prompts, responses.saturating_mul(of_token(of_responses)))
    }

    /// Likeliest tokens beside each of a prompt that is part of the answer.
    fn echoed(&self) -> Option<usize> {
        let echoes = self.fields.get("echo").is_some_and(|echo| echo.get() == "true");
        self.likeliest().filter(|_| echoes)
    }

    /// Likeliest tokens that are listed beside each of a response; None: no log-probabilities.
    fn likeliest(&self) -> Option<usize> {
        let asked = number(&self.fields, "logprobs");
        let asked = match self.is_chat {
            true => asked.map(|_| number(&self.fields, "top_logprobs").unwrap_or(0)),
            false => asked,
        };
        let ids = self.fields.get("logprob_token_ids").map(|ids| ids.get());
        let named = ids.filter(|ids| *ids != "null").map(|ids| ids.matches(',').count() + 1);
        asked.max(named)
    }

    /// Choices of the answer.
    pub fn samples(&self) -> usize {
        self.count().max(1).saturating_mul(self.n)
    }

    /// How many questions vLLM is asked in its place, one for each seed; None: it goes on as it is.
    pub fn split(&self) -> Option<usize> {
        self.seeds.as_ref().map(Vec::len)
    }

    /// The question for the choice `index`: the samples of one prompt follow each other.
    pub fn question(&self, index: usize) -> Option<Question<'_>> {
        let prompt = index / self.n;
        Some(Question {
            fields: &self.fields,
            prompt: match self.prompts.as_ref()? {
                Prompt::Text(text) => OnePrompt::Text(text),
                Prompt::Texts(texts) => OnePrompt::Text(texts.get(prompt)?),
                Prompt::Ids(ids) => OnePrompt::Ids(ids),
                Prompt::IdLists(lists) => OnePrompt::Ids(lists.get(prompt)?),
            },
            // vLLM's seeds are signed, and -1 is none.
            seed: self.seeds.as_ref()?.get(index)? & (u64::MAX >> 1),
            name: self.name.as_ref().map(|name| format!("{name}-{index}")),
        })
    }

    /// What vLLM calls a request of the name `name` and its parts (0.32: `create_completion` in `entrypoints/openai/completion/serving.py`, and
    /// the same of chat).
    pub fn parts(&self, name: &str) -> Vec<String> {
        if self.is_chat {
            return vec![format!("chatcmpl-{name}")];
        }
        match self.split() {
            Some(questions) => (0..questions).map(|index| format!("cmpl-{name}-{index}-0")).collect(),
            None => (0..self.count()).map(|index| format!("cmpl-{name}-{index}")).collect(),
        }
    }

    /// Its length as it is sent as it is, at most.
    pub fn bytes(&self) -> usize {
        OWN_BYTES + bytes(&self.fields)
    }

    /// Prompts; a conversation has none.
    fn count(&self) -> usize {
        self.prompts.as_ref().map_or(0, Prompt::count)
    }

    /// Tokens of prompts and longest responses of all samples.
    fn tokens(&self, longest: usize) -> usize {
        let (prompts, responses) = self.lengths(longest);
        prompts.saturating_mul(self.n).saturating_add(responses)
    }

    /// Tokens of the prompts, one of each, and of the longest responses of all samples; texts are estimated.
    fn lengths(&self, longest: usize) -> (usize, usize) {
        let of_text = |text: &str| text.len().div_ceil(TOKEN_BYTES);
        let of_prompts = match &self.prompts {
            Some(Prompt::Text(text)) => of_text(text),
            Some(Prompt::Texts(texts)) => texts.iter().map(|text| of_text(text)).sum(),
            Some(Prompt::Ids(ids)) => ids.len(),
            Some(Prompt::IdLists(lists)) => lists.iter().map(Vec::len).sum(),
            None => self
                .fields
                .get("messages")
                .map_or(0, |messages| of_text(messages.get())),
        };
        let default = if self.is_chat { longest } else { DEFAULT_TOKENS };
        // What is longer than the model holds is vLLM's to refuse.
        let response = self.response.unwrap_or(default).min(longest);
        (of_prompts, response.saturating_mul(self.samples()))
    }
}

impl Question<'_> {
    /// Its length as it is sent, at most, but for texts of many characters that JSON escapes.
    pub fn bytes(&self) -> usize {
        let prompt = match self.prompt {
            OnePrompt::Text(text) => text.len(),
            // Ten digits and a comma.
            OnePrompt::Ids(ids) => 11 * ids.len(),
        };
        OWN_BYTES + bytes(self.fields) + prompt + self.name.as_ref().map_or(0, String::len)
    }
}

impl Serialize for Question<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        for (name, value) in self.fields {
            fields.serialize_entry(name, value)?;
        }
        fields.serialize_entry("prompt", &self.prompt)?;
        fields.serialize_entry("n", &1)?;
        fields.serialize_entry("seed", &self.seed)?;
        if let Some(name) = &self.name {
            fields.serialize_entry("request_id", name)?;
        }
        fields.end()
    }
}

/// Bytes of fields as they are sent.
fn bytes(fields: &Fields) -> usize {
    let fields = fields.iter();
    fields.map(|(name, value)| name.len() + value.get().len() + 4).sum()
}

/// How many likeliest tokens the field `name` asks for, which is a number, as a text too for vLLM, or true. What else it may be is vLLM's to
/// refuse.
fn number(fields: &Fields, name: &str) -> Option<usize> {
    match fields.get(name)?.get().trim_matches('"') {
        "true" => Some(0),
        text => {
            let number: f64 = text.parse().ok()?;
            Some(if number < 0.0 { VOCABULARY } else { number as usize })
        }
    }
}

/// The field `name`; None where it is absent or null.
///
/// # Errors
/// 400 naming it, when it is not what it has to be.
pub fn read<'a, T: Deserialize<'a>>(fields: &'a Fields, name: &'static str) -> Result<Option<T>, ApiError> {
    let Some(value) = fields.get(name) else { return Ok(None) };
    serde_json::from_str(value.get()).map_err(|error| ApiError::field(name, error))
}

/// The field `name`, a number without a fraction; None where it is absent or null.
fn whole(fields: &Fields, name: &'static str) -> Result<Option<usize>, ApiError> {
    let Some(value) = fields.get(name) else { return Ok(None) };
    let number = values::whole(&mut serde_json::Deserializer::from_str(value.get()));
    number.map_err(|error| ApiError::field(name, error))
}

fn written(value: &(impl Serialize + ?Sized)) -> Result<Box<RawValue>, ApiError> {
    to_raw_value(value).map_err(ApiError::internal)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const COMPLETIONS: &str = "/v1/completions";
    const CHAT: &str = "/v1/chat/completions";

    fn asked_at(path: &str, fields: Value) -> Result<Asked, ApiError> {
        Asked::new(serde_json::from_str(&fields.to_string()).unwrap(), path)
    }

    fn asked(fields: Value) -> Asked {
        asked_at(COMPLETIONS, fields).unwrap()
    }

    fn questions(asked: &Asked) -> Vec<Value> {
        let questions = (0..asked.split().unwrap()).map(|index| json!(asked.question(index).unwrap()));
        questions.collect()
    }

    /// The field that is refused, within the usual limits and a longest sequence of 4096 tokens.
    fn refused(path: &str, fields: Value) -> Option<ApiError> {
        let checked = asked_at(path, fields).and_then(|asked| asked.check(&Limits::default(), 4096));
        checked.err()
    }

    #[test]
    fn each_seed_is_a_question_of_its_own_with_its_prompt_and_all_other_fields() {
        let asked = asked(json!({
            "prompt": [[1, 2], [3]], "n": 2, "max_tokens": 4, "request_id": "v3-7", "seeds": [5, 6, u64::MAX, 8],
            "logit_bias": {"5": 1.5},
        }));
        let question = |prompt: Value, seed: i64, name: &str| {
            json!({"prompt": prompt, "n": 1, "max_tokens": 4, "request_id": name, "seed": seed,
                   "logit_bias": {"5": 1.5}, "model": POLICY, "return_token_ids": false})
        };
        assert_eq!(
            questions(&asked),
            [
                question(json!([1, 2]), 5, "v3-7-0"),
                question(json!([1, 2]), 6, "v3-7-1"),
                question(json!([3]), i64::MAX, "v3-7-2"),
                question(json!([3]), 8, "v3-7-3"),
            ]
        );
        for index in 0..4 {
            let question = asked.question(index).unwrap();
            assert!(question.bytes() >= serde_json::to_string(&question).unwrap().len());
        }
    }

    #[test]
    fn numbers_are_as_whole_as_for_vllm() {
        let asked = asked(json!({"prompt": [1], "n": 3.0, "max_tokens": 4.0}));
        assert_eq!((asked.n, asked.response), (3, Some(4)));
        let error = asked_at(COMPLETIONS, json!({"prompt": [1], "n": 1.5})).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("n"));
    }

    #[test]
    fn the_name_in_the_headers_is_the_requests_whatever_its_body_says() {
        let mut headers = HeaderMap::new();
        headers.insert("x-request-id", "of-header".parse().unwrap());
        let named = |fields: Value| {
            let mut asked = asked(fields);
            asked.named_by(&headers).unwrap();
            asked
        };
        let one = named(json!({"prompt": [1]}));
        assert_eq!(one.name.as_deref(), Some("of-header"));
        assert_eq!(json!(one.fields)["request_id"], "of-header");
        let own = named(json!({"prompt": [1], "request_id": "of-body"}));
        assert_eq!(json!(own.fields)["request_id"], "of-header");
        let split = named(json!({"prompt": [1], "seeds": [5]}));
        assert_eq!(questions(&split)[0]["request_id"], "of-header-0");
    }

    #[test]
    fn another_model_is_not_found_and_the_served_one_may_be_left_out() {
        for path in [COMPLETIONS, CHAT] {
            let error = refused(path, json!({"prompt": [1], "messages": [], "model": "gpt-4"})).unwrap();
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (404, Some("model")));
            for model in [json!(POLICY), json!(""), json!(null)] {
                assert_eq!(
                    refused(path, json!({"prompt": [1], "messages": [], "model": model})),
                    None
                );
            }
        }
    }

    #[test]
    fn one_prompt_of_ids_or_of_text_is_one_prompt() {
        for prompt in [json!([1, 2, 3]), json!("abc")] {
            let one = json!({"prompt": prompt, "seeds": [1]});
            assert_eq!(questions(&asked(one.clone()))[0]["prompt"], prompt);
            assert!(refused(COMPLETIONS, one).is_none());
            let two = refused(COMPLETIONS, json!({"prompt": prompt, "seeds": [1, 2]}));
            assert_eq!(two.unwrap().param.as_deref(), Some("seeds"), "two seeds for one choice");
        }
    }

    #[test]
    fn a_request_is_known_by_the_names_that_vllm_makes_of_its_own() {
        let prompts = json!({"prompt": [[1, 2], [3]]});
        assert_eq!(asked(prompts).parts("r"), ["cmpl-r-0", "cmpl-r-1"]);
        let seeds = json!({"prompt": [[1, 2], [3]], "seeds": [7, 8]});
        assert_eq!(asked(seeds).parts("r"), ["cmpl-r-0-0", "cmpl-r-1-0"]);
        let chat = asked_at(CHAT, json!({"messages": []})).unwrap();
        assert_eq!(chat.parts("r"), ["chatcmpl-r"]);
    }

    #[test]
    fn what_only_we_understand_does_not_reach_vllm() {
        let asked = asked(json!({
            "return_weight_versions": true, "return_bare_logprobs": true, "detokenize": false, "model": "m",
            "prompt": "a", "seeds": null,
        }));
        assert_eq!(
            json!(asked.fields),
            json!({"model": POLICY, "prompt": "a", "return_token_ids": true})
        );
        assert!(asked.versions && asked.bare && !asked.token_ids && asked.split().is_none());
    }

    #[test]
    fn a_request_for_too_much_is_refused_by_name() {
        for (path, fields, param) in [
            (COMPLETIONS, json!({"prompt": vec![[1]; 1025]}), Some("prompt")),
            (COMPLETIONS, json!({"prompt": [[1], [2]], "n": 8193}), Some("n")),
            (COMPLETIONS, json!({"prompt": [1], "n": u64::MAX}), Some("n")),
            (COMPLETIONS, json!({"prompt": [1], "n": "2"}), Some("n")),
            (CHAT, json!({"messages": [], "n": 16_385}), Some("n")),
            (CHAT, json!({"messages": [], "seeds": [1]}), Some("seeds")),
            (
                COMPLETIONS,
                json!({"prompt": "a", "seeds": [1], "stream": true}),
                Some("seeds"),
            ),
            (
                COMPLETIONS,
                json!({"prompt": "a", "request_id": "r".repeat(1025)}),
                Some("request_id"),
            ),
            // 16384 samples of 4096 tokens and their prompts are more than 64 Mi tokens.
            (
                COMPLETIONS,
                json!({"prompt": [1], "n": 16_384, "max_tokens": u32::MAX}),
                None,
            ),
            (CHAT, json!({"messages": [{"role": "user"}], "n": 16_384}), None),
            (COMPLETIONS, json!({"prompt": "a".repeat(40_000), "n": 8192}), None),
        ] {
            let error = refused(path, fields);
            let named = error.as_ref().map(|error| error.param.as_deref());
            assert_eq!(named, Some(param), "{error:?}");
        }
        for (path, fields) in [
            (COMPLETIONS, json!({"prompt": vec![[1]; 1024], "n": 16})),
            (COMPLETIONS, json!({"prompt": [1], "n": 16_384, "max_tokens": 4000})),
            (CHAT, json!({"messages": [{"role": "user"}], "n": 8})),
        ] {
            assert_eq!(refused(path, fields), None);
        }
    }
    #[test]
    fn an_answer_lists_no_more_log_probabilities_than_it_may_unless_it_comes_in_pieces_or_is_numbers_alone() {
        let (long, seeds) = (vec![1; 4000], (0..400).collect::<Vec<u64>>());
        let many = json!({"prompt": [1], "n": 400, "max_tokens": 4000, "logprobs": 5});
        let with = |name: &str, value: Value| {
            let mut fields = many.clone();
            fields[name] = value;
            fields
        };
        for (path, fields, param) in [
            (COMPLETIONS, many.clone(), "logprobs"),
            (COMPLETIONS, with("seeds", json!(seeds)), "logprobs"),
            (COMPLETIONS, with("logprobs", json!("5")), "logprobs"),
            (
                COMPLETIONS,
                json!({"prompt": [1], "max_tokens": 40, "logprobs": -1}),
                "logprobs",
            ),
            (
                COMPLETIONS,
                json!({"prompt": long, "n": 100, "max_tokens": 1, "logprobs": 20, "echo": true}),
                "logprobs",
            ),
            (
                COMPLETIONS,
                json!({"prompt": long, "n": 100, "max_tokens": 1, "prompt_logprobs": 20}),
                "prompt_logprobs",
            ),
            (
                CHAT,
                json!({"messages": [], "n": 400, "max_tokens": 4000, "logprobs": true, "top_logprobs": 5}),
                "logprobs",
            ),
            (
                CHAT,
                json!({"messages": [], "n": 400, "max_tokens": 4000, "logprobs": true, "logprob_token_ids": [1, 2, 3, 4, 5]}),
                "logprobs",
            ),
        ] {
            let error = refused(path, fields.clone()).unwrap();
            assert_eq!(error.param.as_deref(), Some(param), "{error}");
            assert!(
                error.message.contains("log-probabilities, at most 8388608: ask"),
                "{error}"
            );
            let mut streamed = fields;
            streamed["stream"] = json!(true);
            streamed["seeds"] = json!(null);
            assert_eq!(refused(path, streamed), None);
        }
        let mut numbers = with("seeds", json!(seeds));
        numbers["return_bare_logprobs"] = json!(true);
        assert_eq!(refused(COMPLETIONS, numbers), None);
        assert_eq!(refused(COMPLETIONS, with("logprobs", json!(null))), None);
        let endless = json!({"messages": [], "n": 400, "logprobs": true, "top_logprobs": 5});
        let error = refused(CHAT, endless).unwrap();
        assert!(error.message.contains("at most 8388608: set max_tokens"), "{error}");
    }
}
