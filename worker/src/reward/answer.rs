//! The answer of a remote reward, checked: one finite number for each sample.

use serde_json::Value;

use super::mix::Scores;
use super::names::{MOST_NAMES, SCORES};
use super::protocol::ScoreResponse;
use super::sample::ScoredSample;
use crate::data::describe;

/// Begins what errors call a further log.
const EXTRA: &str = "extra_logs.";

/// The scores in an answer: `rewards`, else `scores`; a `scores` beside `rewards` is what dynamic sampling compares, and with `extra_logs` a
/// further log.
pub(super) fn read_answer(body: &[u8], samples: &[ScoredSample]) -> Result<Scores, String> {
    if body.trim_ascii_start().starts_with(b"[") {
        return Err("the answer is a list; want {\"rewards\": [number, ..]}".to_owned());
    }
    let answer: ScoreResponse = serde_json::from_slice(body).map_err(|cause| {
        let infinite = [b"NaN".as_slice(), b"Infinity"]
            .iter()
            .any(|word| body.windows(word.len()).any(|at| at == *word));
        let hint = if infinite {
            " (scores must be finite, and so must extra_logs; NaN and Infinity are no JSON)"
        } else {
            ""
        };
        format!("want {{\"rewards\": [number, ..]}}: {cause}{hint}")
    })?;
    check(&answer, samples)
}

/// The scores of an answer, as [`read_answer`].
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
    // One more than a run can have, so that it is told of.
    for (name, value) in answer.extra_logs.iter().take(MOST_NAMES + 1) {
        read.extra.insert(name.clone(), extra_log(name, value, samples)?);
    }
    Ok(read)
}

fn finite(name: &str, values: &[Option<f64>], samples: &[ScoredSample]) -> Result<Vec<f32>, String> {
    if values.len() != samples.len() {
        let (given, asked) = (values.len(), samples.len());
        // As servers do that were made for OpenRLHF's trainer, which asks about one at a time.
        let hint = if given == 1 && !name.starts_with(EXTRA) {
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

/// A list with one number per sample, or one number for the whole batch.
fn extra_log(name: &str, value: &Value, samples: &[ScoredSample]) -> Result<Vec<f32>, String> {
    let name = format!("{EXTRA}{name}");
    let number = |value: &Value| {
        let number = value.as_f64().or(value.as_bool().map(f64::from));
        number.ok_or_else(|| format!("{name} has {}, want numbers", describe(value)))
    };
    let numbers: Vec<f64> = match value {
        Value::Array(items) => items.iter().map(number).collect::<Result<_, _>>()?,
        one => vec![number(one)?; samples.len()],
    };
    finite(&name, &numbers.into_iter().map(Some).collect::<Vec<_>>(), samples)
}
