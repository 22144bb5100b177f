//! Fields that would change the answer and that this server does not support. Ignoring them would silently give another answer than
//! was asked for.

use super::given::Given;
use super::protocol::GenerateRequest;
use crate::serving::error::ApiError;

/// A field, whether a request asks for what this server does not do by it, and why not or what to do.
type Refused = (&'static str, fn(&GenerateRequest) -> bool, &'static str);

/// Refused whatever they ask for.
const GIVEN: &[Refused] = &[
    (
        "suffix",
        |it| given(it.suffix),
        "filling in before a suffix is not supported",
    ),
    (
        "logit_bias",
        |it| given(it.logit_bias),
        "a bias on logits is not supported",
    ),
    (
        "structured_outputs",
        |it| given(it.structured_outputs),
        "only text is generated",
    ),
    ("guided_json", |it| given(it.guided_json), "only text is generated"),
    ("guided_regex", |it| given(it.guided_regex), "only text is generated"),
    ("guided_choice", |it| given(it.guided_choice), "only text is generated"),
    (
        "guided_grammar",
        |it| given(it.guided_grammar),
        "only text is generated",
    ),
    (
        "structural_tag",
        |it| given(it.structural_tag),
        "only text is generated",
    ),
    (
        "prompt_embeds",
        |it| given(it.prompt_embeds),
        "a prompt is text or token ids",
    ),
    (
        "logits_processors",
        |it| given(it.logits_processors),
        "code on logits is not supported",
    ),
    (
        "vllm_xargs",
        |it| given(it.vllm_xargs),
        "vLLM's plugins are not supported",
    ),
    (
        "bad_words",
        |it| given(it.bad_words),
        "forbidden words are not supported",
    ),
    (
        "media_io_kwargs",
        |it| given(it.media_io_kwargs),
        "messages are text alone",
    ),
    (
        "mm_processor_kwargs",
        |it| given(it.mm_processor_kwargs),
        "messages are text alone",
    ),
    (
        "allowed_token_ids",
        |it| it.allowed_token_ids.is_some(),
        "a choice of tokens is not supported",
    ),
    (
        "repetition_detection",
        |it| given(it.repetition_detection),
        "repetition ends no response here",
    ),
    (
        "logprob_token_ids",
        |it| given(it.logprob_token_ids),
        "log-probabilities are of the drawn and the likeliest tokens",
    ),
];

/// Refused but for the one value that changes nothing.
const NOT_NEUTRAL: &[Refused] = &[
    (
        "best_of",
        |it| it.best_of.is_some_and(|best_of| best_of != it.n.unwrap_or(1)),
        "every sample is returned: ask for n",
    ),
    (
        "cache_salt",
        |it| it.cache_salt.as_deref() == Some(""),
        "is empty: give a text, or leave it out",
    ),
    (
        "presence_penalty",
        |it| other_than(it.presence_penalty, 0.0),
        "penalties are not supported",
    ),
    (
        "frequency_penalty",
        |it| other_than(it.frequency_penalty, 0.0),
        "penalties are not supported",
    ),
    (
        "repetition_penalty",
        |it| other_than(it.repetition_penalty, 1.0),
        "penalties are not supported",
    ),
    (
        "length_penalty",
        |it| other_than(it.length_penalty, 1.0),
        "penalties are not supported",
    ),
    ("response_format", is_formatted, "only text is generated"),
    (
        "use_beam_search",
        |it| it.use_beam_search == Some(true),
        "beam search is not supported",
    ),
    (
        "thinking_token_budget",
        |it| it.thinking_token_budget.is_some_and(|budget| budget != -1),
        "thinking is not told from other text: max_tokens bounds both",
    ),
    (
        "return_prompt_text",
        |it| it.return_prompt_text == Some(true),
        "the prompt's text is not told here: /tokenize gives its ids, and /detokenize their text",
    ),
    (
        "watermarking",
        |it| it.watermarking == Some(true),
        "watermarks are not supported",
    ),
];

/// What would be read from an answer. As in a vLLM without a parser of tools, a template may tell the model of some.
const CALLS: &[Refused] = &[
    (
        "tools",
        calls_tools,
        "calls are not read from the text: with tool_choice \"none\" the template gets the tools, and the calls are \
         yours to read",
    ),
    (
        "tool_choice",
        |it| forces(it.tool_choice),
        "calls are not read from the text",
    ),
    (
        "function_call",
        |it| forces(it.function_call),
        "calls are not read from the text",
    ),
];

/// What would change how a conversation becomes a prompt.
const CONVERSATION: &[Refused] = &[
    ("functions", |it| given(it.functions), "give tools"),
    (
        "chat_template",
        |it| given(it.chat_template),
        "the model's own template is used: render your own and send it to /v1/completions",
    ),
];

