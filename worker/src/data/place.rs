//! Where a row is, for an error.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A row's file and its place there: `data/a.jsonl: line 7`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Shared by all rows of the file.
    pub file: Arc<str>,
    /// Where it is there.
    pub at: At,
}

/// A place within a file: `line 7` or `row 7`, counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    unit: &'static str,
    number: usize,
}

impl At {
    /// The line with this index, counted from 0.
    pub fn line(index: usize) -> Self {
        Self::of("line", index)
    }

    /// The row with this index, counted from 0.
    pub fn row(index: usize) -> Self {
        Self::of("row", index)
    }

    fn of(unit: &'static str, index: usize) -> Self {
        let number = index + 1;
        Self { unit, number }
    }

    /// The same in a file.
    pub fn in_file(self, file: &Arc<str>) -> Place {
        Place {
            file: file.clone(),
            at: self,
        }
    }
}

/// A file's name, for the places of its rows.
pub(super) fn name(file: &Path) -> Arc<str> {
    file.display().to_string().into()
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.unit, self.number)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.at)
    }
}
