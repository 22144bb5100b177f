//! Advantages against the other samples of a prompt: RLOO, GRPO, Dr. GRPO and REINFORCE++-baseline.

use ppo_crds::run_config::Algorithm;
use ppo_crds::spec::{Estimator, KlPlacement, Profile};

use super::AdvantageInput;
use super::gae::reward_to_go;
use super::group::{Centring, Single, centred};
use crate::ppo::Error;
use crate::ppo::grid::{Grid, read_column};
use crate::ppo::shape::{clip, places};

/// What is compared within a group, and where the difference goes.
enum Compared {
    /// The row's sum of token rewards, KL included; the difference is the advantage of all its tokens. verl's
    /// compute_rloo_outcome_advantage and its neighbours in core_algos.py; TRL's RLOO (rlhf_reward = score - coef * KL sum).
    Sums,
    /// The row's score; the difference takes its place among the token rewards, and advantages are their reward-to-go.
    ScoreInPlace { gamma: f64 },
    /// The row's score; the difference is the advantage of all its tokens. A KL penalty in the reward comes beside it, as reward-to-go.
    Score,
}

impl Compared {
    fn by(algorithm: &Algorithm) -> Self {
        use Estimator::{DrGrpo, Grpo, Rloo};
        match (algorithm.profile, algorithm.estimator) {
            (Profile::Verl, _) | (Profile::Trl, Rloo) => Self::Sums,
            (Profile::Openrlhf, _) => Self::ScoreInPlace { gamma: 1.0 },
            (_, Grpo | DrGrpo) => Self::Score,
            _ => Self::ScoreInPlace { gamma: algorithm.gamma },
        }
    }
}

/// Before whitening, [batch, time].
pub(super) fn advantages(
    algorithm: &Algorithm,
    input: &AdvantageInput,
    rewards: &Grid<f64>,
    mask: &Grid<bool>,
) -> Result<Grid<f64>, Error> {
    let centre = centring(algorithm, input, mask)?;
    match Compared::by(algorithm) {
        Compared::Sums => {
            let sums: Vec<f64> = rewards.rows().map(|row| row.iter().sum()).collect();
            Ok(constant(&centre(&sums)?, mask))
        }
        Compared::ScoreInPlace { gamma } => {
            let scored = Scored::read(algorithm, input, mask)?;
            let differences = match algorithm.profile {
                // It clips after the baseline is subtracted.
                Profile::Openrlhf => clipped(algorithm, &centre(&scored.scores)?),
                _ => centre(&scored.clipped)?,
            };
            let rewards = scored.replaced(rewards, &differences);
            Ok(reward_to_go(algorithm.profile, gamma, &rewards, mask))
        }
        Compared::Score => {
            let scored = Scored::read(algorithm, input, mask)?;
            let mut advantages = constant(&centre(&scored.clipped)?, mask);
            if algorithm.kl.placement == KlPlacement::Reward && algorithm.kl.coef != 0.0 {
                let penalties = scored.replaced(rewards, &vec![0.0; mask.batch]);
                let penalties = reward_to_go(algorithm.profile, algorithm.gamma, &penalties, mask);
                add(&mut advantages, &penalties);
            }
            Ok(advantages)
        }
    }
}

/// Subtracts a group's baseline from a number of each sample, as the profile does.
fn centring<'a>(
    algorithm: &'a Algorithm,
    input: &'a AdvantageInput,
    mask: &Grid<bool>,
) -> Result<impl Fn(&[f64]) -> Result<Vec<f64>, Error> + 'a, Error> {
    let estimator = algorithm.estimator;
    let groups = input.groups.ok_or_else(|| Error::Missing {
        name: "groups",
        why: format!(
            "{} compares the samples of a prompt, so it needs the group id of each",
            estimator.name()
        ),
    })?;
    Error::unless_shape("groups", &[groups.len() as i64], &[mask.batch as i64])?;
    Ok(move |scores: &[f64]| {
        centred(&Centring {
            estimator,
            scores,
            groups,
            group_size: input.group_size,
            deviation: algorithm.deviation,
            deviation_eps: deviation_eps(algorithm.profile),
            single: single_rule(algorithm.profile, estimator),
        })
    })
}

/// Added to the deviation that GRPO divides by: by OpenRLHF in compute_advantages_and_returns (experience_maker.py), by TRL 0.24 in its
/// GRPOTrainer (_generate_and_score_completions in grpo_trainer.py).
fn deviation_eps(profile: Profile) -> f64 {
    match profile {
        Profile::Openrlhf => 1e-9,
        Profile::Trl => 1e-4,
        Profile::Default | Profile::Verl | Profile::Alpacafarm => 1e-6,
    }
}

/// What a framework makes of a group of one sample.
fn single_rule(profile: Profile, estimator: Estimator) -> Single {
    match (profile, estimator) {
        (Profile::Verl, _) => Single::Uncentred,
        (Profile::Openrlhf, Estimator::DrGrpo | Estimator::ReinforcePlusPlusBaseline) => Single::Centred,
        (Profile::Openrlhf, _) => Single::Refused,
        (_, Estimator::Grpo | Estimator::DrGrpo) => Single::Kept,
        _ => Single::Refused,
    }
}

/// The scores of a step, and where they stand among its token rewards.
struct Scored {
    /// One per row.
    scores: Vec<f64>,
    /// They as the token rewards have them.
    clipped: Vec<f64>,
    /// The token of each row's score; None where a row has none.
    places: Vec<Option<usize>>,
}

impl Scored {
    fn read(algorithm: &Algorithm, input: &AdvantageInput, mask: &Grid<bool>) -> Result<Self, Error> {
        let scores = input.scores.ok_or_else(|| Error::Missing {
            name: "scores",
            why: format!(
                "{} compares the scores of a prompt's samples",
                algorithm.estimator.name()
            ),
        })?;
        let scores = read_column("scores", scores, mask.batch)?;
        Ok(Self {
            clipped: clipped(algorithm, &scores),
            places: places(algorithm.profile, None, mask)?,
            scores,
        })
    }

    /// The token rewards with another number in place of each row's score: an adjustment, so that the token's KL stays.
    fn replaced(&self, rewards: &Grid<f64>, by: &[f64]) -> Grid<f64> {
        let mut rewards = rewards.clone();
        for (sample, place) in self.places.iter().enumerate() {
            if let Some(place) = *place {
                rewards.row_mut(sample)[place] += by[sample] - self.clipped[sample];
            }
        }
        rewards
    }
}

fn clipped(algorithm: &Algorithm, scores: &[f64]) -> Vec<f64> {
    scores.iter().map(|&score| clip(&algorithm.score, score)).collect()
}

/// Each row's number on every token of the row.
fn constant(numbers: &[f64], mask: &Grid<bool>) -> Grid<f64> {
    let mut grid = mask.filled(0.0);
    for (sample, &number) in numbers.iter().enumerate() {
        grid.row_mut(sample).fill(number);
    }
    grid.keep(mask);
    grid
}

fn add(grid: &mut Grid<f64>, other: &Grid<f64>) {
    let cells = grid.cells.iter_mut().zip(&other.cells);
    cells.for_each(|(cell, other)| *cell += other);
}
