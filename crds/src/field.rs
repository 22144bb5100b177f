//! Where a field is.

use std::fmt::Write as _;

/// A step on the way to a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A block's field.
    Field(String),
    /// A list's item, from 0.
    Item(usize),
}

/// The way in words, such as `spec.roles.reward.rules[0]`.
pub(crate) fn path(steps: &[Step]) -> String {
    let mut path = String::new();
    for step in steps {
        let dot = if path.is_empty() { "" } else { "." };
        // A text always takes more.
        let _ = match step {
            Step::Field(name) => write!(path, "{dot}{name}"),
            Step::Item(index) => write!(path, "[{index}]"),
        };
    }
    path
}

/// The way that a path in words is of.
pub(crate) fn steps(path: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for part in path.split('.') {
        let (name, items) = part.split_once('[').unwrap_or((part, ""));
        steps.push(Step::Field(name.into()));
        let items = items.split(['[', ']']).filter_map(|item| item.parse().ok());
        steps.extend(items.map(Step::Item));
    }
    steps
}
