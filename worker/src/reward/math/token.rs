//! The smallest parts of an answer that mean something. Equal tokens are equal answers.

/// What an answer is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// Digits, a decimal point, an exponent behind `e`: `1234`, `.5`, `6.02e23`.
    Number(String),
    /// A letter by itself.
    Letter(char),
    /// Several plain letters: a word, or variables side by side.
    Word(String),
    /// What stands in `\text{}` and the like, in small letters.
    Text(String),
    /// A command of LaTeX.
    Command(String),
    /// A sign or bracket; several spellings are one.
    Symbol(char),
}

impl Token {
    /// The command of this name.
    pub(super) fn command(name: &str) -> Self {
        Self::Command(name.to_owned())
    }
}

/// What `\{` and `\}` are, which make sets; `{` and `}` only hold together.
pub(super) const OPEN_SET: char = '⦃';
/// See [`OPEN_SET`].
pub(super) const CLOSE_SET: char = '⦄';

/// Functions of one argument, by their LaTeX commands.
pub(super) const FUNCTIONS: [&str; 12] = [
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "ln", "log", "exp",
];
