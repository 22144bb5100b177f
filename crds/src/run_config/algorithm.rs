//! The maths as the manifest has them, as those that run.

use super::{Algorithm, Clip, Kl, KlController, Score};
use crate::spec::AlgorithmSpec;

impl Algorithm {
    /// That of a filled spec.
    pub(crate) fn of(spec: &AlgorithmSpec) -> Self {
        // A filled block has every value; the fallbacks here are only what the types ask for.
        let off_at_zero = |value: Option<f64>| value.filter(|&value| value != 0.0);
        let adaptive = spec
            .kl
            .controller
            .as_ref()
            .and_then(|controller| controller.adaptive.as_ref());
        Self {
            profile: spec.profile,
            estimator: spec.advantage.estimator,
            gamma: spec.advantage.gamma.unwrap_or(1.0),
            lambda: spec.advantage.lambda.unwrap_or(1.0),
            whiten: spec.advantage.whiten.unwrap_or_default(),
            deviation: spec.advantage.deviation,
            kl: Kl {
                coef: off_at_zero(spec.kl.coef).unwrap_or_default(),
                estimator: spec.kl.estimator.unwrap_or_default(),
                placement: spec.kl.placement.unwrap_or_default(),
                controller: adaptive.map_or(KlController::Fixed, |adaptive| KlController::Adaptive {
                    target: adaptive.target,
                    horizon: adaptive.horizon,
                }),
                clamp: off_at_zero(spec.kl.clamp),
                stop_above: spec.kl.stop_above,
            },
            clip: Clip {
                policy_low: spec.clip.policy_low.unwrap_or_default(),
                policy_high: spec.clip.policy_high.unwrap_or_default(),
                dual: off_at_zero(spec.clip.dual),
                value: off_at_zero(spec.clip.value),
            },
            ratio: spec.ratio,
            surrogate: spec.surrogate,
            score: Score {
                clip: spec.score.clip.as_ref().map(|range| (range.min, range.max)),
                scale: spec.score.scale.unwrap_or(1.0),
                missing_eos_penalty: off_at_zero(spec.score.missing_eos_penalty),
                whiten_rewards: spec.score.whiten_rewards.unwrap_or_default(),
            },
            value_coef: spec.value_coef.unwrap_or_default(),
            entropy_coef: spec.entropy_coef.unwrap_or_default(),
            aggregation: spec.aggregation.unwrap_or_default(),
            mask_truncated: spec.mask_truncated,
            truncated_importance_sampling: off_at_zero(spec.truncated_importance_sampling),
            rollout_correction: spec.rollout_correction,
        }
    }
}
