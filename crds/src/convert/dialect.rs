//! What the flags of a program are: how they are written, and what becomes of each.

use super::draft::{Draft, WrongValue};
use super::row::Row;

/// How a framework's flags are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// `--name value`.
    Dashes,
    /// `name=value`.
    Hydra,
}

/// One program's settings.
#[derive(Debug)]
pub struct Dialect {
    /// The framework's name.
    pub name: &'static str,
    /// How they are written.
    pub syntax: Syntax,
    /// Whether `--no_x` says that `x` is false.
    pub negates: bool,
    /// All of them.
    pub rows: Vec<Row>,
    /// Lists of all names that it has, for those rows that take many.
    pub known: &'static [&'static str],
    /// Sets the fields that follow from several settings.
    pub finish: fn(&mut Draft) -> Result<(), WrongValue>,
}
