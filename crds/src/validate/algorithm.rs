//! Rules of the PPO maths and of generation that a single field's limits cannot say.

use super::doubtful::Doubtful;
use super::{Problem, batch, those_given};
use crate::PpoJobSpec;
use crate::defaults::has_kl;
use crate::spec::{Aggregation, CorrectionLevel, Deviation, Estimator, Outside, Profile, Ratio, Surrogate};

/// Adds contradictions between settings.
pub fn check(spec: &PpoJobSpec, doubtful: &Doubtful, problems: &mut Vec<Problem>) {
    let mut refuse = |wrong: bool, field: &str, message: &str| {
        if wrong {
            problems.push(Problem::new(field, message));
        }
    };
    let algorithm = &spec.algorithm;
    let has_kl = has_kl(algorithm);

    if let (Some(steps), Some(episodes)) = (spec.steps, spec.episodes) {
        let message = format!("{steps} excludes spec.episodes, {episodes}; remove one of the two");
        refuse(true, "spec.steps", &message);
    }
    let warmup = spec.optimizer.warmup_updates;
    if let (Some(ratio), true) = (spec.optimizer.warmup_ratio, warmup > 0) {
        let message = format!("{ratio} excludes spec.optimizer.warmupUpdates, {warmup}; remove one of the two");
        refuse(true, "spec.optimizer.warmupRatio", &message);
    }
    let estimator = algorithm.advantage.estimator.name();
    let dynamic = spec.batch.dynamic_sampling.is_some();
    refuse(
        dynamic && !algorithm.advantage.estimator.needs_group(),
        "spec.batch.dynamicSampling",
        &format!(
            "is for algorithm.advantage.estimator rloo, grpo, drGrpo and reinforcePlusPlusBaseline: {estimator} learns from groups of equal \
             scores, too; remove it"
        ),
    );
    refuse(
        spec.model.critic.is_some() && !algorithm.advantage.estimator.has_critic(),
        "spec.model.critic",
        &format!("only algorithm.advantage.estimator: gae has a critic, and {estimator} is given; remove it"),
    );
    refuse(
        spec.model.reference.is_some() && !has_kl,
        "spec.model.reference",
        "the KL coefficient is 0, so there is no reference; remove it or give algorithm.kl.coef",
    );
    refuse(
        algorithm.kl.stop_above.is_some() && !has_kl,
        "spec.algorithm.kl.stopAbove",
        "the KL coefficient is 0, so no KL is measured; remove it or give algorithm.kl.coef",
    );
    if let Some(controller) = &algorithm.kl.controller {
        let field = "spec.algorithm.kl.controller";
        let given = [
            ("fixed", controller.fixed.is_some()),
            ("adaptive", controller.adaptive.is_some()),
        ];
        refuse(
            controller.fixed.is_some() == controller.adaptive.is_some(),
            field,
            &format!("give exactly one of fixed, adaptive; {}", those_given(&given)),
        );
        refuse(
            controller.adaptive.is_some() && !has_kl,
            field,
            "an adaptive coefficient cannot rise from 0; give algorithm.kl.coef above 0",
        );
        // A KL far below the target takes 0.2 x samples / horizon off; AlpacaFarm's controller does not look at samples.
        let samples = batch::samples(spec, doubtful);
        let adaptive = controller.adaptive.as_ref();
        if let Some((samples, adaptive)) = samples
            .zip(adaptive)
            .filter(|_| algorithm.profile != Profile::Alpacafarm)
        {
            let least = 0.2 * samples as f64;
            let message = format!(
                "with {} one step of {samples} samples could take the coefficient to 0 or below; it must be above {least}",
                adaptive.horizon
            );
            refuse(
                adaptive.horizon <= least,
                "spec.algorithm.kl.controller.adaptive.horizon",
                &message,
            );
        }
    }
    if let Some(dual) = algorithm.clip.dual.filter(|&dual| dual != 0.0 && dual <= 1.0) {
        let message = format!("is {dual}; it must be above 1 (3 is usual), or 0 for off");
        refuse(true, "spec.algorithm.clip.dual", &message);
    }
    let is_cispo = algorithm.surrogate == Surrogate::Cispo;
    if let Some(dual) = algorithm.clip.dual.filter(|&dual| is_cispo && dual != 0.0) {
        let message = format!(
            "is {dual}, and surrogate: cispo has no dual clip: policyHigh bounds a ratio whatever the advantage; remove it, or give 0"
        );
        refuse(true, "spec.algorithm.clip.dual", &message);
    }
    refuse(
        algorithm.advantage.deviation == Deviation::Batch && algorithm.advantage.estimator != Estimator::Grpo,
        "spec.algorithm.advantage.deviation",
        &format!("is batch, which is for estimator: grpo; {estimator} divides by no deviation: remove it"),
    );
    let is_one_action = (algorithm.profile, algorithm.advantage.estimator) == (Profile::Trl, Estimator::Rloo);
    refuse(
        is_one_action && algorithm.ratio == Ratio::Sequence,
        "spec.algorithm.ratio",
        "is sequence, and rloo under trl has one ratio per sequence already, that of the summed log-probs; use token, or another profile",
    );
    refuse(
        is_one_action && is_cispo,
        "spec.algorithm.surrogate",
        "is cispo, which weighs tokens, and rloo under trl takes a response as one action; use clipped, or another profile",
    );
    let counts_padding = matches!(
        (algorithm.profile, algorithm.aggregation),
        (_, Some(Aggregation::PaddedMean)) | (Profile::Alpacafarm, None | Some(Aggregation::TokenMean))
    );
    refuse(
        algorithm.mask_truncated && counts_padding,
        "spec.algorithm.maskTruncated",
        "is true, and the mean is one that counts padding and masks nothing; remove it, or give algorithm.aggregation: sequenceMeanTokenMean",
    );
    if let Some(correction) = &algorithm.rollout_correction {
        let field = "spec.algorithm.rolloutCorrection";
        if let Some(cap) = algorithm.truncated_importance_sampling {
            let message = format!("excludes truncatedImportanceSampling, {cap}; remove one of the two");
            refuse(true, field, &message);
        }
        let (low, high) = (correction.low, correction.high);
        refuse(
            low >= high,
            field,
            &format!("low is {low} and high is {high}; low must be below high"),
        );
        refuse(
            correction.level == CorrectionLevel::Geometric && correction.outside == Outside::Truncate,
            field,
            "level is geometric, which leaves responses out and truncates nothing; give outside: mask, or level token or sequence",
        );
    }
    if let Some(range) = algorithm.score.clip.as_ref().filter(|range| range.min >= range.max) {
        let message = format!("min is {} and max is {}; min must be below max", range.min, range.max);
        refuse(true, "spec.algorithm.score.clip", &message);
    }

    let generation = &spec.generation;
    if generation.min_new_tokens > generation.max_new_tokens {
        let field = "spec.generation.minNewTokens";
        let message = format!(
            "{} is more than maxNewTokens, {}",
            generation.min_new_tokens, generation.max_new_tokens
        );
        let most = u64::from(generation.max_new_tokens);
        problems.push(Problem::new(field, message).or(field, [most]));
    }
}
