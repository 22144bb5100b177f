//! Blocks that have a name and nothing in them where the name alone says which of several is meant, as in `- exactMatch:`. Left out,
//! as every field without a value is, it would look as if none had been given.

use serde_yaml::Value;

use super::misfit::Misfit;
use crate::field::Step;

/// Names of which one is to be given, each with how it is written with its least fields.
type Choices = [(&'static str, &'static str)];

const RULES_AT: [&str; 4] = ["spec", "roles", "reward", "rules"];
const RULES: &Choices = &[
    ("exactMatch", "{}"),
    ("numericMatch", "{}"),
    ("mathMatch", "{}"),
    ("regex", "{pattern: ...}"),
    ("length", "{max: ...}"),
    ("json", "{}"),
];

const CONTROLLER_AT: [&str; 4] = ["spec", "algorithm", "kl", "controller"];
const CONTROLLERS: &Choices = &[("fixed", "{}"), ("adaptive", "{target: ..., horizon: ...}")];

/// How a choice is written with its least fields, where `word` is the name of one.
pub(super) fn written(word: &str) -> Option<(&'static str, &'static str)> {
    let word = word.replace(['_', '-'], "");
    let mut all = RULES.iter().chain(CONTROLLERS);
    all.find(|(name, _)| name.eq_ignore_ascii_case(&word)).copied()
}

/// The names without a value in a document as it was written, where none beside them has one.
pub(super) fn choices(document: &Value) -> Vec<Misfit> {
    let mut found = Vec::new();
    if let Some(controller) = at(document, &CONTROLLER_AT) {
        found.extend(empty(controller, CONTROLLERS, steps(&CONTROLLER_AT)));
    }
    let rules = at(document, &RULES_AT).and_then(Value::as_sequence);
    for (index, rule) in rules.into_iter().flatten().enumerate() {
        let mut path = steps(&RULES_AT);
        path.push(Step::Item(index));
        found.extend(empty(rule, RULES, path));
    }
    found
}

fn at<'a>(document: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(document, |value, name| value.get(*name))
}

fn steps(path: &[&str]) -> Vec<Step> {
    path.iter().map(|name| Step::Field((*name).into())).collect()
}

fn empty(block: &Value, choices: &Choices, mut path: Vec<Step>) -> Option<Misfit> {
    let has_value = |&(name, _): &(&str, &str)| block.get(name).is_some_and(|value| !value.is_null());
    if choices.iter().any(has_value) {
        return None;
    }
    let (name, filled) = choices.iter().find(|(name, _)| block.get(*name).is_some())?;
    path.push(Step::Field((*name).into()));
    Some(Misfit::new(path, format!("is empty; write `{name}: {filled}`")))
}
