//! What the policy's loss takes of a ratio: PPO the ratio itself, clipped, CISPO the log-prob by the clipped ratio as a weight.

use ppo_crds::run_config::{Algorithm, Clip};
use ppo_crds::spec::{self, Profile};
use tch::{Kind, Tensor};

/// Per ratio, any shape.
pub(super) struct Surrogate {
    /// Without its graph.
    pub ratio: Tensor,
    /// Before the weights of a correction.
    pub loss: Tensor,
    /// Whether the bounds held it, on the side where that counts.
    pub clipped: Tensor,
    /// Whether the dual clip held it.
    pub dual_clipped: Tensor,
}

impl Surrogate {
    /// Of ratios r, the log-probs x that they are of and the advantages A. The graph is that of r, or with `cispo` that of x.
    pub fn of(algorithm: &Algorithm, ratio: &Tensor, logprobs: &Tensor, advantages: &Tensor) -> Self {
        match algorithm.surrogate {
            spec::Surrogate::Clipped => Self::clipped(&algorithm.clip, ratio, advantages),
            spec::Surrogate::Cispo => Self::cispo(algorithm, ratio, logprobs, advantages),
        }
    }

    /// max(-A r, -A clip(r, 1 - low, 1 + high)); with `clip.dual` = c, where A < 0 at most -c A (Ye et al. 2020, arXiv 1912.09729).
    fn clipped(clip: &Clip, ratio: &Tensor, advantages: &Tensor) -> Self {
        let unclipped = -advantages * ratio;
        let limited = -advantages * ratio.clamp(1.0 - clip.policy_low, 1.0 + clip.policy_high);
        let greater = unclipped.maximum(&limited);
        let (loss, dual_clipped) = match clip.dual {
            None => (greater.shallow_clone(), nowhere(&greater)),
            Some(bound) => {
                let bad = advantages.lt(0.0);
                let ceiling = -advantages * bound;
                let held = greater.minimum(&ceiling).where_self(&bad, &greater);
                (held, greater.gt_tensor(&ceiling).logical_and(&bad))
            }
        };
        Self {
            ratio: ratio.detach(),
            loss,
            clipped: limited.gt_tensor(&unclipped),
            dual_clipped,
        }
    }

    /// -A w x with the weight w = clip(r, 1 - low, 1 + high), of which no gradient is taken (MiniMax-M1, arXiv 2506.13585,
    /// section 3.1). A token beyond the bounds goes on teaching, by the bound.
    ///
    /// `compute_policy_loss_cispo` of verl's core_algos.py (0.9) counts every ratio that the bounds change; GRPOTrainer of TRL, which has the upper
    /// one alone, those above it with a positive advantage (`is_cispo_clipped` in grpo_trainer.py, 1.10).
    fn cispo(algorithm: &Algorithm, ratio: &Tensor, logprobs: &Tensor, advantages: &Tensor) -> Self {
        let clip = &algorithm.clip;
        let ratio = ratio.detach();
        let weight = ratio.clamp(1.0 - clip.policy_low, 1.0 + clip.policy_high);
        let clipped = match algorithm.profile {
            Profile::Trl => ratio.gt_tensor(&weight).logical_and(&advantages.gt(0.0)),
            Profile::Default | Profile::Openrlhf | Profile::Verl | Profile::Alpacafarm => ratio.ne_tensor(&weight),
        };
        Self {
            loss: -advantages * &weight * logprobs,
            clipped,
            dual_clipped: nowhere(&weight),
            ratio,
        }
    }
}

fn nowhere(like: &Tensor) -> Tensor {
    like.zeros_like().to_kind(Kind::Bool)
}
