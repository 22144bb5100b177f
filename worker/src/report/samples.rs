//! The samples of a run, as data for the page's browser. The page builds text nodes from it, never markup.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::telemetry::{SampleRecord, each_line};

/// Tokens in the page; a report should open at once, so of a long run some steps and samples are left out.
const MOST_TOKENS: usize = 150_000;
/// Bytes of a page that a token's text and numbers take, about.
const TOKEN_BYTES: usize = 40;

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

/// How much a line weighs; nothing of it is kept.
#[derive(Deserialize)]
struct Weight {
    step: u64,
    #[serde(default)]
    prompt: String,
    #[serde(default)]
    response: String,
    #[serde(default)]
    tokens: Vec<IgnoredAny>,
}

#[derive(Deserialize)]
struct Line {
    step: u64,
    #[serde(flatten)]
    sample: SampleRecord,
}

/// What a sample takes of a page, in tokens: its own, as many as its texts are as large as, and about eight for the rest.
fn weight(tokens: usize, prompt: &str, response: &str) -> usize {
    tokens + (prompt.len() + response.len()) / TOKEN_BYTES + 8
}

/// The samples of a file by step, as many as a page holds, and how many lines could not be read.
///
/// # Errors
/// When the file is there and cannot be read.
pub(super) fn read(path: &Path) -> Result<(BTreeMap<u64, Vec<SampleRecord>>, usize)> {
    read_up_to(MOST_TOKENS, path)
}

/// The steps are spread over the run, the first and the last among them, and share the room equally; each has at least one sample. The
/// file may be larger than the memory.
fn read_up_to(most: usize, path: &Path) -> Result<(BTreeMap<u64, Vec<SampleRecord>>, usize)> {
    let mut all: BTreeMap<u64, usize> = BTreeMap::new();
    // What cannot be weighed cannot be shown: it is counted below.
    each_line(path, |line: Weight| {
        *all.entry(line.step).or_default() += weight(line.tokens.len(), &line.prompt, &line.response);
    })?;
    let every = all.values().sum::<usize>().div_ceil(most).max(1);
    let last = all.len().saturating_sub(1);
    let steps = all.keys().enumerate();
    let chosen: BTreeSet<u64> = steps
        .filter(|(index, _)| index % every == 0 || *index == last)
        .map(|(_, step)| *step)
        .collect();
    let room = most / chosen.len().max(1);
    let mut samples: BTreeMap<u64, Vec<SampleRecord>> = BTreeMap::new();
    let mut taken: BTreeMap<u64, usize> = BTreeMap::new();
    let unreadable = each_line(path, |line: Line| {
        if !chosen.contains(&line.step) {
            return;
        }
        let taken = taken.entry(line.step).or_default();
        let sample = &line.sample;
        *taken += weight(sample.tokens.len(), &sample.prompt, &sample.response);
        let kept = samples.entry(line.step).or_default();
        if kept.is_empty() || *taken <= room {
            kept.push(line.sample);
        }
    })?;
    Ok((samples, unreadable))
}

/// The same for the page.
pub(super) fn of_steps(samples: &BTreeMap<u64, Vec<SampleRecord>>) -> Vec<StepSamples<'_>> {
    let shown = samples.iter().map(|(step, records)| StepSamples {
        step: *step,
        samples: records.iter().map(sample).collect(),
    });
    shown.collect()
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
    use std::io::{BufWriter, Write as _};

    use super::*;
    use crate::telemetry::TokenRecord;

    const MOST: usize = 6_000;

    /// What is shown of `steps` steps of `samples` samples, which have as many tokens as `tokens` says by step and sample.
    fn shown(steps: u64, samples: usize, tokens: impl Fn(u64, usize) -> usize) -> BTreeMap<u64, Vec<usize>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut lines = BufWriter::new(file.as_file());
        for step in 1..=steps {
            for number in 0..samples {
                let record = SampleRecord {
                    tokens: vec![TokenRecord::default(); tokens(step, number)],
                    ..SampleRecord::default()
                };
                let mut line = serde_json::to_value(record).unwrap();
                line["step"] = step.into();
                writeln!(lines, "{line}").unwrap();
            }
        }
        writeln!(lines, "torn").unwrap();
        lines.flush().unwrap();
        let (samples, unreadable) = read_up_to(MOST, file.path()).unwrap();
        assert_eq!(unreadable, 1);
        let lengths = |records: Vec<SampleRecord>| records.iter().map(|record| record.tokens.len()).collect();
        samples
            .into_iter()
            .map(|(step, records)| (step, lengths(records)))
            .collect()
    }

    #[test]
    fn a_short_run_keeps_all_of_its_samples() {
        let all = shown(3, 4, |step, number| step as usize * 10 + number);
        assert_eq!(all[&2], [20, 21, 22, 23]);
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn a_long_run_keeps_its_first_and_last_samples_and_stays_small() {
        let kept = shown(300, 1, |_, _| 92);
        assert!(kept.len() > 50 && kept.len() <= MOST / 100 + 1, "{}", kept.len());
        assert!(kept.contains_key(&1) && kept.contains_key(&300));
    }

    #[test]
    fn long_prompts_take_room_too() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut lines = BufWriter::new(file.as_file());
        let prompt = "x".repeat(100 * TOKEN_BYTES);
        for step in 1..=300 {
            writeln!(lines, "{}", serde_json::json!({"step": step, "prompt": prompt})).unwrap();
        }
        lines.flush().unwrap();
        let (kept, _) = read_up_to(MOST, file.path()).unwrap();
        assert!(kept.len() > 30 && kept.len() <= MOST / 100 + 1, "{}", kept.len());
    }

    #[test]
    fn a_line_that_is_no_sample_is_counted_though_it_names_its_step() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines = [
            r#"{"step": 1, "label": 5}"#,
            r#"{"step": 1, "label": "5"}"#,
            "torn",
            r#"{"step": 1, "tokens": 7}"#,
        ];
        std::fs::write(file.path(), lines.join("\n")).unwrap();
        let (kept, unreadable) = read_up_to(MOST, file.path()).unwrap();
        assert_eq!((kept[&1].len(), unreadable), (1, 3));
    }

    #[test]
    fn steps_share_the_room_equally_and_each_has_a_sample() {
        // The steps that are chosen are heavier than the others.
        let kept = shown(5, 20, |step, _| if step % 4 == 1 { 292 } else { 2 });
        let total: usize = kept.values().flatten().map(|tokens| weight(*tokens, "", "")).sum();
        assert!(total <= MOST, "{total}");
        assert!(kept[&1].len() > 1 && kept[&1].len() == kept[&5].len(), "{kept:?}");
        assert_eq!(
            shown(2, 3, |_, _| MOST),
            BTreeMap::from([(1, vec![MOST]), (2, vec![MOST])])
        );
    }
}