/// # Errors
/// 400 naming the first field that asks for something this server does not do.
pub fn check(request: &GenerateRequest) -> Result<(), ApiError> {
    first(request, GIVEN)?;
    first(request, NOT_NEUTRAL)?;
    first(request, CALLS)?;
    check_conversation(request)
}

/// # Errors
/// 400 naming the first field that would change how a conversation becomes a prompt.
pub fn check_conversation(request: &GenerateRequest) -> Result<(), ApiError> {
    first(request, CONVERSATION)
}

fn first(request: &GenerateRequest, fields: &[Refused]) -> Result<(), ApiError> {
    match fields.iter().find(|(_, is_refused, _)| is_refused(request)) {
        Some(&(name, _, why)) => Err(ApiError::field(name, why)),
        None => Ok(()),
    }
}

fn given(field: Given) -> bool {
    field != Given::Nothing
}

fn calls_tools(request: &GenerateRequest) -> bool {
    let tools = request.tools.as_ref();
    tools.is_some_and(|tools| tools.as_array().is_none_or(|tools| !tools.is_empty()))
        && request.tool_choice != Given::NoChoice
}

/// Without tools a choice of any, or of none, means what happens here.
fn forces(choice: Given) -> bool {
    choice == Given::Something
}

fn other_than(value: Option<f64>, neutral: f64) -> bool {
    value.is_some_and(|value| value != neutral)
}

fn is_formatted(request: &GenerateRequest) -> bool {
    let format = request.response_format.as_ref();
    format.is_some_and(|format| format.kind.as_deref() != Some("text"))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_would_change_the_answer_is_refused_by_name_and_its_harmless_values_are_not() {
        let checked = |name: &str, value: Value| {
            let request = serde_json::from_value(json!({name: value})).unwrap();
            check(&request).map_err(|error| error.param)
        };
        for (name, wrong, harmless) in [
            ("structured_outputs", json!({"regex": "a"}), json!({})),
            ("guided_json", json!({"type": "object"}), json!(null)),
            ("guided_regex", json!("a+"), json!("")),
            ("guided_choice", json!(["a"]), json!([])),
            ("guided_grammar", json!("root ::= a"), json!(null)),
            ("structural_tag", json!("{\"structures\": []}"), json!(null)),
            ("prompt_embeds", json!("AAAA"), json!(null)),
            ("logits_processors", json!(["a.b"]), json!([])),
            ("length_penalty", json!(1.2), json!(1.0)),
            ("vllm_xargs", json!({"a": 1}), json!({})),
            ("tools", json!([{}]), json!([])),
            ("tool_choice", json!("required"), json!("auto")),
            ("tool_choice", json!({"type": "function"}), json!("none")),
            ("functions", json!([{}]), json!([])),
            ("function_call", json!({"name": "a"}), json!("auto")),
            ("chat_template", json!("{{ messages }}"), json!(null)),
            (
                "repetition_detection",
                json!({"max_pattern_size": 4, "min_count": 3}),
                json!(null),
            ),
            ("thinking_token_budget", json!(0), json!(-1)),
            ("logprob_token_ids", json!([5]), json!(null)),
            ("watermarking", json!(true), json!(false)),
            ("return_prompt_text", json!(true), json!(false)),
            ("media_io_kwargs", json!({"image": {}}), json!({})),
            ("mm_processor_kwargs", json!({"a": 1}), json!({})),
            (
                "response_format",
                json!({"type": "json_object"}),
                json!({"type": "text"}),
            ),
            ("bad_words", json!(["a"]), json!([])),
            ("allowed_token_ids", json!([]), json!(null)),
            ("suffix", json!("a"), json!("")),
            ("cache_salt", json!(""), json!("a")),
            ("logit_bias", json!({"5": 1}), json!({})),
        ] {
            assert_eq!(checked(name, wrong), Err(Some(Cow::Borrowed(name))));
            assert_eq!(checked(name, harmless), Ok(()), "{name}");
            assert_eq!(checked(name, Value::Null), Ok(()), "{name}");
        }
    }

    #[test]
    fn tools_may_be_told_to_the_model_where_no_call_is_to_be_read_and_in_a_prompt_that_is_only_made() {
        let asked = |choice: Value| -> GenerateRequest {
            serde_json::from_value(json!({"tools": [{}], "tool_choice": choice})).unwrap()
        };
        assert_eq!(check(&asked(json!("none"))), Ok(()));
        for choice in [json!(null), json!("auto"), json!("required")] {
            let error = check(&asked(choice.clone())).unwrap_err();
            assert!(error.message.contains("with tool_choice \"none\""), "{choice}: {error}");
            assert_eq!(check_conversation(&asked(choice)), Ok(()));
        }
    }
}
