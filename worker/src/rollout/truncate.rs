//! Prompts that are shortened to a number of tokens (`truncate_prompt_tokens`), as vLLM does it (`TokenizeParams` in
//! `vllm/renderers/params.py`).

use serde::Deserialize;

use super::protocol::GenerateRequest;
use crate::serving::error::ApiError;

/// Where a prompt is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The last tokens stay, as vLLM has it where nothing is said.
    Left,
    /// The first ones stay.
    Right,
}

/// Where the texts of a request are cut that are longer than any number of tokens that the context holds. None: they are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut(Option<Side>);

impl Cut {
    /// As the request wants it: what it shortens anyway may be cut before it is split.
    pub fn of(asked: &GenerateRequest) -> Self {
        let side = asked.truncation_side.unwrap_or(Side::Left);
        Self(asked.truncate_prompt_tokens.map(|_| side))
    }

    /// Whether the text has at most `most` bytes, or could be cut to them.
    pub fn shortens(self, text: &mut String, most: usize) -> bool {
        let surplus = text.len().saturating_sub(most);
        match self.0 {
            _ if surplus == 0 => {}
            None => return false,
            Some(Side::Left) => drop(text.drain(..text.ceil_char_boundary(surplus))),
            Some(Side::Right) => text.truncate(text.floor_char_boundary(most)),
        }
        true
    }
}

/// The prompts of a request with no more tokens than it wants. `context` is the longest sequence, prompt and response; where as many are
/// wanted as fit, those of a longest `response` stay free. (vLLM 0.32 leaves one free, `max_truncation_tokens` there: what is too long is
/// answered with one token.)
///
/// # Errors
/// 400 when it wants none, or more than the context holds.
pub fn shortened(
    asked: &GenerateRequest,
    context: usize,
    response: usize,
    mut prompts: Vec<Vec<u32>>,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let Some(wanted) = asked.truncate_prompt_tokens else {
        return Ok(prompts);
    };
    let most = match wanted {
        // A response has a token at least, and so has a prompt: one that asks for more than the context is refused for that.
        -1 => Some(context.saturating_sub(response.max(1)).max(1)),
        wanted => usize::try_from(wanted).ok().filter(|most| (1..=context).contains(most)),
    };
    let most = most.ok_or_else(|| {
        let words = format!("{wanted} is neither -1, for as many as fit, nor between 1 and {context}");
        ApiError::field("truncate_prompt_tokens", words)
    })?;
    for prompt in &mut prompts {
        let surplus = prompt.len().saturating_sub(most);
        match asked.truncation_side {
            Some(Side::Right) => prompt.truncate(most),
            Some(Side::Left) | None => drop(prompt.drain(..surplus)),
        }
    }
    Ok(prompts)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn shorten(fields: Value) -> Result<Vec<Vec<u32>>, Option<String>> {
        let asked: GenerateRequest = serde_json::from_value(fields).unwrap();
        let response = asked.response_tokens().unwrap_or(1);
        let shortened = shortened(&asked, 4, response, vec![vec![1, 2, 3, 4, 5], vec![6]]);
        shortened.map_err(|error| error.param.map(|param| param.into_owned()))
    }

    #[test]
    fn a_prompt_keeps_its_last_tokens_or_its_first_as_the_request_wants() {
        for (fields, first) in [
            (json!({}), vec![1, 2, 3, 4, 5]),
            (json!({"truncate_prompt_tokens": 2}), vec![4, 5]),
            (
                json!({"truncate_prompt_tokens": 2, "truncation_side": "left"}),
                vec![4, 5],
            ),
            (
                json!({"truncate_prompt_tokens": 2, "truncation_side": "right"}),
                vec![1, 2],
            ),
            (json!({"truncate_prompt_tokens": -1}), vec![3, 4, 5]),
            (json!({"truncation_side": "right"}), vec![1, 2, 3, 4, 5]),
        ] {
            assert_eq!(shorten(fields.clone()), Ok(vec![first, vec![6]]), "{fields}");
        }
    }

    #[test]
    fn where_as_many_tokens_are_kept_as_fit_the_longest_response_fits_too() {
        for (tokens, first) in [
            (0, vec![3, 4, 5]),
            (1, vec![3, 4, 5]),
            (2, vec![4, 5]),
            (4, vec![5]),
            (9, vec![5]),
        ] {
            let fields = json!({"truncate_prompt_tokens": -1, "max_tokens": tokens});
            assert_eq!(shorten(fields), Ok(vec![first, vec![6]]), "{tokens}");
        }
        // A number that was named is kept to.
        let named = json!({"truncate_prompt_tokens": 3, "max_tokens": 2});
        assert_eq!(shorten(named), Ok(vec![vec![3, 4, 5], vec![6]]));
    }

    #[test]
    fn a_text_is_cut_between_characters_where_the_request_shortens_it_anyway() {
        let cut = |fields: Value| {
            let mut text = "äb京d".to_owned();
            let cut = Cut::of(&serde_json::from_value(fields).unwrap());
            assert!(cut.shortens(&mut text, 7) && text == "äb京d");
            cut.shortens(&mut text, 5).then_some(text)
        };
        assert_eq!(cut(json!({})), None);
        assert_eq!(cut(json!({"truncation_side": "left"})), None);
        assert_eq!(cut(json!({"truncate_prompt_tokens": 2})).as_deref(), Some("b京d"));
        let right = json!({"truncate_prompt_tokens": -1, "truncation_side": "right"});
        assert_eq!(cut(right).as_deref(), Some("äb"));
    }

    #[test]
    fn no_tokens_or_more_than_the_context_holds_are_refused_by_name() {
        for wanted in [0, -2, 5, i64::MAX] {
            let refused = shorten(json!({"truncate_prompt_tokens": wanted}));
            assert_eq!(refused, Err(Some("truncate_prompt_tokens".to_owned())), "{wanted}");
        }
    }
}
