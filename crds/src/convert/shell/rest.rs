//! What is left to read of a script, sign by sign. It keeps the text, so that a function's body can be taken out of it.

/// The part of a text that was not read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest<'a> {
    /// The part itself.
    pub text: &'a str,
}

impl<'a> Rest<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { text }
    }

    pub fn peek(&self) -> Option<char> {
        self.text.chars().next()
    }

    /// The next sign, if it is one of those that are wanted.
    pub fn next_if(&mut self, wanted: impl FnOnce(&char) -> bool) -> Option<char> {
        let first = self.peek().filter(wanted)?;
        self.text = &self.text[first.len_utf8()..];
        Some(first)
    }

    pub fn next_if_eq(&mut self, wanted: &char) -> Option<char> {
        self.next_if(|c| c == wanted)
    }

    /// The text from here up to where `later` is, which is further on in the same text.
    pub fn up_to(self, later: Self) -> &'a str {
        let length = self.text.len().saturating_sub(later.text.len());
        self.text.get(..length).unwrap_or_default()
    }
}

impl Iterator for Rest<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        self.next_if(|_| true)
    }
}
