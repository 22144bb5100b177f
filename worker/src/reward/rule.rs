//! Rules: verifiable rewards that need no model. Every score lies between 0 and 1.

use std::borrow::Cow;

use anyhow::{Context, Result, anyhow, bail};
use ppo_crds::pattern;
use ppo_crds::spec::{JsonRule, LengthRule, RewardRule};
use regex::Regex;
use serde_json::Value;

use super::math::Answer;
use super::number::{Number, is_cut, last_number};
use super::sample::ScoredSample;
use crate::data::Label;

/// Characters of a label that an error shows.
const SHOWN: usize = 80;

/// One compiled rule of `roles.reward.rules`.
#[derive(Clone, Debug)]
pub struct Rule {
    extract: Option<Regex>,
    check: Check,
}

#[derive(Clone, Debug)]
enum Check {
    ExactMatch { ignore_case: bool },
    NumericMatch { tolerance: f64 },
    MathMatch,
    Regex(Regex),
    Length(LengthRule),
    Json(JsonRule),
}

/// What a label says, as the rule compares it.
#[derive(Debug)]
enum Wanted<'a> {
    Text(Cow<'a, str>),
    Number(Number),
    Answer(Answer),
    Nothing,
}

impl Rule {
    /// Compiles a rule.
    ///
    /// # Errors
    /// A regular expression that is not one, or a rule with none or several of the six kinds.
    pub fn new(rule: &RewardRule) -> Result<Self> {
        let compile =
            |field: &str, pattern: &str| pattern::compile(pattern).map_err(|refused| anyhow!("{field}: {refused}"));
        let extract = rule
            .extract
            .as_deref()
            .map(|pattern| compile("extract", pattern))
            .transpose()?;
        let mut checks = Vec::new();
        checks.extend(rule.exact_match.as_ref().map(|exact| Check::ExactMatch {
            ignore_case: exact.ignore_case,
        }));
        checks.extend(rule.numeric_match.as_ref().map(|numeric| Check::NumericMatch {
            tolerance: numeric.tolerance,
        }));
        checks.extend(rule.math_match.as_ref().map(|_| Check::MathMatch));
        if let Some(regex) = &rule.regex {
            checks.push(Check::Regex(compile("regex.pattern", &regex.pattern)?));
        }
        checks.extend(rule.length.clone().map(Check::Length));
        checks.extend(rule.json.clone().map(Check::Json));
        match <[Check; 1]>::try_from(checks) {
            Ok([check]) => Ok(Self { extract, check }),
            Err(checks) => bail!(
                "a rule has {} of exactMatch, numericMatch, mathMatch, regex, length, json; want exactly one",
                checks.len()
            ),
        }
    }

    /// The rules of `roles.reward.rules`, in their order.
    ///
    /// # Errors
    /// As [`new`](Self::new), with the rule's place.
    pub fn all(rules: &[RewardRule]) -> Result<Vec<Self>> {
        let compiled = |(index, rule): (usize, &RewardRule)| {
            Self::new(rule).with_context(|| format!("roles.reward.rules[{index}]"))
        };
        rules.iter().enumerate().map(compiled).collect()
    }

