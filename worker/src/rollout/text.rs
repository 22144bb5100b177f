//! Text of a response while it grows, cut before what ended it.

use anyhow::Result;

use crate::tokenizer::{TextStream, Tokenizer};

/// A response's text. What may yet turn out to be a stop string is held back.
#[derive(Debug)]
pub struct Text {
    stream: TextStream,
    text: String,
    /// Bytes that were given out.
    given: usize,
    /// Bytes before the newest token's.
    before: usize,
    /// Bytes at the end that are held back while tokens follow: all but one of the longest stop string's, unless those are shown anyway.
    hold: usize,
    /// The stop string is a part of the text.
    include: bool,
    characters: usize,
}

impl Text {
    /// Text after `prompt`. `stops` are held back while they might be beginning, unless `include` has them shown.
    ///
    /// # Errors
    /// When the tokenizer's decoder refuses the prompt.
    pub fn new(
        tokenizer: &Tokenizer,
        prompt: &[u32],
        skip_special: bool,
        stops: &[String],
        include: bool,
    ) -> Result<Self> {
        let longest = stops.iter().map(String::len).filter(|_| !include).max().unwrap_or(0);
        Ok(Self {
            stream: TextStream::after(tokenizer, prompt, skip_special)?,
            text: String::new(),
            given: 0,
            before: 0,
            hold: longest.saturating_sub(1),
            include,
            characters: 0,
        })
    }

