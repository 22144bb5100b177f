//! Fields whose values say nothing: those outside their limits, and those that could not be read. A rule that reads one stays silent.

use super::Problem;

/// Paths of such fields, or of blocks of them.
pub struct Doubtful(Vec<String>);

impl Doubtful {
    /// The fields that have a problem of their own, and those that were not read.
    pub fn of(problems: &[Problem], unread: &[String]) -> Self {
        let out_of_range = problems.iter().map(|problem| problem.field.clone());
        Self(out_of_range.chain(unread.iter().cloned()).collect())
    }

    /// Whether the field, or a block around it, is one of them.
    pub fn has(&self, field: &str) -> bool {
        self.0.iter().any(|doubtful| is_within(field, doubtful))
    }
}

/// Whether a field is a block or lies in it.
pub fn is_within(field: &str, block: &str) -> bool {
    let below = field.strip_prefix(block);
    below.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}
