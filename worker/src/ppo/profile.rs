//! Every profile's own settings: what a field without a value means to the `math` command.

use ppo_crds::run_config::{Algorithm, Clip, Kl, KlController, Score};
use ppo_crds::spec::{Aggregation, Estimator, KlEstimator, KlPlacement, Profile};

/// The settings of a profile with an estimator, as the framework ships them.
pub fn algorithm(profile: Profile, estimator: Estimator) -> Algorithm {
    let token_level = matches!(estimator, Estimator::Gae | Estimator::ReinforcePlusPlus);
    Algorithm {
        profile,
        estimator,
        gamma: 1.0,
        lambda: if matches!(profile, Profile::Default | Profile::Trl) {
            0.95
        } else {
            1.0
        },
        whiten: token_level || estimator == Estimator::ReinforcePlusPlusBaseline,
        kl: kl(profile, estimator),
        clip: Clip {
            policy_low: 0.2,
            policy_high: 0.2,
            dual: (profile == Profile::Verl).then_some(3.0),
            value: Some(if matches!(profile, Profile::Openrlhf | Profile::Verl) {
                0.5
            } else {
                0.2
            }),
        },
        score: Score {
            clip: (profile == Profile::Openrlhf).then_some((-10.0, 10.0)),
            scale: 1.0,
            missing_eos_penalty: None,
            whiten_rewards: profile == Profile::Alpacafarm && token_level,
        },
        value_coef: if matches!(profile, Profile::Trl | Profile::Alpacafarm) {
            0.1
        } else {
            0.5
        },
        entropy_coef: 0.0,
        aggregation: if profile == Profile::Alpacafarm {
            Aggregation::PaddedMean
        } else {
            Aggregation::TokenMean
        },
        truncated_importance_sampling: None,
    }
}

fn kl(profile: Profile, estimator: Estimator) -> Kl {
    let scores_alone = matches!(estimator, Estimator::Grpo | Estimator::DrGrpo);
    let in_loss = scores_alone && !matches!(profile, Profile::Openrlhf);
    Kl {
        coef: match profile {
            Profile::Default | Profile::Openrlhf => 0.01,
            Profile::Verl => 0.0,
            Profile::Trl => 0.05,
            Profile::Alpacafarm => 0.2,
        },
        estimator: match profile {
            Profile::Alpacafarm => KlEstimator::OneSided,
            _ if in_loss => KlEstimator::K3,
            _ => KlEstimator::K1,
        },
        placement: if in_loss {
            KlPlacement::Loss
        } else {
            KlPlacement::Reward
        },
        controller: KlController::Fixed,
        clamp: None,
        stop_above: None,
    }
}