    /// The rule's name in the manifest; names its scores in the logs.
    pub fn name(&self) -> &'static str {
        match self.check {
            Check::ExactMatch { .. } => "exactMatch",
            Check::NumericMatch { .. } => "numericMatch",
            Check::MathMatch => "mathMatch",
            Check::Regex(_) => "regex",
            Check::Length(_) => "length",
            Check::Json(_) => "json",
        }
    }

    /// True when the rule counts tokens, so that text alone is not enough.
    pub fn needs_tokens(&self) -> bool {
        matches!(self.check, Check::Length(_))
    }

    /// Refuses a label that the rule cannot compare with.
    ///
    /// # Errors
    /// No label where the rule needs one, one that is no text, one without a number for `numericMatch`, or without an answer for
    /// `mathMatch`.
    pub fn check_label(&self, label: Option<&Label>) -> Result<()> {
        self.wanted(label).map(|_| ())
    }

    /// Score of one sample, in [0, 1].
    ///
    /// # Errors
    /// As [`check_label`](Self::check_label), whatever the response is. A response is never an error.
    pub fn score(&self, sample: &ScoredSample) -> Result<f32> {
        let wanted = self
            .wanted(sample.label.as_ref())
            .with_context(|| format!("sample {}", sample.index))?;
        let Some(text) = self.read(&sample.visible_response) else {
            return Ok(0.0);
        };
        Ok(match (&self.check, &wanted) {
            (Check::NumericMatch { tolerance }, Wanted::Number(wanted)) => {
                truth(last_number(text).is_some_and(|number| number.is_within(*tolerance, wanted)))
            }
            (Check::ExactMatch { ignore_case: true }, Wanted::Text(wanted)) => {
                truth(text.to_lowercase() == wanted.to_lowercase())
            }
            (Check::ExactMatch { .. }, Wanted::Text(wanted)) => truth(wanted == text),
            (Check::MathMatch, Wanted::Answer(wanted)) => {
                truth(self.answer(text).is_some_and(|answer| wanted.accepts(&answer)))
            }
            (Check::ExactMatch { .. } | Check::NumericMatch { .. } | Check::MathMatch, _) => 0.0,
            (Check::Regex(pattern), _) => truth(pattern.is_match(text)),
            (Check::Length(length), _) => length_score(sample.response_ids.len(), length),
            (Check::Json(rule), _) => truth(is_json(text, rule)),
        })
    }

    /// What the response is compared with.
    fn wanted<'a>(&self, label: Option<&'a Label>) -> Result<Wanted<'a>> {
        let needed = || {
            let label = label.with_context(|| {
                format!(
                    "rule {} needs a label and there is none; set prompts.labelField, or give the row one",
                    self.name()
                )
            });
            let text = label?.text();
            text.map_err(|wrong| anyhow!("rule {} compares with a text, and the label {wrong}", self.name()))
        };
        match self.check {
            Check::ExactMatch { .. } => Ok(Wanted::Text(trimmed(needed()?))),
            Check::NumericMatch { .. } => {
                let label = needed()?;
                if is_cut(&label) {
                    let shown: String = label.chars().take(SHOWN).collect();
                    bail!(
                        "label {shown:?} has a number of which numericMatch would compare the last digits alone: write it without \
                         separators, and its decimals behind a point"
                    );
                }
                let number = last_number(&label);
                number.map(Wanted::Number).with_context(|| {
                    format!("label {label:?} holds no number for numericMatch: leave its row out, or use exactMatch")
                })
            }
            Check::MathMatch => {
                let label = needed()?;
                let answer = Answer::of_label(&label).map_err(|wrong| {
                    let shown: String = label.chars().take(SHOWN).collect();
                    anyhow!(
                        "label {shown:?} {wrong}: for mathMatch give the answer itself, or one in \\boxed{{}}, or leave its row out"
                    )
                });
                answer.map(Wanted::Answer)
            }
            _ => Ok(Wanted::Nothing),
        }
    }

    /// The answer in what the rule reads of a response: what `extract` found is an answer as a label is, a whole response has one.
    fn answer(&self, text: &str) -> Option<Answer> {
        match self.extract {
            Some(_) => Answer::of_label(text).ok(),
            None => Answer::of_response(text),
        }
    }

    /// What the rule reads of a response: the first group of the last match of `extract`, else the whole match, else,
    /// without `extract`, the whole response; trimmed.
    fn read<'a>(&self, response: &'a str) -> Option<&'a str> {
        let Some(extract) = &self.extract else {
            return Some(response.trim());
        };
        let found = extract.captures_iter(response).last()?;
        Some(found.get(1).or_else(|| found.get(0))?.as_str().trim())
    }
}

fn trimmed(text: Cow<'_, str>) -> Cow<'_, str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.trim()),
        Cow::Owned(text) => Cow::Owned(text.trim().to_owned()),
    }
}

fn truth(holds: bool) -> f32 {
    if holds { 1.0 } else { 0.0 }
}

/// 1 inside [min, max], falling to 0 over `slope` tokens outside.
fn length_score(tokens: usize, rule: &LengthRule) -> f32 {
    let tokens = tokens as f64;
    let outside = (f64::from(rule.min) - tokens)
        .max(tokens - f64::from(rule.max))
        .max(0.0);
    if outside == 0.0 {
        return 1.0;
    }
    (1.0 - outside / f64::from(rule.slope)).max(0.0) as f32
}

fn is_json(text: &str, rule: &JsonRule) -> bool {
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(fields)) => rule.required_keys.iter().all(|key| fields.contains_key(key)),
        Ok(_) => rule.required_keys.is_empty(),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests;
