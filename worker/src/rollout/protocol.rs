//! What clients send: OpenAI's fields, vLLM's additions (`vllm/entrypoints/openai/completion/protocol.py`), and ours
//! (`seeds`, `return_bare_logprobs`). Fields that are not listed are passed over, as vLLM does; those that would change the answer and that this
//! server does not know are refused ([`refused`](super::refused)).

use std::fmt;

use serde::de::{self, IgnoredAny, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::given::Given;
use super::prompt::Prompt;
use super::truncate::Side;
use crate::serving::limits::MOST_STOPS;
use crate::serving::values;

/// A request of `/v1/completions` or `/v1/chat/completions`; `/tokenize` reads the fields of both that make a prompt.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct GenerateRequest {
    /// Must be the served name where given.
    pub model: Option<String>,
    /// Completions: what to go on from.
    pub prompt: Option<Prompt>,
    /// Chat: what was said.
    #[serde(deserialize_with = "values::messages")]
    pub messages: Option<Vec<Value>>,
    /// Chat: end the prompt where the assistant's answer begins. Default true.
    pub add_generation_prompt: Option<bool>,
    /// Chat: variables for the template, an object.
    #[serde(deserialize_with = "values::bounded")]
    pub chat_template_kwargs: Option<Value>,
    /// Chat: functions that the template tells the model of. What it calls is left in the text.
    #[serde(deserialize_with = "values::bounded")]
    pub tools: Option<Value>,
    /// Chat: texts for the template.
    #[serde(deserialize_with = "values::bounded")]
    pub documents: Option<Value>,
    /// Chat: how much to think, for the template.
    pub reasoning_effort: Option<String>,
    /// Chat: go on with the last message.
    pub continue_final_message: Option<bool>,
    /// Tokens that a prompt is shortened to; -1 is as many as fit beside the longest response.
    #[serde(deserialize_with = "values::whole")]
    pub truncate_prompt_tokens: Option<i64>,
    /// Where it is cut then.
    pub truncation_side: Option<Side>,
    /// Put the model's own tokens around a text. Default true, for chat false: the template writes them.
    pub add_special_tokens: Option<bool>,
    /// Samples of each prompt.
    #[serde(deserialize_with = "values::whole")]
    pub n: Option<usize>,
    /// Tokens of a response. Default 16; for chat what the context holds.
    #[serde(deserialize_with = "values::whole")]
    pub max_tokens: Option<usize>,
    /// The newer name of `max_tokens`.
    #[serde(deserialize_with = "values::whole")]
    pub max_completion_tokens: Option<usize>,
    /// Tokens before which nothing ends a response.
    #[serde(deserialize_with = "values::whole")]
    pub min_tokens: Option<usize>,
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// Smallest set of tokens that reaches this probability.
    pub top_p: Option<f32>,
    /// So many likeliest tokens; 0 and -1 keep all.
    #[serde(deserialize_with = "values::whole")]
    pub top_k: Option<i64>,
    /// Tokens this likely relative to the likeliest.
    pub min_p: Option<f32>,
    /// Sample i of each prompt draws with seed + i. -1 is none, as in vLLM (`SamplingParams.__post_init__`).
    #[serde(deserialize_with = "seed_or_none")]
    pub seed: Option<Seed>,
    /// One seed for each sample, in order of the choices. A sample depends on prompt, parameters, weights and its seed alone.
    #[serde(deserialize_with = "whole_list")]
    pub seeds: Option<Vec<Seed>>,
    /// Strings that end a response.
    pub stop: Option<Stop>,
    /// Tokens that end a response, beside the model's own.
    #[serde(deserialize_with = "whole_list")]
    pub stop_token_ids: Option<Vec<u32>>,
    /// The model's own end tokens end nothing. Before `min_tokens` none of them is drawn all the same.
    pub ignore_eos: Option<bool>,
    /// Show what ended the response.
    pub include_stop_str_in_output: Option<bool>,
    /// Leave special tokens out of the text. Default true.
    pub skip_special_tokens: Option<bool>,
    /// Completions: how many likeliest tokens to list. Chat: whether to give log-probabilities.
    #[serde(deserialize_with = "values::whole")]
    pub logprobs: Option<Logprobs>,
    /// Chat: how many likeliest tokens to list.
    #[serde(deserialize_with = "values::whole")]
    pub top_logprobs: Option<usize>,
    /// Log-probabilities of the prompt's tokens, with so many of the likeliest ones.
    #[serde(deserialize_with = "values::whole")]
    pub prompt_logprobs: Option<i64>,
    /// Answer as server-sent events.
    pub stream: Option<bool>,
    /// What a stream tells beside text.
    pub stream_options: Option<StreamOptions>,
    /// False: no text, which spares its cost to those who read token ids (vLLM's sampling parameter of that name).
    pub detokenize: Option<bool>,
    /// Give the ids of prompt and response.
    pub return_token_ids: Option<bool>,
    /// Write tokens as `token_id:<id>` in log-probabilities.
    pub return_tokens_as_token_ids: Option<bool>,
    /// Completions: give `logprobs.token_logprobs` alone, to those who read token ids: no labels, no likeliest tokens, no offsets (ours).
    pub return_bare_logprobs: Option<bool>,
    /// Give the weight version of every span of tokens.
    pub return_weight_versions: Option<bool>,
    /// `/tokenize`: give the tokens' names too.
    pub return_token_strs: Option<bool>,
    /// Name of the request, for `/abort_requests`.
    pub request_id: Option<String>,
    /// Completions: begin with the prompt; with `max_tokens` 0 that is all.
    pub echo: Option<bool>,

    /// Which request goes first; here it is first come, first served.
    #[serde(deserialize_with = "values::whole")]
    pub priority: Option<i64>,

    // Known, and refused where they would change the answer.
    /// Text after the completion.
    pub suffix: Given,
    /// Keeps prompts apart that a cache of prefixes would share; here none outlives a request.
    pub cache_salt: Option<String>,
    /// Draw more than are returned.
    #[serde(deserialize_with = "values::whole")]
    pub best_of: Option<usize>,
    /// Against tokens that occurred.
    pub presence_penalty: Option<f64>,
    /// Against tokens that occurred often.
    pub frequency_penalty: Option<f64>,
    /// Against tokens that occurred; 1 is none.
    pub repetition_penalty: Option<f64>,
    /// Added to logits.
    pub logit_bias: Given,
    /// JSON and the like.
    pub response_format: Option<ResponseFormat>,
    /// Grammars and the like.
    pub structured_outputs: Given,
    /// As `structured_outputs`, in older words.
    pub guided_json: Given,
    /// As `structured_outputs`, in older words.
    pub guided_regex: Given,
    /// As `structured_outputs`, in older words.
    pub guided_choice: Given,
    /// As `structured_outputs`, in older words.
    pub guided_grammar: Given,
    /// As `structured_outputs`, in older words.
    pub structural_tag: Given,
    /// Chat: which tools the model has to call.
    pub tool_choice: Given,
    /// Chat: `tools` in older words.
    pub functions: Given,
    /// Chat: `tool_choice` in older words.
    pub function_call: Given,
    /// Chat: another template.
    pub chat_template: Given,
    /// Chat: give the text that the template made.
    pub return_prompt_text: Option<bool>,
    /// Chat: how pictures and the like are read.
    pub media_io_kwargs: Given,
    /// Chat: what is made of them.
    pub mm_processor_kwargs: Given,
    /// Vectors in the place of a prompt.
    pub prompt_embeds: Given,
    /// Code that changes logits.
    pub logits_processors: Given,
    /// Of beam search; 1 is none.
    pub length_penalty: Option<f64>,
    /// For vLLM's plugins.
    pub vllm_xargs: Given,
    /// Beam search.
    pub use_beam_search: Option<bool>,
    /// Words that may not occur.
    pub bad_words: Given,
    /// Tokens that alone may be drawn.
    pub allowed_token_ids: Option<IgnoredAny>,
    /// End a response that repeats itself.
    pub repetition_detection: Given,
    /// Tokens of thinking; -1 is any number.
    #[serde(deserialize_with = "values::whole")]
    pub thinking_token_budget: Option<i64>,
    /// Tokens whose log-probabilities are listed at each place.
    pub logprob_token_ids: Given,
    /// Mark the text as generated.
    pub watermarking: Option<bool>,
}

