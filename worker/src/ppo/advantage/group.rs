//! Scores compared within the samples of one prompt, found by group id: the order of samples does not matter.

use std::collections::BTreeMap;

use ppo_crds::spec::{Deviation, Estimator};

use super::super::Error;

/// Scores and how to centre them.
pub(super) struct Centring<'a> {
    pub estimator: Estimator,
    /// One number per sample.
    pub scores: &'a [f64],
    /// The group of each sample.
    pub groups: &'a [i64],
    /// Samples every group must have.
    pub group_size: Option<usize>,
    /// Whose deviation GRPO divides by.
    pub deviation: Deviation,
    /// Added to GRPO's deviation.
    pub deviation_eps: f64,
    pub single: Single,
}

/// A group of one sample: it has no others to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Single {
    /// An error.
    Refused,
    /// The score as it is.
    Kept,
    /// Mean 0 and deviation 1 (verl).
    Uncentred,
    /// Its own mean subtracted: 0 (OpenRLHF).
    Centred,
}

/// The centred score of each sample, in the order given.
pub(super) fn centred(centring: &Centring) -> Result<Vec<f64>, Error> {
    let mut members: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
    for (sample, &group) in centring.groups.iter().enumerate() {
        members.entry(group).or_default().push(sample);
    }
    let mut result = vec![0.0; centring.scores.len()];
    for (&group, samples) in &members {
        refuse_a_wrong_size(centring, group, samples.len())?;
        let scores: Vec<f64> = samples.iter().map(|&sample| centring.scores[sample]).collect();
        for (&sample, score) in samples.iter().zip(centred_group(centring, &scores)) {
            result[sample] = score;
        }
    }
    Ok(result)
}

fn refuse_a_wrong_size(centring: &Centring, group: i64, found: usize) -> Result<(), Error> {
    let refusal = |needs| {
        Err(Error::Group {
            group,
            found,
            needs,
            estimator: centring.estimator,
        })
    };
    match centring.group_size {
        Some(size) if size != found => refusal(format!("the {size} of nSamplesPerPrompt")),
        _ if found == 1 && centring.single == Single::Refused => refusal("at least 2".into()),
        _ => Ok(()),
    }
}

fn centred_group(centring: &Centring, scores: &[f64]) -> Vec<f64> {
    let count = scores.len() as f64;
    if scores.len() == 1 && centring.single != Single::Centred {
        let deviation = match (centring.single, centring.estimator) {
            (Single::Uncentred, Estimator::Grpo) => 1.0 + centring.deviation_eps,
            _ => 1.0,
        };
        return vec![scores[0] / deviation];
    }
    let mean = mean(scores);
    let scale = match centring.estimator {
        // R - mean of the others = (R - mean of all) n / (n - 1).
        Estimator::Rloo => count / (count - 1.0),
        Estimator::Grpo => {
            let deviation = match centring.deviation {
                Deviation::Group => unbiased_deviation(scores),
                Deviation::Batch => unbiased_deviation(centring.scores),
            };
            1.0 / (deviation + centring.deviation_eps)
        }
        _ => 1.0,
    };
    scores.iter().map(|score| (score - mean) * scale).collect()
}

fn mean(scores: &[f64]) -> f64 {
    scores.iter().sum::<f64>() / scores.len() as f64
}

fn unbiased_deviation(scores: &[f64]) -> f64 {
    let mean = mean(scores);
    let squares: f64 = scores.iter().map(|score| (score - mean).powi(2)).sum();
    (squares / (scores.len() as f64 - 1.0)).sqrt()
}
