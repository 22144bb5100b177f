//! When a response ends.

use std::sync::Arc;

use super::request::{FinishReason, SamplingParams};
use crate::tokenizer::{CONTEXT, LONGEST_PENDING, LONGEST_SILENT};

/// Turns token ids into text, special tokens left out if the flag says so. The engine asks for short windows of a response;
/// bytes that do not yet form a character must come back as U+FFFD.
pub type Detokenize = Arc<dyn Fn(&[u32], bool) -> String + Send + Sync>;

/// Watches one response grow.
#[derive(Debug, Default)]
pub struct StopCheck {
    text: StopText,
}

impl StopCheck {
    /// For a response to `prompt`, whose last tokens are read too: a decoder that drops the first space of a text must not drop
    /// that of the response, which the answer's text has.
    pub fn after(prompt: &[u32], params: &SamplingParams) -> Self {
        let mut text = StopText::default();
        if !params.stop.is_empty() {
            text.ids = prompt[prompt.len().saturating_sub(CONTEXT)..].to_vec();
        }
        Self { text }
    }

    /// Why the response ends with its newest token; None while it goes on. Must be asked after every token.
    ///
    /// `room` is how many more tokens the model's context holds. A stop condition wins over the length.
    pub fn after_token(
        &mut self,
        response: &[u32],
        params: &SamplingParams,
        room: usize,
        detokenize: Option<&Detokenize>,
    ) -> Option<FinishReason> {
        let completes_string = match detokenize {
            Some(detokenize) if !params.stop.is_empty() => {
                let decode = |ids: &[u32]| detokenize(ids, params.skip_special);
                response
                    .last()
                    .is_some_and(|token| self.text.completes_any(*token, &params.stop, &decode))
            }
            _ => false,
        };
        let is_stop_token = response
            .last()
            .is_some_and(|token| params.stop_token_ids.contains(token));
        // A stop token may be the last of the minimum; what completes a string comes after it, as in vLLM 0.32
        // (`BaseIncrementalDetokenizer.update` in `v1/engine/detokenizer.py`).
        let (tokens, least) = (response.len(), params.min_new_tokens);
        if is_stop_token && tokens >= least || completes_string && tokens > least {
            return Some(FinishReason::Stop);
        }
        (response.len() >= params.max_new_tokens || room == 0).then_some(FinishReason::Length)
    }
}

/// Text of a response, detokenised as it grows: a token is only decoded together with the few before it, since what a token
/// means (a leading space, part of a character) depends on them.
#[derive(Debug, Default)]
struct StopText {
    /// The window that is decoded; before the first token of the response, the prompt's last ones.
    ids: Vec<u32>,
    /// End of the part of the window that stays when the window moves on.
    settled: usize,
    /// The part of the window's text that was seen.
    shown: String,
    has_begun: bool,
    /// Last bytes of the text seen: one less than the longest stop string.
    tail: Vec<u8>,
}

impl StopText {
    /// Whether the newest token completes one of `stop`.
    fn completes_any(&mut self, token: u32, stop: &[String], decode: &dyn Fn(&[u32]) -> String) -> bool {
        let fresh = self.advance(token, decode);
        let old = self.tail.len();
        self.tail.extend_from_slice(fresh.as_bytes());
        let found = stop.iter().any(|stop| {
            let stop = stop.as_bytes();
            // Only an occurrence that ends in the fresh text: older ones were passed over below `min_new_tokens`.
            let from = (old + 1).saturating_sub(stop.len());
            !stop.is_empty() && self.tail[from..].windows(stop.len()).any(|window| window == stop)
        });
        let longest = stop.iter().map(String::len).max().unwrap_or(0);
        let surplus = self.tail.len().saturating_sub(longest.saturating_sub(1));
        self.tail.drain(..surplus);
        found
    }

    /// Text that became certain with the newest token.
    fn advance(&mut self, token: u32, decode: &dyn Fn(&[u32]) -> String) -> String {
        if !self.has_begun {
            self.begin(decode);
        }
        self.ids.push(token);
        let text = decode(&self.ids);
        let overdue = self.ids.len() - self.settled > LONGEST_PENDING;
        if text.ends_with(char::REPLACEMENT_CHARACTER) && !overdue {
            let certain = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
            let fresh = certain.strip_prefix(self.shown.as_str()).unwrap_or_default().to_owned();
            self.shown += &fresh;
            return fresh;
        }
        let fresh = match text.strip_prefix(self.shown.as_str()) {
            Some(fresh) => fresh.to_owned(),
            // With byte fallback a stray byte makes the bytes before it invalid, which were seen: the new tokens go on alone.
            None => decode(&self.ids[self.settled..]),
        };
        if fresh.is_empty() {
            if self.ids.len() - self.settled > LONGEST_SILENT {
                self.ids.truncate(self.settled);
            }
            return fresh;
        }
        self.ids.drain(..self.settled);
        self.settled = self.ids.len();
        self.shown = decode(&self.ids);
        fresh
    }

