//! A random step to run the maths on.

use ppo_crds::defaults;
use ppo_crds::run_config::Algorithm;
use ppo_crds::spec::{Aggregation, Estimator, Profile};
use ppo_worker::ppo::advantage::{AdvantageInput, Advantages, advantages};
use ppo_worker::ppo::aggregation::Denominator;
use ppo_worker::ppo::mask::value_mask;
use ppo_worker::ppo::policy_loss::{PolicyInput, PolicyLoss, entropy_bonus, kl_loss, policy_loss};
use ppo_worker::ppo::shape::{ShapeInput, shape};
use ppo_worker::ppo::value_loss::{ValueInput, value_loss};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tch::{Kind, Tensor};

pub const PROFILES: [Profile; 5] = [
    Profile::Default,
    Profile::Openrlhf,
    Profile::Verl,
    Profile::Trl,
    Profile::Alpacafarm,
];

pub const ESTIMATORS: [Estimator; 6] = [
    Estimator::Gae,
    Estimator::Rloo,
    Estimator::Grpo,
    Estimator::DrGrpo,
    Estimator::ReinforcePlusPlus,
    Estimator::ReinforcePlusPlusBaseline,
];

pub const AGGREGATIONS: [Aggregation; 6] = [
    Aggregation::TokenMean,
    Aggregation::SequenceMeanTokenMean,
    Aggregation::SequenceMeanTokenSum,
    Aggregation::SequenceMeanTokenSumNorm,
    Aggregation::TokenSum,
    Aggregation::PaddedMean,
];

/// The longest response of the steps made here.
pub const LONGEST: usize = 9;

/// All [batch, time] in float64, but scores and groups: [batch].
#[derive(Debug)]
pub struct Step {
    pub mask: Tensor,
    pub old: Tensor,
    pub reference: Tensor,
    pub new: Tensor,
    pub values: Tensor,
    pub new_values: Tensor,
    pub entropy: Tensor,
    pub scores: Tensor,
    pub groups: Vec<i64>,
}

impl Step {
    /// `samples` ragged responses, padded on the right, two to a group, neighbours in different groups.
    pub fn random(seed: u64, samples: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let lengths: Vec<usize> = (0..samples).map(|_| rng.random_range(1..=LONGEST)).collect();
        let time = lengths.iter().copied().max().unwrap_or(1);
        let mask: Vec<bool> = lengths
            .iter()
            .flat_map(|&length| (0..time).map(move |t| t < length))
            .collect();
        let shape = [samples as i64, time as i64];
        let mut matrix = |scale: f64| {
            let cells: Vec<f64> = (0..samples * time)
                .map(|_| scale * (rng.random::<f64>() * 2.0 - 1.0))
                .collect();
            Tensor::from_slice(&cells).view(shape)
        };
        let old = matrix(1.0) - 1.5;
        let scores = matrix(3.0).select(1, 0).copy();
        Self {
            mask: Tensor::from_slice(&mask).view(shape),
            reference: &old + matrix(0.5),
            new: &old + matrix(0.4),
            values: matrix(1.0),
            new_values: matrix(1.2),
            entropy: matrix(1.0) + 2.0,
            scores,
            groups: (0..samples as i64)
                .map(|sample| 70 - sample % (samples as i64 / 2).max(1))
                .collect(),
            old,
        }
    }

    /// Rows in another order, or some of them.
    pub fn rows(&self, order: &[i64]) -> Self {
        let index = Tensor::from_slice(order);
        self.mapped(
            |tensor| tensor.index_select(0, &index),
            order.iter().map(|&at| self.groups[at as usize]).collect(),
        )
    }

    /// Extra masked slots on each side, holding `garbage`.
    pub fn padded(&self, left: i64, right: i64, garbage: f64) -> Self {
        let pad = |tensor: &Tensor| match (tensor.dim(), tensor.kind()) {
            (1, _) => tensor.shallow_clone(),
            (_, Kind::Bool) => tensor
                .to_kind(Kind::Int64)
                .constant_pad_nd([left, right])
                .to_kind(Kind::Bool),
            _ => (tensor - garbage).constant_pad_nd([left, right]) + garbage,
        };
        self.mapped(pad, self.groups.clone())
    }

    fn mapped(&self, change: impl Fn(&Tensor) -> Tensor, groups: Vec<i64>) -> Self {
        Self {
            mask: change(&self.mask),
            old: change(&self.old),
            reference: change(&self.reference),
            new: change(&self.new),
            values: change(&self.values),
            new_values: change(&self.new_values),
            entropy: change(&self.entropy),
            scores: change(&self.scores),
            groups,
        }
    }

