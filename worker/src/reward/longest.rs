//! The longest sequence that a reward server computes. A run's own samples are as long as its manifest lets them be; whoever else may ask can
//! send one text of a whole body, and a single sequence of that length takes more memory than there is.

use crate::tokenizer::Tokenizer;

/// Bounds of a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Longest {
    tokens: usize,
    /// What so many tokens stand for at most: a longer text is not even split.
    bytes: usize,
}

/// A sequence that has no score here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unscorable {
    /// It has no token.
    #[error("query[{index}] is an empty text, which no model scores: send one of at least one token")]
    Empty {
        /// Of the query.
        index: usize,
    },
    /// By its tokens.
    #[error("query[{index}] has {tokens} tokens, and a sequence has at most {most} here: send a shorter one")]
    Tokens {
        /// Of the query.
        index: usize,
        tokens: usize,
        most: usize,
    },
    /// By its text alone.
    #[error(
        "query[{index}] is a text of {bytes} bytes; a sequence has at most {tokens} tokens here, and those are at most {most} bytes: send a \
         shorter one"
    )]
    Text {
        /// Of the query.
        index: usize,
        bytes: usize,
        tokens: usize,
        most: usize,
    },
}

impl Longest {
    /// Of so many tokens of `tokenizer`.
    pub(super) fn new(tokens: usize, tokenizer: &Tokenizer) -> Self {
        let bytes = tokens.saturating_mul(tokenizer.longest_token());
        Self { tokens, bytes }
    }

    /// Whether the text of query `index`, of so many bytes, may be split.
    pub(super) fn check_text(self, index: usize, bytes: usize) -> Result<(), Unscorable> {
        if bytes <= self.bytes {
            return Ok(());
        }
        Err(Unscorable::Text {
            index,
            bytes,
            tokens: self.tokens,
            most: self.bytes,
        })
    }

    /// Whether the sequence of query `index`, of so many tokens, may be computed.
    pub(super) fn check_tokens(self, index: usize, tokens: usize) -> Result<(), Unscorable> {
        if tokens <= self.tokens {
            return Ok(());
        }
        Err(Unscorable::Tokens {
            index,
            tokens,
            most: self.tokens,
        })
    }
}