    /// Adds a token.
    ///
    /// # Errors
    /// When the tokenizer's decoder refuses it.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> Result<()> {
        self.before = self.text.len();
        let fresh = self.stream.push(tokenizer, token)?;
        self.characters += fresh.chars().count();
        self.text += &fresh;
        Ok(())
    }

    /// Characters so far.
    pub fn characters(&self) -> usize {
        self.characters
    }

    /// Takes what is left of the stream when no token follows, without the character that no token completes: vLLM leaves it out too, where
    /// the tokenizer would write U+FFFD.
    ///
    /// # Errors
    /// When the tokenizer's decoder refuses it.
    pub fn end(&mut self, tokenizer: &Tokenizer) -> Result<()> {
        let rest = self.stream.finish(tokenizer)?;
        self.text += rest.trim_end_matches(char::REPLACEMENT_CHARACTER);
        self.hold = 0;
        Ok(())
    }

    /// Finds the stop string that the newest token completed and cuts the text before it, or behind it where it is a part of the text. Of several it
    /// is the one that ends first, as if characters came one by one (vLLM's `check_stop_strings` in `vllm/v1/engine/detokenizer.py`).
    pub fn cut<'a>(&mut self, stops: &'a [String]) -> Option<&'a str> {
        // What was given out stays: one that is shown may have begun in it.
        let given = if self.include { 0 } else { self.given };
        let found = stops.iter().filter_map(|stop| {
            let from = self.before.saturating_sub(stop.len().saturating_sub(1)).max(given);
            let from = self.text.floor_char_boundary(from);
            Some((stop, from + self.text.get(from..)?.find(stop.as_str())?))
        });
        let (stop, at) = found.min_by_key(|(stop, at)| at + stop.len())?;
        self.text.truncate(if self.include { at + stop.len() } else { at });
        Some(stop)
    }

    /// The text that is certain and was not given out before, where the newest token does not end the response or what it ends with is
    /// [cut](Self::cut).
    pub fn take(&mut self) -> String {
        let end = self.text.floor_char_boundary(self.text.len().saturating_sub(self.hold));
        let fresh = self.text.get(self.given..end).unwrap_or_default().to_owned();
        self.given = self.given.max(end);
        fresh
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn tokenizer(family: &str) -> Tokenizer {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer");
        Tokenizer::load(&folder.join(family)).unwrap()
    }

    /// What is left of "What", which two tokens are, and why it ended there.
    fn cut(stops: &[&str], include: bool) -> (String, Option<String>) {
        let tokenizer = tokenizer("chatml");
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut text = Text::new(&tokenizer, &[], true, &stops, include).unwrap();
        for part in ["W", "hat"] {
            let [token] = tokenizer.encode(part, false).unwrap()[..] else {
                panic!("{part} is not one token");
            };
            text.push(&tokenizer, token).unwrap();
        }
        text.end(&tokenizer).unwrap();
        let stop = text.cut(&stops).map(str::to_owned);
        (text.take(), stop)
    }

    #[test]
    fn of_several_strings_that_a_token_completes_the_one_that_ends_first_ends_the_text() {
        let ended = |text: &str, stop: &str| (text.to_owned(), Some(stop.to_owned()));
        for (stops, text, stop) in [
            (&["t", "a"][..], "Wh", "a"),
            (&["at", "Wha"][..], "", "Wha"),
            (&["hat", "at"][..], "W", "hat"),
            (&["at", "hat"][..], "Wh", "at"),
        ] {
            assert_eq!(cut(stops, false), ended(text, stop), "{stops:?}");
        }
        assert_eq!(cut(&["t", "a"], true), ended("Wha", "a"));
        assert_eq!(cut(&["x"], true), ("What".to_owned(), None));
    }

    #[test]
    fn a_token_that_ends_nothing_gives_out_all_text_but_what_may_begin_a_stop_string() {
        let tokenizer = tokenizer("chatml");
        for (stops, first, second) in [
            (vec![], "W", "hat"),
            (vec!["x"], "W", "hat"),
            (vec!["xyz", "x"], "", "Wh"),
            (vec!["京"], "", "Wh"),
        ] {
            let stops: Vec<String> = stops.into_iter().map(str::to_owned).collect();
            let mut text = Text::new(&tokenizer, &[], true, &stops, false).unwrap();
            let given = ["W", "hat"].map(|part| {
                let tokens = tokenizer.encode(part, false).unwrap();
                tokens.iter().for_each(|token| text.push(&tokenizer, *token).unwrap());
                text.take()
            });
            assert_eq!(given, [first, second], "{stops:?}");
        }
    }

    /// As vLLM has it (`stop_buffer_length` in `vllm/v1/engine/detokenizer.py`).
    #[test]
    fn a_stop_string_that_is_shown_holds_nothing_back_and_ends_the_text_all_the_same() {
        let tokenizer = tokenizer("chatml");
        let stops = ["What".to_owned()];
        let mut text = Text::new(&tokenizer, &[], true, &stops, true).unwrap();
        let push = |text: &mut Text, part: &str| {
            let tokens = tokenizer.encode(part, false).unwrap();
            tokens.iter().for_each(|token| text.push(&tokenizer, *token).unwrap());
        };
        push(&mut text, "W");
        assert_eq!(text.take(), "W");
        push(&mut text, "hat");
        text.end(&tokenizer).unwrap();
        assert_eq!(text.cut(&stops), Some("What"));
        assert_eq!(text.take(), "hat");
    }

    #[test]
    fn a_character_that_no_token_completes_is_left_out_and_bytes_that_form_none_before_others_are_not() {
        // Byte-level, and with a token for each byte that nothing else stands for.
        for family in ["chatml", "llama2"] {
            let tokenizer = tokenizer(family);
            let encode = |text: &str| tokenizer.encode(text, false).unwrap();
            // One token, or two, and four bytes.
            let (whole, after) = (encode("a𝄞"), encode("b"));
            let begun = &whole[..whole.len() - 1];
            let read = |tokens: &[u32], stops: &[String]| {
                let mut text = Text::new(&tokenizer, &[], true, stops, false).unwrap();
                let mut given = String::new();
                for &token in tokens {
                    text.push(&tokenizer, token).unwrap();
                    given += &text.take();
                }
                text.end(&tokenizer).unwrap();
                given + &text.take()
            };
            for stops in [vec![], vec!["longer than the text".to_owned()]] {
                assert_eq!(read(&whole, &stops), "a𝄞", "{family}");
                assert_eq!(read(begun, &stops), "a", "{family}");
                let inside = read(&[begun, after.as_slice()].concat(), &stops);
                let ends = inside.contains('\u{fffd}') && inside.ends_with('b');
                assert!(ends, "{family}: {inside:?}");
            }
        }
    }
}