impl GenerateRequest {
    /// Tokens of a response at most, where they are asked for.
    pub fn response_tokens(&self) -> Option<usize> {
        self.max_completion_tokens.or(self.max_tokens)
    }
}

/// A seed: any 64-bit number, signed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of(&serde_json::Number::deserialize(deserializer)?)
    }
}

impl Seed {
    fn of<E: serde::de::Error>(number: &serde_json::Number) -> Result<Self, E> {
        // Negative seeds are as good as any: their bits count.
        let seed = number.as_u64().or_else(|| number.as_i64().map(|seed| seed as u64));
        seed.map(Self)
            .ok_or_else(|| E::custom(format!("{number} is no seed: want a whole number of 64 bits")))
    }
}

fn seed_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Seed>, D::Error> {
    let number: Option<serde_json::Number> = values::whole(deserializer)?;
    let number = number.filter(|number| number.as_i64() != Some(-1));
    number.as_ref().map(Seed::of).transpose()
}

/// A list whose elements are each read as [`values::whole`] reads a field.
fn whole_list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<Vec<T>>, D::Error> {
    let list: Option<Vec<WholeNumber<T>>> = Option::deserialize(deserializer)?;
    Ok(list.map(|list| list.into_iter().map(|WholeNumber(number)| number).collect()))
}

