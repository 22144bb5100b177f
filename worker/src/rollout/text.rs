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
    /// Bytes before the newest token's that are held back; None: nothing is, not even the newest token's text.
    hold: Option<usize>,
    characters: usize,
}

impl Text {
    /// Text after `prompt`. `stops` are held back while they might be beginning.
    ///
    /// # Errors
    /// When the tokenizer's decoder refuses the prompt.
    pub fn new(tokenizer: &Tokenizer, prompt: &[u32], skip_special: bool, stops: &[String]) -> Result<Self> {
        let longest = stops.iter().map(String::len).max();
        Ok(Self {
            stream: TextStream::after(tokenizer, prompt, skip_special)?,
            text: String::new(),
            given: 0,
            before: 0,
            hold: longest.map(|longest| longest.saturating_sub(1)),
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

    /// Takes what is left of the stream when no token follows.
    ///
    /// # Errors
    /// When the tokenizer's decoder refuses it.
    pub fn end(&mut self, tokenizer: &Tokenizer) -> Result<()> {
        self.text += &self.stream.finish(tokenizer)?;
        self.hold = None;
        Ok(())
    }

    /// Finds the stop string that the newest token completed and cuts the text before it, or behind it with `include`.
    pub fn cut<'a>(&mut self, stops: &'a [String], include: bool) -> Option<&'a str> {
        let found = stops.iter().find_map(|stop| {
            let from = self.before.saturating_sub(stop.len().saturating_sub(1)).max(self.given);
            let from = self.text.floor_char_boundary(from);
            Some((stop, from + self.text.get(from..)?.find(stop.as_str())?))
        });
        let (stop, at) = found?;
        self.text.truncate(if include { at + stop.len() } else { at });
        Some(stop)
    }

    /// The text that is certain and was not given out before.
    pub fn take(&mut self) -> String {
        // Whether the newest token ends the response is heard after it.
        let end = self
            .hold
            .map_or(self.text.len(), |hold| self.before.saturating_sub(hold));
        let end = self.text.floor_char_boundary(end);
        let fresh = self.text.get(self.given..end).unwrap_or_default().to_owned();
        self.given = self.given.max(end);
        fresh
    }
}
