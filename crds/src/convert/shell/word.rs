//! One word of a command, with what of it only a running shell could know.

/// One word after quoting and expansion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Word {
    /// Its text; what could not be expanded is left out.
    pub text: String,
    /// What could not be expanded, as it was written.
    pub unknown: Option<String>,
    /// The text with what could not be expanded in its place, where that is known.
    shown: Option<String>,
}

impl Word {
    /// A word of this text, and what of it is not known.
    pub fn new(text: impl Into<String>, unknown: Option<String>) -> Self {
        Self {
            text: text.into(),
            unknown,
            shown: None,
        }
    }

    /// The word as a person would write it.
    pub fn written(&self) -> &str {
        self.shown.as_deref().unwrap_or(&self.text)
    }

    /// Whether it is a command of its own, `((...))`.
    pub fn is_sum(&self) -> bool {
        self.text.starts_with("((")
    }

    /// Which of the words that it falls apart into are not known, and whether there may be more of them than its text has.
    pub(super) fn apart(&self) -> (Vec<bool>, bool) {
        let texts: Vec<&str> = self.text.split_whitespace().collect();
        let shown: Option<Vec<&str>> = self.shown.as_deref().map(|shown| shown.split_whitespace().collect());
        match shown {
            Some(shown) if shown.len() == texts.len() => {
                let differ = |(text, shown): (&&str, &&str)| text != shown;
                (texts.iter().zip(&shown).map(differ).collect(), false)
            }
            shown => (vec![self.unknown.is_some(); texts.len()], shown.is_some()),
        }
    }

    /// Adds to its text.
    pub fn push(&mut self, text: &str) {
        self.text.push_str(text);
        if let Some(shown) = &mut self.shown {
            shown.push_str(text);
        }
    }

    /// Adds what is not known; the first counts.
    pub fn push_unknown(&mut self, what: &str) {
        self.shown.get_or_insert_with(|| self.text.clone()).push_str(what);
        self.unknown.get_or_insert_with(|| what.into());
    }

    /// Adds another word, with nothing between them.
    pub fn append(&mut self, other: Self) {
        if self.shown.is_some() || other.shown.is_some() {
            self.shown = Some(format!("{}{}", self.written(), other.written()));
        }
        self.text.push_str(&other.text);
        self.unknown = self.unknown.take().or(other.unknown);
    }

    /// What stands behind the first `sign`, and what before it.
    pub fn split_once(&self, sign: char) -> Option<(&str, Self)> {
        let (before, text) = self.text.split_once(sign)?;
        let behind = |shown: &String| shown.split_once(sign).map(|(_, behind)| behind.to_owned());
        let word = Self {
            text: text.into(),
            unknown: self.unknown.clone(),
            shown: self.shown.as_ref().and_then(behind),
        };
        Some((before, word))
    }
}
