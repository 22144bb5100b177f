//! Masked statistics for metrics.

use tch::Tensor;

use super::Error;
use super::grid::Grid;

/// Moments and bounds of the values under a mask. All 0 when nothing is under it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Values counted.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Their population variance.
    pub variance: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

/// Summarises `values` where `mask` is 1; both [batch, time].
///
/// # Errors
/// The shapes differ.
pub fn summary(values: &Tensor, mask: &Tensor) -> Result<Summary, Error> {
    Ok(summarise(&chosen("values", values, mask)?))
}

/// Share of the returns' variance that the values explain: 1 - Var(returns - values) / Var(returns), 1 at best, negative
/// when the critic is worse than a constant; 0 when the returns do not vary. All [batch, time].
///
/// # Errors
/// The shapes differ.
pub fn explained_variance(values: &Tensor, returns: &Tensor, mask: &Tensor) -> Result<f64, Error> {
    let values = chosen("values", values, mask)?;
    let returns = chosen("returns", returns, mask)?;
    let errors: Vec<f64> = returns
        .iter()
        .zip(&values)
        .map(|(target, value)| target - value)
        .collect();
    let variance = summarise(&returns).variance;
    if variance < f64::EPSILON {
        return Ok(0.0);
    }
    Ok(1.0 - summarise(&errors).variance / variance)
}

/// How far the actor's log-probs are from the engine's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mismatch {
    /// Mean of |x_old - x_rollout| over tokens.
    pub mean: f64,
    /// Its maximum.
    pub max: f64,
}

/// Compares the log-probs the actor recomputed with those the engine recorded; all [batch, time].
///
/// # Errors
/// The shapes differ.
pub fn mismatch(old_logprobs: &Tensor, rollout_logprobs: &Tensor, mask: &Tensor) -> Result<Mismatch, Error> {
    let old = chosen("old_logprobs", old_logprobs, mask)?;
    let rollout = chosen("rollout_logprobs", rollout_logprobs, mask)?;
    let distances: Vec<f64> = old.iter().zip(&rollout).map(|(a, b)| (a - b).abs()).collect();
    let summary = summarise(&distances);
    Ok(Mismatch {
        mean: summary.mean,
        max: summary.max,
    })
}

fn chosen(name: &'static str, values: &Tensor, mask: &Tensor) -> Result<Vec<f64>, Error> {
    let mask = Grid::read_mask(mask)?;
    let values = Grid::read_as(name, values, mask.shape())?;
    Ok(values
        .cells
        .into_iter()
        .zip(mask.cells)
        .filter(|(_, on)| *on)
        .map(|(value, _)| value)
        .collect())
}

fn summarise(values: &[f64]) -> Summary {
    let count = values.len();
    if count == 0 {
        return Summary::default();
    }
    let mean = values.iter().sum::<f64>() / count as f64;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count as f64;
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Summary {
        count,
        mean,
        variance,
        min,
        max,
    }
}
