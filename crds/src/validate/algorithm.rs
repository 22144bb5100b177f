//! Rules of the PPO maths and of generation that a single field's limits cannot say.

use super::Problem;
use crate::PpoJobSpec;
use crate::defaults::has_kl;
use crate::spec::Profile;

/// Adds contradictions between settings.
pub fn check(spec: &PpoJobSpec, problems: &mut Vec<Problem>) {
    let mut refuse = |wrong: bool, field: &str, message: &str| {
        if wrong {
            problems.push(Problem::new(field, message));
        }
    };
    let algorithm = &spec.algorithm;
    let has_kl = has_kl(algorithm);

    refuse(
        spec.episodes.is_some() && spec.steps.is_some(),
        "spec.steps",
        "excludes spec.episodes; remove one of the two",
    );
    let dynamic = spec.batch.dynamic_sampling.is_some();
    refuse(
        dynamic && !algorithm.advantage.estimator.needs_group(),
        "spec.batch.dynamicSampling",
        "is for algorithm.advantage.estimator rloo, grpo, drGrpo and reinforcePlusPlusBaseline: the others learn from groups of equal scores, \
         too; remove it",
    );
    refuse(
        spec.model.critic.is_some() && !algorithm.advantage.estimator.has_critic(),
        "spec.model.critic",
        "only algorithm.advantage.estimator: gae has a critic; remove it",
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
        refuse(
            controller.fixed.is_some() == controller.adaptive.is_some(),
            field,
            "give exactly one of fixed, adaptive",
        );
        refuse(
            controller.adaptive.is_some() && !has_kl,
            field,
            "an adaptive coefficient cannot rise from 0; give algorithm.kl.coef above 0",
        );
        // A KL far below the target takes 0.2 x samples / horizon off; AlpacaFarm's controller does not look at samples.
        let samples = f64::from(spec.batch.rollout_batch_size) * f64::from(spec.batch.n_samples_per_prompt);
        let adaptive = controller.adaptive.as_ref();
        refuse(
            adaptive.is_some_and(|adaptive| adaptive.horizon <= 0.2 * samples)
                && algorithm.profile != Profile::Alpacafarm,
            "spec.algorithm.kl.controller.adaptive.horizon",
            &format!(
                "one step of {samples} samples could take the coefficient to 0 or below; it must be above {}",
                0.2 * samples
            ),
        );
    }
    refuse(
        algorithm.clip.dual.is_some_and(|c| c != 0.0 && c <= 1.0),
        "spec.algorithm.clip.dual",
        "must be above 1 (3 is usual), or 0 for off",
    );
    refuse(
        algorithm
            .score
            .clip
            .as_ref()
            .is_some_and(|range| range.min >= range.max),
        "spec.algorithm.score.clip",
        "min must be below max",
    );

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
