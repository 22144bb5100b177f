//! The answer of a remote reward, checked: one finite number for each sample.

use std::collections::BTreeMap;

use serde_json::Value;

use super::mix::Scores;
use super::names::{MOST_NAMES, SCORES};
use super::protocol::ScoreResponse;
use super::sample::ScoredSample;
use crate::data::describe;

/// What an answer says.
#[derive(Debug)]
pub(super) struct Read {
    pub scores: Scores,
    /// Why a further log of it is left out; of several the first.
    pub left_out: Option<String>,
}

/// The scores in an answer: `rewards`, else `scores`; a `scores` beside `rewards` is what dynamic sampling compares, and with `extra_logs` a
/// further log.
pub(super) fn read_answer(body: &[u8], samples: &[ScoredSample]) -> Result<Read, String> {
    if body.trim_ascii_start().starts_with(b"[") {
        return Err("the answer is a list; want {\"rewards\": [number, ..]}".to_owned());
    }
    let answer: ScoreResponse = serde_json::from_slice(body).map_err(|cause| {
        let infinite = [b"NaN".as_slice(), b"Infinity"]
            .iter()
            .any(|word| body.windows(word.len()).any(|at| at == *word));
        let hint = if infinite {
            " (scores must be finite, and extra_logs may have null; NaN and Infinity are no JSON)"
        } else {
            ""
        };
        format!("want {{\"rewards\": [number, ..]}}: {cause}{hint}")
    })?;
    let mut scores = check(&answer, samples)?;
    let left_out = further(&answer.extra_logs, samples, &mut scores);
    Ok(Read { scores, left_out })
}

/// The scores of an answer, as [`read_answer`], but for its `extra_logs`.
pub(crate) fn check(answer: &ScoreResponse, samples: &[ScoredSample]) -> Result<Scores, String> {
    let (name, scores) = match (&answer.rewards, &answer.scores) {
        (Some(rewards), _) => ("rewards", rewards),
        (None, Some(scores)) => ("scores", scores),
        (None, None) => return Err("the answer has neither \"rewards\" nor \"scores\"".to_owned()),
    };
    let mut read = Scores::of(finite(name, scores, samples)?);
    if let (Some(_), Some(further)) = (&answer.rewards, &answer.scores) {
        read.compared = finite(SCORES, further, samples)?;
        read.extra.insert(SCORES.to_owned(), read.compared.clone());
    }
    Ok(read)
}

fn finite(name: &str, values: &[Option<f64>], samples: &[ScoredSample]) -> Result<Vec<f32>, String> {
    if values.len() != samples.len() {
        let (given, asked) = (values.len(), samples.len());
        // As servers do that were made for OpenRLHF's trainer, which asks about one at a time.
        let hint = if given == 1 {
            "; a server that scores one sample a call needs roles.reward.remote.batchSize: 1"
        } else {
            ""
        };
        return Err(format!("{name} has {given} numbers for {asked} samples{hint}"));
    }
    let one = |(value, sample): (&Option<f64>, &ScoredSample)| {
        let number = value.map(|value| value as f32).filter(|value| value.is_finite());
        let given = || value.map_or("null".to_owned(), |value| format!("{value:?}"));
        number.ok_or_else(|| format!("{name} of sample {} is {}, want a finite number", sample.index, given()))
    };
    values.iter().zip(samples).map(one).collect()
}

/// Adds the further logs that are some. None of them is a reason to end a run: why the first of the others is left out.
fn further(logs: &Value, samples: &[ScoredSample], scores: &mut Scores) -> Option<String> {
    // By name, so that the same ones have room however a server orders them.
    let logs: BTreeMap<&String, &Value> = match logs {
        Value::Null => return None,
        Value::Object(logs) => logs.iter().collect(),
        other => {
            return Some(format!(
                "extra_logs is {}, want {{\"name\": [number, ..]}}",
                describe(other)
            ));
        }
    };
    let mut left_out = None;
    let mut kept = 0;
    for (name, value) in logs {
        match further_log(value, samples) {
            Ok(numbers) => {
                scores.extra.insert(name.clone(), numbers);
                kept += 1;
            }
            Err(why) => {
                left_out.get_or_insert_with(|| format!("extra_logs.{name} has {why}"));
            }
        }
        // One more than a run can have, so that it is told of.
        if kept > MOST_NAMES {
            break;
        }
    }
    left_out
}

/// A list with one number for each sample, or one number for the whole batch; NaN for null, which says that there is none.
fn further_log(value: &Value, samples: &[ScoredSample]) -> Result<Vec<f32>, String> {
    let number = |value: &Value| {
        if value.is_null() {
            return Ok(f32::NAN);
        }
        let number = value.as_f64().or(value.as_bool().map(f64::from));
        let number = number.map(|number| number as f32).filter(|number| number.is_finite());
        number.ok_or_else(|| format!("{}, want finite numbers", describe(value)))
    };
    let numbers: Vec<f32> = match value {
        Value::Array(items) => items.iter().map(number).collect::<Result<_, _>>()?,
        one => vec![number(one)?; samples.len()],
    };
    match (numbers.len(), samples.len()) {
        (given, asked) if given == asked => Ok(numbers),
        (given, asked) => Err(format!("{given} numbers for {asked} samples")),
    }
}