/// A whole number, read as [`values::whole`] reads a field.
#[derive(Debug)]
pub struct WholeNumber<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for WholeNumber<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number: Option<T> = values::whole(deserializer)?;
        number
            .map(Self)
            .ok_or_else(|| de::Error::invalid_type(Unexpected::Unit, &"a whole number"))
    }
}

/// One stop string or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

// By hand and not `#[serde(untagged)]`, whose errors do not name what fits, and which keeps a copy of everything many times as large as the
// text.
impl<'de> Deserialize<'de> for Stop {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;
        impl<'de> Visitor<'de> for Whole {
            type Value = Stop;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a text or a list of texts")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Stop, E> {
                Ok(Stop::One(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Stop, A::Error> {
                let mut stops = Vec::new();
                while let Some(stop) = list.next_element()? {
                    if stops.len() == MOST_STOPS {
                        return Err(de::Error::custom(format!("more than {MOST_STOPS} strings")));
                    }
                    stops.push(stop);
                }
                Ok(Stop::Many(stops))
            }
        }
        deserializer.deserialize_any(Whole)
    }
}

/// What an answer is written in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ResponseFormat {
    /// `text`, or what this server does not do.
    #[serde(rename = "type")]
    pub kind: Option<String>,
}

/// A number for completions, a flag for chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logprobs {
    /// Chat.
    Flag(bool),
    /// Completions.
    Count(usize),
}

impl<'de> Deserialize<'de> for Logprobs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Logprobs;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("true, false or a number of likeliest tokens")
            }

            fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Logprobs, E> {
                Ok(Logprobs::Flag(flag))
            }

            fn visit_u64<E: de::Error>(self, count: u64) -> Result<Logprobs, E> {
                let read = usize::try_from(count).map(Logprobs::Count);
                read.map_err(|_| E::invalid_value(Unexpected::Unsigned(count), &self))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// What a stream tells beside text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StreamOptions {
    /// End with the counts of tokens.
    pub include_usage: Option<bool>,
    /// With `include_usage`: every piece counts the tokens of its choice so far.
    pub continuous_usage_stats: Option<bool>,
}

#[cfg(test)]
mod tests;