    pub fn advantages(&self, algorithm: &Algorithm) -> Advantages {
        let input = ShapeInput {
            old_logprobs: &self.old,
            ref_logprobs: Some(&self.reference),
            mask: &self.mask,
            scores: &self.scores,
            finished: None,
            lengths: None,
        };
        let shaped = shape(algorithm, algorithm.kl.coef, &input).unwrap();
        let input = AdvantageInput {
            rewards: &shaped.rewards,
            values: Some(&self.values),
            mask: &self.mask,
            scores: Some(&shaped.scores),
            groups: Some(&self.groups),
            group_size: None,
        };
        advantages(algorithm, &input).unwrap()
    }

    /// The counts of a micro-batch of these rows: of the policy's losses and of the critic's.
    pub fn counts(&self, algorithm: &Algorithm) -> (Denominator, Denominator) {
        let of_values = Denominator::of(&value_mask(algorithm.profile, &self.mask).unwrap(), LONGEST);
        (Denominator::of(&self.mask, LONGEST), of_values)
    }

    fn input<'a>(&'a self, logprobs: &'a Tensor, advantages: &'a Tensor) -> PolicyInput<'a> {
        PolicyInput {
            logprobs,
            old_logprobs: &self.old,
            advantages,
            mask: &self.mask,
            rollout_logprobs: Some(&self.reference),
        }
    }

    /// The policy loss of an update of all of them, at these log-probs.
    pub fn policy_loss(&self, algorithm: &Algorithm, logprobs: &Tensor, advantages: &Tensor) -> PolicyLoss {
        let whole = Denominator::of(&self.mask, LONGEST);
        policy_loss(algorithm, &self.input(logprobs, advantages), &whole).unwrap()
    }

    /// That loss and its gradient at the new log-probs.
    pub fn slope(&self, algorithm: &Algorithm, advantages: &Tensor) -> (f64, Tensor) {
        let leaf = self.new.copy().set_requires_grad(true);
        let loss = self.policy_loss(algorithm, &leaf, advantages).loss;
        loss.backward();
        (loss.double_value(&[]), leaf.grad())
    }

    /// The whole loss of these rows as a micro-batch of an update with these counts, and its gradients.
    pub fn losses(
        &self,
        algorithm: &Algorithm,
        advantages: &Tensor,
        returns: &Tensor,
        (policy_counts, value_counts): (Denominator, Denominator),
    ) -> Losses {
        let leaf = |tensor: &Tensor| tensor.copy().set_requires_grad(true);
        let (new, new_values, entropy) = (leaf(&self.new), leaf(&self.new_values), leaf(&self.entropy));
        let policy = policy_loss(algorithm, &self.input(&new, advantages), &policy_counts).unwrap();
        let mask = value_mask(algorithm.profile, &self.mask).unwrap();
        let input = ValueInput {
            values: &new_values,
            old_values: &self.values,
            returns,
            mask: &mask,
        };
        let value = value_loss(algorithm, &input, &value_counts).unwrap();
        let kl = kl_loss(algorithm, &new, &self.reference, &self.mask, &policy_counts).unwrap();
        let bonus = entropy_bonus(algorithm, &entropy, &self.mask, &policy_counts).unwrap();
        let loss: Tensor = &policy.loss + 0.5 * &value.loss + 0.3 * kl - 0.01 * bonus;
        loss.backward();
        Losses {
            loss: loss.double_value(&[]),
            gradients: vec![new.grad(), new_values.grad(), entropy.grad()],
            clip_fraction: policy.stats().unwrap().clip_fraction(),
        }
    }
}

#[derive(Debug)]
pub struct Losses {
    pub loss: f64,
    /// With respect to log-probs, values and entropies, each [batch, time].
    pub gradients: Vec<Tensor>,
    pub clip_fraction: f64,
}

/// A profile's settings with every part of the loss switched on.
pub fn everything(profile: Profile, estimator: Estimator, aggregation: Aggregation) -> Algorithm {
    let mut algorithm = defaults::algorithm(profile, estimator);
    algorithm.aggregation = aggregation;
    algorithm.kl.coef = 0.05;
    algorithm.clip.dual = Some(1.3);
    algorithm.truncated_importance_sampling = Some(1.1);
    algorithm
}

/// Equal up to rounding; NaN equals nothing.
pub fn assert_close(left: &Tensor, right: &Tensor) {
    assert_eq!(left.size(), right.size());
    let distance = (left - right).abs().max().double_value(&[]);
    assert!(distance < 1e-9, "{distance} apart:\n{left}\n{right}");
}
