//! Whitening: zero mean, unit variance over the tokens of the mask.

use ppo_crds::spec::Profile;
use tch::Tensor;

use super::grid::Grid;
use super::{Error, mask};

/// (x - mean) / sqrt(var + 1e-8) over the positions of the mask, with the unbiased variance; `values` and `mask` are
/// [batch, time]. Masked positions are 0 afterwards. With `keep_mean` the mean is added back: only the scale changes.
/// Fewer than two tokens have no variance: they are returned as they are. Give the tokens of the whole step, of all ranks.
///
/// By profile: `openrlhf` divides by the population deviation, the variance held at 1e-8 or above; `verl` divides sums by
/// (tokens + 1e-8); `alpacafarm` looks at no mask, takes the population deviation over all slots and divides by
/// (deviation + 1e-8); `trl` is as `default` (TRL's step is one rank's), but for RLOO's advantages, which are whitened over
/// sequences.
///
/// # Errors
/// `values` is not of the mask's shape.
pub fn whiten(profile: Profile, values: &Tensor, mask: &Tensor, keep_mean: bool) -> Result<Tensor, Error> {
    let mask = Grid::read_mask(mask)?;
    let grid = Grid::read_as("values", values, mask.shape())?;
    Ok(whitened(profile, &grid, &mask, keep_mean).tensor_like(values))
}

pub(crate) fn whitened(profile: Profile, values: &Grid<f64>, mask: &Grid<bool>, keep_mean: bool) -> Grid<f64> {
    let everywhere = mask.filled(true);
    let mask = if profile == Profile::Alpacafarm {
        &everywhere
    } else {
        mask
    };
    let mut result = values.clone();
    result.keep(mask);
    let (mean, scale) = mean_and_scale(profile, values, mask);
    let Some(scale) = scale else {
        return result;
    };
    let back = if keep_mean { mean } else { 0.0 };
    for (cell, _) in result.cells.iter_mut().zip(&mask.cells).filter(|(_, on)| **on) {
        *cell = (*cell - mean) * scale + back;
    }
    result
}

/// TRL's `normalize_advantages` (RLOOTrainer of TRL 0.24, rloo_trainer.py): (A - mean) / (deviation + 1e-4) over sequences,
/// whatever their lengths, with the unbiased deviation. A row holds the same number on all of its tokens; rows without a
/// token are left out. Fewer than two rows are returned as they are.
pub(crate) fn whitened_sequences(values: &Grid<f64>, mask: &Grid<bool>) -> Grid<f64> {
    let rows = values.rows().zip(mask.rows());
    let own: Vec<f64> = rows
        .filter_map(|(row, mask)| mask::last_index(mask).map(|t| row[t]))
        .collect();
    let count = own.len() as f64;
    let mut result = values.clone();
    result.keep(mask);
    if own.len() < 2 {
        return result;
    }
    let mean = own.iter().sum::<f64>() / count;
    let squares: f64 = own.iter().map(|value| (value - mean).powi(2)).sum();
    let scale = ((squares / (count - 1.0)).sqrt() + 1e-4).recip();
    for (cell, _) in result.cells.iter_mut().zip(&mask.cells).filter(|(_, on)| **on) {
        *cell = (*cell - mean) * scale;
    }
    result
}

/// No scale where the variance is undefined.
fn mean_and_scale(profile: Profile, values: &Grid<f64>, mask: &Grid<bool>) -> (f64, Option<f64>) {
    let chosen = || {
        values
            .cells
            .iter()
            .zip(&mask.cells)
            .filter(|(_, on)| **on)
            .map(|(value, _)| *value)
    };
    let count = chosen().count() as f64;
    // verl.utils.torch_functional.masked_mean divides by (mask.sum() + 1e-8).
    let divisor = if profile == Profile::Verl { count + 1e-8 } else { count };
    let mean = chosen().sum::<f64>() / divisor.max(f64::MIN_POSITIVE);
    let population = chosen().map(|value| (value - mean).powi(2)).sum::<f64>() / divisor.max(f64::MIN_POSITIVE);
    let scale = match profile {
        Profile::Openrlhf if count > 0.0 => Some(population.max(1e-8).sqrt().recip()),
        Profile::Alpacafarm if count > 0.0 => Some((population.sqrt() + 1e-8).recip()),
        Profile::Default | Profile::Trl | Profile::Verl if count > 1.0 => {
            Some((population * count / (count - 1.0) + 1e-8).sqrt().recip())
        }
        _ => None,
    };
    (mean, scale)
}
