//! The KL coefficient over the steps of a run.

use ppo_crds::run_config;
use ppo_crds::spec::Profile;
use tch::{Kind, Tensor};

use super::Error;
use super::grid::Grid;

/// The coefficient and how it moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KlController {
    /// The coefficient of the next step: use it, then [`KlController::observe`]. A checkpoint keeps it
    /// ([`State::kl_coefficient`](crate::run_state::State::kl_coefficient)); how it moves is part of the run's configuration.
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

    /// Whether the coefficient may move after a step: only after one in which the policy learnt. While it rests for the critic's warm-up its KL
    /// is none of what the coefficient does, and that of a policy which is its own reference would let it fall. OpenRLHF 0.11 does so because
    /// the KL is told by the update (PPOTrainer.train_step in ppo_trainer.py: `if "kl" in status`); verl 0.9 moves it after every
    /// step (apply_kl_penalty in ray_trainer.py), and so does its profile.
    pub fn observes(&self, policy_learnt: bool) -> bool {
        policy_learnt || self.profile == Profile::Verl
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

/// The KL of a step that its controller observes, nats. `kl` is the per-token estimate before the step's updates, `mask` the response
/// mask, both [batch, time]; `kl_loss` is the mean over the updates of the loss's KL term, where it has one.
///
/// The mean over samples of the sequence's sum; `openrlhf` and `verl`: the mean over samples of their token means. With the
/// KL placed in the loss OpenRLHF observes `kl_loss`: that of the policy while it learns.
///
/// (OpenRLHF 0.11: `kl_mean` in experience_maker.py, one number a sample, which ppo_actor.py weighs by samples; its
/// `training_step` replaces it by `kl_loss`. verl 0.9: apply_kl_penalty in ray_trainer.py.)
///
/// # Errors
/// `kl` is not of the mask's shape.
pub fn observed_kl(profile: Profile, kl: &Tensor, mask: &Tensor, kl_loss: Option<f64>) -> Result<f64, Error> {
    if let (Profile::Openrlhf, Some(kl_loss)) = (profile, kl_loss) {
        return Ok(kl_loss);
    }
    let mask = Grid::read_mask(mask)?;
    let mut kl = Grid::read_as("kl", &kl.to_kind(Kind::Double), mask.shape())?;
    if profile != Profile::Alpacafarm {
        kl.keep(&mask);
    }
    let sums: Vec<f64> = kl.rows().map(|row| row.iter().sum()).collect();
    let tokens: Vec<f64> = mask
        .rows()
        .map(|row| row.iter().filter(|&&on| on).count() as f64)
        .collect();
    let mean = |of: &[f64]| of.iter().sum::<f64>() / (mask.batch as f64).max(1.0);
    let mean_of_means = |divisor: fn(f64) -> f64| {
        let means: Vec<f64> = sums
            .iter()
            .zip(&tokens)
            .map(|(sum, &tokens)| sum / divisor(tokens))
            .collect();
        mean(&means)
    };
    Ok(match profile {
        Profile::Openrlhf => mean_of_means(|tokens| tokens.max(1.0)),
        Profile::Verl => mean_of_means(|tokens| tokens + 1e-8),
        Profile::Default | Profile::Trl | Profile::Alpacafarm => mean(&sums),
    })
}
