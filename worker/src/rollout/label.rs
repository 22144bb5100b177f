//! How log-probabilities name tokens.

use crate::tokenizer::Tokenizer;

/// So many tokens may begin a character that the next one completes: UTF-8 has four bytes at most.
const LONGEST_BEGUN: usize = 3;

/// Names the tokens of one sequence by their text. One that ends inside a character has no text, and the one that completes the character
/// has all of it, as in vLLM (`_correct_decoded_token` in `vllm/v1/engine/logprobs.py`).
#[derive(Clone, Debug, Default)]
pub struct Labels {
    /// The newest tokens, as far back as they have no text.
    begun: Vec<u32>,
}

impl Labels {
    /// The name of `token`, were it the next one.
    pub fn label(&self, tokenizer: &Tokenizer, token: u32) -> String {
        let text = |ids: &[u32]| tokenizer.decode(ids, false).unwrap_or_default();
        let is_whole = |text: &String| !text.ends_with('\u{fffd}');
        let alone = text(&[token]);
        if is_whole(&alone) {
            return alone;
        }
        let begun = (0..self.begun.len()).rev().map(|from| &self.begun[from..]);
        let mut texts = begun.map(|begun| text(&[begun, &[token]].concat()));
        texts.find(is_whole).unwrap_or_default()
    }

    /// The next one is `token`, which has this name.
    pub fn push(&mut self, token: u32, label: &str) {
        if !label.is_empty() {
            self.begun.clear();
            return;
        }
        if self.begun.len() == LONGEST_BEGUN {
            self.begun.remove(0);
        }
        self.begun.push(token);
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

    #[test]
    fn the_token_that_completes_a_character_has_all_of_it_and_those_before_have_nothing() {
        // Byte-level, and with a token for each byte that nothing else stands for.
        for family in ["chatml", "llama2"] {
            let tokenizer = tokenizer(family);
            let mut labels = Labels::default();
            let mut names = Vec::new();
            for token in tokenizer.encode("a𝄞ñ", false).unwrap() {
                let name = labels.label(&tokenizer, token);
                labels.push(token, &name);
                names.push(name);
            }
            assert_eq!(names, ["a", "", "", "", "𝄞", "", "ñ"], "{family}");
        }
    }

    #[test]
    fn bytes_that_form_no_character_have_nothing_and_what_follows_has_its_own_text() {
        let tokenizer = tokenizer("chatml");
        let bytes = tokenizer.encode("𝄞", false).unwrap();
        let [other] = tokenizer.encode("a", false).unwrap()[..] else {
            panic!("one letter is not one token");
        };
        let mut labels = Labels::default();
        for _ in 0..2 * LONGEST_BEGUN {
            assert_eq!(labels.label(&tokenizer, bytes[0]), "");
            labels.push(bytes[0], "");
        }
        assert_eq!(labels.label(&tokenizer, other), "a");
        // An alternative changes nothing.
        for &byte in &bytes[1..3] {
            assert_eq!(labels.label(&tokenizer, byte), "");
            labels.push(byte, "");
        }
        assert_eq!(labels.label(&tokenizer, bytes[3]), "𝄞");
    }
}