    /// Makes the prompt's last tokens the context, unless they end inside a character: that would be the response's.
    fn begin(&mut self, decode: &dyn Fn(&[u32]) -> String) {
        self.has_begun = true;
        self.shown = decode(&self.ids);
        if self.shown.ends_with(char::REPLACEMENT_CHARACTER) {
            self.ids.clear();
            self.shown.clear();
        }
        self.settled = self.ids.len();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Tokens are bytes.
    fn bytes() -> Detokenize {
        Arc::new(|tokens: &[u32], _| {
            String::from_utf8_lossy(&tokens.iter().map(|&token| token as u8).collect::<Vec<_>>()).into_owned()
        })
    }

    fn params(stop: &[&str]) -> SamplingParams {
        SamplingParams {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            max_new_tokens: 1000,
            min_new_tokens: 0,
            stop_token_ids: vec![],
            stop: stop.iter().map(|stop| (*stop).to_owned()).collect(),
            skip_special: true,
        }
    }

    /// Length and reason of the response that `tokens` would grow to.
    fn run(tokens: &[u32], params: &SamplingParams, detokenize: &Detokenize) -> Option<(usize, FinishReason)> {
        let mut check = StopCheck::default();
        (1..=tokens.len()).find_map(|length| {
            let room = tokens.len() + 1 - length;
            Some((
                length,
                check.after_token(&tokens[..length], params, room, Some(detokenize))?,
            ))
        })
    }

    fn of(text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    #[test]
    fn a_stop_token_ends_the_response_and_is_part_of_it() {
        let params = SamplingParams {
            stop_token_ids: vec![7],
            ..params(&[])
        };
        assert_eq!(run(&[1, 2, 7, 3], &params, &bytes()), Some((3, FinishReason::Stop)));
    }

    #[test]
    fn nothing_stops_a_response_before_its_minimum() {
        let by_token = SamplingParams {
            stop_token_ids: vec![7],
            min_new_tokens: 3,
            ..params(&[])
        };
        assert_eq!(
            run(&[7, 7, 1, 7, 1], &by_token, &bytes()),
            Some((4, FinishReason::Stop))
        );
        let by_string = SamplingParams {
            min_new_tokens: 3,
            ..params(&["ab", "abcdef"])
        };
        assert_eq!(run(&of("ab-ab-"), &by_string, &bytes()), Some((5, FinishReason::Stop)));
        assert_eq!(run(&of("abcdefg"), &by_string, &bytes()), Some((6, FinishReason::Stop)));
        // The last token of the minimum may end the response itself, but completes no string.
        assert_eq!(run(&of("--ab-ab"), &by_string, &bytes()), Some((4, FinishReason::Stop)));
        assert_eq!(run(&of("-ab-ab"), &by_string, &bytes()), Some((6, FinishReason::Stop)));
        assert_eq!(run(&[1, 1, 7], &by_token, &bytes()), Some((3, FinishReason::Stop)));
    }

    #[test]
    fn a_response_ends_at_its_length_and_at_the_context() {
        let short = SamplingParams {
            max_new_tokens: 2,
            ..params(&[])
        };
        assert_eq!(run(&[1, 2, 3], &short, &bytes()), Some((2, FinishReason::Length)));
        let mut check = StopCheck::default();
        assert_eq!(
            check.after_token(&[1], &params(&[]), 0, None),
            Some(FinishReason::Length)
        );
    }

    #[test]
    fn a_stop_condition_wins_over_the_length() {
        let params = SamplingParams {
            stop_token_ids: vec![7],
            max_new_tokens: 1,
            ..params(&[])
        };
        assert_eq!(run(&[7], &params, &bytes()), Some((1, FinishReason::Stop)));
    }

    #[test]
    fn a_stop_string_may_span_tokens_and_characters_may_span_tokens() {
        assert_eq!(
            run(&of("so \u{1f600}é."), &params(&["\u{1f600}é"]), &bytes()),
            Some((9, FinishReason::Stop))
        );
        // The string is complete while a character behind it is still arriving in the same token.
        let pieces: Detokenize = Arc::new(|tokens, _| {
            let parts: [&[u8]; 2] = [b"sto", b"p\xe2"];
            let bytes: Vec<u8> = tokens
                .iter()
                .flat_map(|&token| parts[token as usize])
                .copied()
                .collect();
            String::from_utf8_lossy(&bytes).into_owned()
        });
        assert_eq!(run(&[0, 1], &params(&["stop"]), &pieces), Some((2, FinishReason::Stop)));
    }

    #[test]
    fn bytes_that_never_form_a_character_do_not_hold_text_back() {
        let mut tokens = vec![0xff; 100];
        tokens.extend(of("end"));
        assert_eq!(
            run(&tokens, &params(&["end"]), &bytes()),
            Some((103, FinishReason::Stop))
        );
    }

    #[test]
    fn a_tokenizer_that_drops_the_first_space_is_read_right() {
        // As SentencePiece does: each token is " word", the text's first space is not shown.
        let words: Detokenize = Arc::new(|tokens, _| {
            tokens
                .iter()
                .map(|token| format!(" w{token}"))
                .collect::<String>()
                .trim_start()
                .to_owned()
        });
        assert_eq!(
            run(&[1, 2, 3, 4, 5], &params(&["w3 w4"]), &words),
            Some((4, FinishReason::Stop))
        );
        assert_eq!(run(&[1, 2, 3, 4, 5], &params(&["w3w4"]), &words), None);
    }

    #[test]
    fn a_stop_string_may_begin_with_the_space_that_follows_the_prompt() {
        // As SentencePiece does: the text's first space is not shown.
        let words: Detokenize = Arc::new(|tokens, _| {
            let text: String = tokens.iter().map(|token| format!(" w{token}")).collect();
            text.trim_start().to_owned()
        });
        let params = params(&[" w1"]);
        let mut check = StopCheck::after(&[7; 9], &params);
        let ended = check.after_token(&[1], &params, 10, Some(&words));
        assert_eq!(ended, Some(FinishReason::Stop));
    }

    #[test]
    fn a_stop_string_may_be_a_special_token_where_those_are_shown() {
        let words: Detokenize = Arc::new(|tokens, skip_special| {
            let name = |token: &u32| if *token == 9 { "<end>" } else { "a" };
            let shown = tokens.iter().filter(|token| !skip_special || **token != 9);
            shown.map(name).collect()
        });
        let hidden = params(&["<end>"]);
        let shown = SamplingParams {
            skip_special: false,
            ..hidden.clone()
        };
        assert_eq!(run(&[1, 9, 1], &hidden, &words), None);
        assert_eq!(run(&[1, 9, 1], &shown, &words), Some((2, FinishReason::Stop)));
    }

    #[test]
    fn a_stray_byte_after_a_character_hides_no_later_stop_string() {
        // As byte fallback does: bytes (here below 256) next to each other are a text together or none at all.
        let fallback: Detokenize = Arc::new(|tokens, _| {
            let mut text = String::new();
            for group in tokens.chunk_by(|a, b| (*a < 256) == (*b < 256)) {
                let bytes: Vec<u8> = group.iter().map(|token| *token as u8).collect();
                match String::from_utf8(bytes) {
                    Ok(valid) => text += &valid,
                    Err(_) => text.extend(group.iter().map(|_| '\u{fffd}')),
                }
            }
            text
        });
        let word = |letter: u8| 256 + u32::from(letter);
        let tokens = [0xc3, 0xa9, 0xff, word(b'a'), word(b'b')];
        assert_eq!(run(&tokens, &params(&["ab"]), &fallback), Some((5, FinishReason::Stop)));
    }

    proptest! {
        #[test]
        fn a_response_ends_with_the_first_token_whose_text_holds_a_stop_string(
            text in "[ab\u{e9}\u{1f600}]{0,24}",
            stop in prop::collection::vec("[ab\u{e9}\u{1f600}]{1,4}", 1..3),
        ) {
            let stops: Vec<&str> = stop.iter().map(String::as_str).collect();
            let expected = (1..=text.len())
                .find(|&end| stops.iter().any(|stop| text.as_bytes()[..end].windows(stop.len()).any(|w| w == stop.as_bytes())));
            prop_assert_eq!(run(&of(&text), &params(&stops), &bytes()), expected.map(|end| (end, FinishReason::Stop)));
        }
    }
}
