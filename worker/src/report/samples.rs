//! The samples of a run, as data for the page's browser. The page builds text nodes from it, never markup.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::telemetry::SampleRecord;

/// Tokens in the page; a report should open at once, so of a long run some steps are left out.
const MOST_TOKENS: usize = 150_000;

/// One step's samples.
#[derive(Debug, Serialize)]
pub(super) struct StepSamples<'a> {
    step: u64,
    samples: Vec<Sample<'a>>,
}

#[derive(Debug, Serialize)]
struct Sample<'a> {
    prompt: &'a str,
    label: Option<&'a str>,
    response: &'a str,
    score: f64,
    finish: &'a str,
    /// Text, reward, advantage, KL, log-probability.
    tokens: Vec<(&'a str, f64, f64, f64, f64)>,
}

/// The steps that fit, spread over the run, the first and the last among them.
pub(super) fn selection(samples: &BTreeMap<u64, Vec<SampleRecord>>) -> Vec<StepSamples<'_>> {
    let steps: Vec<(&u64, &Vec<SampleRecord>)> = samples.iter().collect();
    let tokens = |records: &[SampleRecord]| records.iter().map(|record| record.tokens.len() + 8).sum::<usize>();
    let all: usize = steps.iter().map(|(_, records)| tokens(records)).sum();
    let every = all.div_ceil(MOST_TOKENS).max(1);
    let last = steps.len().saturating_sub(1);
    let kept = steps
        .iter()
        .enumerate()
        .filter(|(index, _)| index % every == 0 || *index == last);
    kept.map(|(_, (step, records))| StepSamples {
        step: **step,
        samples: records.iter().map(sample).collect(),
    })
    .collect()
}

fn sample(record: &SampleRecord) -> Sample<'_> {
    let four = |value: f64| (value * 1e4).round() / 1e4;
    Sample {
        prompt: &record.prompt,
        label: record.label.as_deref(),
        response: &record.response,
        score: four(record.score),
        finish: &record.finish_reason,
        tokens: record
            .tokens
            .iter()
            .map(|token| {
                (
                    token.text.as_str(),
                    four(token.reward),
                    four(token.advantage),
                    four(token.kl),
                    four(token.logprob),
                )
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::TokenRecord;

    #[test]
    fn a_long_run_keeps_its_first_and_last_samples_and_stays_small() {
        let record = SampleRecord {
            tokens: vec![TokenRecord::default(); 992],
            ..SampleRecord::default()
        };
        let samples: BTreeMap<u64, Vec<SampleRecord>> = (1..=1000).map(|step| (step, vec![record.clone()])).collect();
        let kept = selection(&samples);
        assert!(kept.len() <= MOST_TOKENS / 1000 + 1);
        assert_eq!((kept[0].step, kept[kept.len() - 1].step), (1, 1000));
    }
}
