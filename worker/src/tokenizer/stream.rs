//! Text of a response while it grows, one token at a time.

use anyhow::Result;

use super::Tokenizer;

/// Tokens of a prompt that a stream after it looks back at (vLLM's `INITIAL_INCREMENTAL_DETOKENIZATION_OFFSET`).
pub(crate) const CONTEXT: usize = 5;
/// So many tokens without a whole character at their end are not a character that is still arriving (UTF-8 needs at most 4 bytes).
pub(crate) const LONGEST_PENDING: usize = 8;
/// Of those the newest ones may still be one.
const ARRIVING: usize = 3;
/// So many tokens that show nothing (special ones that are left out) are nothing to the text of what follows.
pub(crate) const LONGEST_SILENT: usize = LONGEST_PENDING - ARRIVING;

/// Turns tokens into text as they arrive. A token may hold a part of a character, and SentencePiece decoders drop a leading
/// space, so a slice is decoded together with the slice before it and only what that adds is given out (the method of
/// vLLM's `detokenize_incrementally` and of text-generation-inference).
#[derive(Clone, Debug)]
pub struct TextStream {
    ids: Vec<u32>,
    /// `ids[context..given]` is decoded again as context; `ids[..given]` has been given out.
    context: usize,
    given: usize,
    skip_special: bool,
}

impl TextStream {
    /// An empty stream; `skip_special` leaves out special tokens.
    pub fn new(skip_special: bool) -> Self {
        Self {
            ids: Vec::new(),
            context: 0,
            given: 0,
            skip_special,
        }
    }

    /// A stream that goes on from `prompt`: its last tokens are context, so that a decoder that drops the first space of a
    /// text does not drop that of a response.
    ///
    /// # Errors
    /// When the tokenizer's decoder refuses the tokens.
    pub fn after(tokenizer: &Tokenizer, prompt: &[u32], skip_special: bool) -> Result<Self> {
        let tail = &prompt[prompt.len().saturating_sub(CONTEXT)..];
        let mut stream = Self::new(skip_special);
        // A prompt that ends inside a character is no context: the character would be the response's.
        if !tokenizer.decode(tail, skip_special)?.ends_with('\u{fffd}') {
            stream.given = tail.len();
            stream.ids = tail.to_vec();
        }
        Ok(stream)
    }

    /// Adds one token and returns the text that is now certain; empty while a character is incomplete.
    ///
    /// # Errors
    /// When the tokenizer's decoder refuses the tokens.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String> {
        self.ids.push(id);
        let whole = tokenizer.decode(&self.ids[self.context..], self.skip_special)?;
        if !whole.ends_with('\u{fffd}') {
            return self.advance(tokenizer, &whole, self.ids.len());
        }
        if self.ids.len() - self.given <= LONGEST_PENDING {
            return Ok(String::new());
        }
        // Bytes that never form a character would otherwise be decoded again with every token that follows.
        let mut end = self.ids.len() - ARRIVING;
        while end > self.given + 1 {
            // Not inside a character.
            let part = tokenizer.decode(&self.ids[self.context..end], self.skip_special)?;
            if whole.starts_with(&part) {
                return self.advance(tokenizer, &part, end);
            }
            end -= 1;
        }
        self.advance(tokenizer, &whole, self.ids.len())
    }

    /// What is left when no token follows: an incomplete character comes out as U+FFFD.
    ///
    /// # Errors
    /// When the tokenizer's decoder refuses the tokens.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String> {
        let whole = tokenizer.decode(&self.ids[self.context..], self.skip_special)?;
        self.advance(tokenizer, &whole, self.ids.len())
    }

    /// Gives out the tokens before `end`; `whole` is their text with the context.
    fn advance(&mut self, tokenizer: &Tokenizer, whole: &str, end: usize) -> Result<String> {
        let before = tokenizer.decode(&self.ids[self.context..self.given], self.skip_special)?;
        let added = match whole.strip_prefix(before.as_str()) {
            Some(added) => added.to_owned(),
            // With byte fallback a stray byte makes the whole run of bytes before it invalid, which has been given out: the
            // new tokens go on alone.
            None => tokenizer.decode(&self.ids[self.given..end], self.skip_special)?,
        };
        if added.is_empty() {
            if end - self.given > LONGEST_SILENT {
                self.ids.drain(self.given..end);
            }
            return Ok(added);
        }
        self.context = self.given;
        self.given = end;
        Ok(added)
    }
}

/// The text of `ids` behind `prompt`, whose last tokens are context as in [`TextStream::after`]; in one piece, where all tokens are there.
///
/// # Errors
/// When the tokenizer's decoder refuses the tokens.
pub(crate) fn text_after(tokenizer: &Tokenizer, prompt: &[u32], ids: &[u32], skip_special: bool) -> Result<String> {
    let tail = &prompt[prompt.len().saturating_sub(CONTEXT)..];
    let before = tokenizer.decode(tail, skip_special)?;
    if !before.ends_with('\u{fffd}') {
        let whole = tokenizer.decode(&[tail, ids].concat(), skip_special)?;
        // With byte fallback stray bytes may change the text before them: then the tokens go on alone.
        if let Some(text) = whole.strip_prefix(before.as_str()) {
            return Ok(text.to_owned());
        }
    }
    tokenizer.decode(ids, skip_special)
}
