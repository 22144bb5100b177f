//! Problems of a job, as data and as text.

use std::fmt;

use serde::Serialize;

/// Everything that is wrong with a job. Displayed as a numbered list.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize)]
pub struct ValidationErrors {
    /// At least one.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// Path of the field to change, such as `spec.batch.trainBatchSize`.
    pub field: String,
    /// What is wrong with what was given, and what is needed, as a sentence without a full stop.
    pub message: String,
    /// Changes of single numbers that each put it right, nearest first. Empty when no one number does.
    pub fixes: Vec<Fix>,
}

/// A change that puts a [`Problem`] right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fix {
    /// Path of the field to set.
    pub field: String,
    /// Its new value.
    pub value: u64,
}

impl Problem {
    /// A problem that no single number puts right.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
            fixes: Vec::new(),
        }
    }

    /// Adds values that `field` could have instead.
    #[must_use]
    pub fn or(mut self, field: &str, values: impl IntoIterator<Item = u64>) -> Self {
        self.fixes.extend(values.into_iter().map(|value| Fix {
            field: field.into(),
            value,
        }));
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.in_words())
    }
}

impl Problem {
    /// What is wrong and what would fit, without the field.
    pub(crate) fn in_words(&self) -> String {
        let mut words = self.message.clone();
        for (index, fix) in self.fixes.iter().enumerate() {
            let starts = index == 0 || self.fixes[index - 1].field != fix.field;
            words += match (index, starts) {
                (0, _) => "; use ",
                (_, true) => ", or ",
                (_, false) => " or ",
            };
            if starts && fix.field != self.field {
                words += &format!("{}: ", fix.field);
            }
            words += &fix.value.to_string();
        }
        words
    }
}

impl fmt::Display for ValidationErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.problems.len();
        writeln!(f, "{count} error{} in the manifest:", if count == 1 { "" } else { "s" })?;
        for (index, problem) in self.problems.iter().enumerate() {
            write!(f, "  {}. {problem}", index + 1)?;
            if index + 1 < count {
                writeln!(f)?;
            }
        }
        Ok(())
    }
}
