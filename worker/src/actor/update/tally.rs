//! What the updates of a step did, summed up for the metrics.

use std::time::Duration;

use anyhow::Result;

use crate::actor::learner::Updated;
use crate::ppo::policy_loss::PolicyStats;
use crate::ppo::value_loss::ValueStats;
use crate::ranks::Ranks;

/// Policy loss, entropy and KL term of a micro-batch, and its [`PolicyStats`].
pub(super) type PolicyNumbers = [f64; 3 + PolicyStats::NUMBERS];

/// Sums over the updates of a step. A micro-batch's loss is its share of its update's, so shares add up to updates.
#[derive(Debug, Default)]
pub struct Learnt {
    /// Updates of the actor.
    pub actor_updates: u64,
    /// Updates of the critic.
    pub critic_updates: u64,
    /// Time spent on the actor.
    pub actor_time: Duration,
    /// Time spent on the critic.
    pub critic_time: Duration,
    /// Learning rate of the actor's last update.
    pub actor_learning_rate: f64,
    /// Learning rate of the critic's last update.
    pub critic_learning_rate: f64,
    /// Ratios and clipping over all tokens of all updates.
    pub policy_stats: PolicyStats,
    /// Value clipping over all tokens of all updates.
    pub value_stats: ValueStats,
    policy_loss: f64,
    value_loss: f64,
    entropy: f64,
    kl_loss: f64,
    has_kl_loss: bool,
    actor_loss: f64,
    actor_grad_norm: f64,
    critic_grad_norm: f64,
}

impl Learnt {
    /// A micro-batch of the actor: the loss, and [`PolicyNumbers`] as they came from its device.
    pub(super) fn add_policy(&mut self, loss: f64, numbers: PolicyNumbers) {
        let [policy_loss, entropy, kl_loss, sums @ ..] = numbers;
        self.actor_loss += loss;
        self.policy_loss += policy_loss;
        self.entropy += entropy;
        self.kl_loss += kl_loss;
        self.policy_stats += PolicyStats::of(sums);
    }

    /// The loss has a KL term.
    pub(super) fn note_kl_loss(&mut self) {
        self.has_kl_loss = true;
    }

    /// A micro-batch of the critic: the loss, and its sums as they came from its device.
    pub(super) fn add_value(&mut self, [loss, sums @ ..]: [f64; 1 + ValueStats::NUMBERS]) {
        self.value_loss += loss;
        self.value_stats += ValueStats::of(sums);
    }

    pub(super) fn actor_updated(&mut self, updated: Updated, time: Duration) {
        self.actor_time += time;
        self.actor_updates += 1;
        self.actor_grad_norm += updated.grad_norm;
        self.actor_learning_rate = updated.learning_rate;
    }

    pub(super) fn critic_updated(&mut self, updated: Updated, time: Duration) {
        self.critic_time += time;
        self.critic_updates += 1;
        self.critic_grad_norm += updated.grad_norm;
        self.critic_learning_rate = updated.learning_rate;
    }

    /// The same over all ranks, each of which has a share of every update. What all have in common stays.
    ///
    /// # Errors
    /// When a rank is lost, naming it.
    pub(super) fn over(mut self, ranks: &Ranks) -> Result<Self> {
        let (policy, value) = (&mut self.policy_stats, &mut self.value_stats);
        let sums = [
            &mut policy.count,
            &mut policy.clipped,
            &mut policy.dual_clipped,
            &mut policy.kl,
            &mut policy.kl_count,
            &mut policy.ratio,
            &mut policy.ratio_square,
            &mut value.count,
            &mut value.clipped,
            &mut self.policy_loss,
            &mut self.value_loss,
            &mut self.entropy,
            &mut self.kl_loss,
            &mut self.actor_loss,
        ];
        let whole = ranks.sums(sums.each_ref().map(|number| **number))?;
        sums.into_iter().zip(whole).for_each(|(number, whole)| *number = whole);
        [policy.ratio_max] = ranks.greatest([policy.ratio_max])?;
        Ok(self)
    }

    /// Mean over the actor's updates; None when there was none (critic warm-up).
    fn per_actor_update(&self, sum: f64) -> Option<f64> {
        (self.actor_updates > 0).then(|| sum / self.actor_updates as f64)
    }

    fn per_critic_update(&self, sum: f64) -> Option<f64> {
        (self.critic_updates > 0).then(|| sum / self.critic_updates as f64)
    }

    /// Mean policy loss of an update.
    pub fn policy_loss(&self) -> Option<f64> {
        self.per_actor_update(self.policy_loss)
    }

    /// Mean value loss of an update, before its coefficient.
    pub fn value_loss(&self) -> Option<f64> {
        self.per_critic_update(self.value_loss)
    }

    /// Mean entropy during the updates.
    pub fn entropy(&self) -> Option<f64> {
        self.per_actor_update(self.entropy)
    }

    /// Mean KL term of the loss, before its coefficient; None when the KL is in the reward.
    pub fn kl_loss(&self) -> Option<f64> {
        if self.has_kl_loss {
            self.per_actor_update(self.kl_loss)
        } else {
            None
        }
    }

    /// Mean of everything that an update minimised: the policy's loss with its entropy and KL terms, and `value_coef` times the value
    /// loss. Where one of the two models did not learn it is the other's part; None when neither did.
    pub fn total_loss(&self, value_coef: f64) -> Option<f64> {
        let policy = self.per_actor_update(self.actor_loss);
        let value = self.value_loss().map(|loss| value_coef * loss);
        policy.into_iter().chain(value).reduce(|policy, value| policy + value)
    }

    /// Mean gradient norm of the actor before clipping.
    pub fn actor_grad_norm(&self) -> Option<f64> {
        self.per_actor_update(self.actor_grad_norm)
    }

    /// Mean gradient norm of the critic before clipping.
    pub fn critic_grad_norm(&self) -> Option<f64> {
        self.per_critic_update(self.critic_grad_norm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What two updates of the actor, or of the critic, leave: a loss of 3 with all its terms, a value loss of 2.
    fn learnt(actor: bool, critic: bool) -> Learnt {
        let mut learnt = Learnt::default();
        let updated = || Updated {
            grad_norm: 1.0,
            bad_loss: None,
            learning_rate: 0.1,
        };
        for _ in 0..2 {
            if actor {
                learnt.add_policy(3.0, [0.0; 3 + PolicyStats::NUMBERS]);
                learnt.actor_updated(updated(), Duration::ZERO);
            }
            if critic {
                let mut numbers = [0.0; 1 + ValueStats::NUMBERS];
                numbers[0] = 2.0;
                learnt.add_value(numbers);
                learnt.critic_updated(updated(), Duration::ZERO);
            }
        }
        learnt
    }

    #[test]
    fn the_total_loss_is_that_of_actor_and_critic_or_of_the_one_that_learnt() {
        assert_eq!(learnt(true, true).total_loss(0.5), Some(4.0));
        assert_eq!(learnt(true, false).total_loss(0.5), Some(3.0));
        assert_eq!(learnt(false, true).total_loss(0.5), Some(1.0));
        assert_eq!(learnt(false, false).total_loss(0.5), None);
    }
}
