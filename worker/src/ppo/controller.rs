//! The KL coefficient over the steps of a run.

use ppo_crds::run_config;
use ppo_crds::spec::Profile;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::Error;
use super::grid::Grid;

/// The coefficient and how it moves. Part of the checkpoint: serialised, it resumes where it was.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KlController {
    /// The coefficient of the next step: use it, then [`KlController::observe`].
    pub coef: f64,
    controller: run_config::KlController,
    profile: Profile,
}

impl KlController {
    /// Starts at `coef`.
    pub fn new(coef: f64, controller: run_config::KlController, profile: Profile) -> Self {
        Self {
            coef,
            controller,
            profile,
        }
    }

    /// The controller of a run at its start.
    pub fn of(algorithm: &run_config::Algorithm) -> Self {
        Self::new(algorithm.kl.coef, algorithm.kl.controller, algorithm.profile)
    }

    /// Moves the coefficient after a step of `samples` samples with this KL (see [`observed_kl`]):
    /// coef *= 1 + clip(kl / target - 1, -0.2, 0.2) * samples / horizon (Ziegler et al. 2019, arXiv 1909.08593).
    /// `alpacafarm`: coef *= 1 + 0.1 * clip(kl / target - 1, -0.2, 0.2). A fixed controller stays.
    pub fn observe(&mut self, kl: f64, samples: usize) {
        let run_config::KlController::Adaptive { target, horizon } = self.controller else {
            return;
        };
        let error = (kl / target - 1.0).clamp(-0.2, 0.2);
        let gain = match self.profile {
            Profile::Alpacafarm => 0.1,
            _ => samples as f64 / horizon,
        };
        self.coef *= 1.0 + error * gain;
    }
}

/// The KL of a step that its controller observes, from the per-token estimate; `kl` and `mask` are [batch, time].
///
/// The mean over samples of the sequence's sum; `openrlhf`: the mean over tokens; `verl`: the mean over sequences of
/// their token means.
///
/// # Errors
/// `kl` is not of the mask's shape.
pub fn observed_kl(profile: Profile, kl: &Tensor, mask: &Tensor) -> Result<f64, Error> {
    let mask = Grid::read_mask(mask)?;
    let mut kl = Grid::read_as("kl", &kl.to_kind(Kind::Double), mask.shape())?;
    if profile != Profile::Alpacafarm {
        kl.keep(&mask);
    }
    let tokens = |row: &[bool]| row.iter().filter(|&&on| on).count() as f64;
    let sums = kl.rows().map(|row| row.iter().sum::<f64>());
    let samples = (mask.batch as f64).max(1.0);
    Ok(match profile {
        Profile::Openrlhf => sums.sum::<f64>() / mask.rows().map(tokens).sum::<f64>().max(1.0),
        Profile::Verl => {
            sums.zip(mask.rows())
                .map(|(sum, row)| sum / (tokens(row) + 1e-8))
                .sum::<f64>()
                / samples
        }
        Profile::Default | Profile::Trl | Profile::Alpacafarm => sums.sum::<f64>() / samples,
    })
}
