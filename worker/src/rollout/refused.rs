//! Fields that would change the answer and that this server does not know. Passing them over would give another answer than
//! was asked for, without a word.

use serde_json::Value;

use super::error::ApiError;
use super::protocol::GenerateRequest;

/// # Errors
/// 400 naming the first field that asks for something this server does not do.
pub fn check(request: &GenerateRequest) -> Result<(), ApiError> {
    let given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !is_empty(value));
    let other_than = |value: Option<f64>, neutral: f64| value.is_some_and(|value| value != neutral);
    let plain_format = request
        .response_format
        .as_ref()
        .is_none_or(|format| format.get("type").and_then(Value::as_str) == Some("text"));
    let refused = [
        (
            "echo",
            request.echo == Some(true),
            "the prompt is not repeated: you have it, and prompt_logprobs gives its log-probabilities",
        ),
        (
            "suffix",
            given(&request.suffix),
            "filling in before a suffix is not supported",
        ),
        (
            "best_of",
            request.best_of.is_some_and(|best_of| best_of != request.n.unwrap_or(1)),
            "every sample is returned: ask for n",
        ),
        (
            "presence_penalty",
            other_than(request.presence_penalty, 0.0),
            "penalties are not supported",
        ),
        (
            "frequency_penalty",
            other_than(request.frequency_penalty, 0.0),
            "penalties are not supported",
        ),
        (
            "repetition_penalty",
            other_than(request.repetition_penalty, 1.0),
            "penalties are not supported",
        ),
        (
            "logit_bias",
            given(&request.logit_bias),
            "a bias on logits is not supported",
        ),
        ("response_format", !plain_format, "only text is generated"),
        (
            "structured_outputs",
            given(&request.structured_outputs),
            "only text is generated",
        ),
        (
            "tools",
            request.tools.as_ref().is_some_and(|tools| !tools.is_empty()),
            "tools are not supported",
        ),
        (
            "use_beam_search",
            request.use_beam_search == Some(true),
            "beam search is not supported",
        ),
        (
            "bad_words",
            request.bad_words.as_ref().is_some_and(|words| !words.is_empty()),
            "forbidden words are not supported",
        ),
        (
            "allowed_token_ids",
            request.allowed_token_ids.is_some(),
            "a choice of tokens is not supported",
        ),
        (
            "truncate_prompt_tokens",
            request.truncate_prompt_tokens.is_some(),
            "shorten the prompt before you send it",
        ),
    ];
    match refused.into_iter().find(|(_, is_set, _)| *is_set) {
        Some((name, _, why)) => Err(ApiError::field(name, why)),
        None => Ok(()),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}
