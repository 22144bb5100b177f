//! Fields that would change the answer and that this server does not know. Passing them over would give another answer than
//! was asked for, without a word.

use super::given::Given;
use super::protocol::GenerateRequest;
use crate::serving::error::ApiError;

/// # Errors
/// 400 naming the first field that asks for something this server does not do.
pub fn check(request: &GenerateRequest) -> Result<(), ApiError> {
    let other_than = |value: Option<f64>, neutral: f64| value.is_some_and(|value| value != neutral);
    let format = request.response_format.as_ref();
    let plain_format = format.is_none_or(|format| format.kind.as_deref() == Some("text"));
    let refused = [
        (
            "echo",
            request.echo == Some(true),
            "the prompt is not repeated: you have it, and prompt_logprobs gives its log-probabilities",
        ),
        (
            "suffix",
            given(request.suffix),
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
            given(request.logit_bias),
            "a bias on logits is not supported",
        ),
        ("response_format", !plain_format, "only text is generated"),
        (
            "structured_outputs",
            given(request.structured_outputs),
            "only text is generated",
        ),
        ("guided_json", given(request.guided_json), "only text is generated"),
        ("guided_regex", given(request.guided_regex), "only text is generated"),
        ("guided_choice", given(request.guided_choice), "only text is generated"),
        (
            "guided_grammar",
            given(request.guided_grammar),
            "only text is generated",
        ),
        (
            "prompt_embeds",
            given(request.prompt_embeds),
            "a prompt is text or token ids",
        ),
        (
            "logits_processors",
            given(request.logits_processors),
            "code on logits is not supported",
        ),
        (
            "length_penalty",
            other_than(request.length_penalty, 1.0),
            "penalties are not supported",
        ),
        (
            "vllm_xargs",
            given(request.vllm_xargs),
            "vLLM's plugins are not supported",
        ),
        (
            "use_beam_search",
            request.use_beam_search == Some(true),
            "beam search is not supported",
        ),
        (
            "bad_words",
            given(request.bad_words),
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
        (
            "repetition_detection",
            given(request.repetition_detection),
            "repetition ends no response here",
        ),
        (
            "thinking_token_budget",
            request.thinking_token_budget.is_some_and(|budget| budget != -1),
            "thinking is not told from other text: max_tokens bounds both",
        ),
        (
            "logprob_token_ids",
            given(request.logprob_token_ids),
            "log-probabilities are of the drawn and the likeliest tokens",
        ),
        (
            "watermarking",
            request.watermarking == Some(true),
            "watermarks are not supported",
        ),
    ];
    first(refused)?;
    ChatFields {
        tools: request.tools,
        tool_choice: request.tool_choice,
        functions: request.functions,
        function_call: request.function_call,
        chat_template: request.chat_template,
        continue_final_message: request.continue_final_message,
        documents: request.documents,
        reasoning_effort: request.reasoning_effort,
    }
    .check()
}

/// What would change how a conversation becomes a prompt.
pub struct ChatFields {
    /// Functions the model may call.
    pub tools: Given,
    /// Which of them it has to.
    pub tool_choice: Given,
    /// `tools` in older words.
    pub functions: Given,
    /// `tool_choice` in older words.
    pub function_call: Given,
    /// Another template.
    pub chat_template: Given,
    /// Go on with the last message.
    pub continue_final_message: Given,
    /// Texts for the template.
    pub documents: Given,
    /// How long to think.
    pub reasoning_effort: Given,
}

impl ChatFields {
    /// # Errors
    /// 400 naming the first one that is given.
    pub fn check(&self) -> Result<(), ApiError> {
        // Without tools both mean what happens here.
        let forces = |field: Given| field == Given::Something;
        first([
            ("tools", given(self.tools), "tools are not supported"),
            ("tool_choice", forces(self.tool_choice), "tools are not supported"),
            ("functions", given(self.functions), "tools are not supported"),
            ("function_call", forces(self.function_call), "tools are not supported"),
            (
                "chat_template",
                given(self.chat_template),
                "the model's own template is used: render your own and send it to /v1/completions",
            ),
            (
                "continue_final_message",
                given(self.continue_final_message),
                "render the conversation and send it to /v1/completions",
            ),
            (
                "documents",
                given(self.documents),
                "a template that knows documents gets them in chat_template_kwargs",
            ),
            (
                "reasoning_effort",
                given(self.reasoning_effort),
                "a template that knows it gets it in chat_template_kwargs",
            ),
        ])
    }
}

fn first<const N: usize>(fields: [(&'static str, bool, &'static str); N]) -> Result<(), ApiError> {
    match fields.into_iter().find(|(_, is_set, _)| *is_set) {
        Some((name, _, why)) => Err(ApiError::field(name, why)),
        None => Ok(()),
    }
}

fn given(field: Given) -> bool {
    field != Given::Nothing
}

#[cfg(test)]
mod tests {
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
            ("continue_final_message", json!(true), json!(false)),
            ("documents", json!([{"text": "a"}]), json!([])),
            ("reasoning_effort", json!("low"), json!(null)),
            (
                "repetition_detection",
                json!({"max_pattern_size": 4, "min_count": 3}),
                json!(null),
            ),
            ("thinking_token_budget", json!(0), json!(-1)),
            ("logprob_token_ids", json!([5]), json!(null)),
            ("watermarking", json!(true), json!(false)),
            (
                "response_format",
                json!({"type": "json_object"}),
                json!({"type": "text"}),
            ),
            ("bad_words", json!(["a"]), json!([])),
            ("allowed_token_ids", json!([]), json!(null)),
            ("suffix", json!("a"), json!("")),
            ("logit_bias", json!({"5": 1}), json!({})),
        ] {
            assert_eq!(checked(name, wrong), Err(Some(name)));
            assert_eq!(checked(name, harmless), Ok(()), "{name}");
            assert_eq!(checked(name, Value::Null), Ok(()), "{name}");
        }
    }
}
