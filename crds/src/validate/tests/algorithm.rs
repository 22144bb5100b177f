//! Settings of the algorithm that contradict each other.

use super::*;

#[test]
fn group_estimators_need_a_group_and_the_others_do_not() {
    for (estimator, needs) in [
        ("gae", false),
        ("rloo", true),
        ("grpo", true),
        ("drGrpo", true),
        ("reinforcePlusPlus", false),
        ("reinforcePlusPlusBaseline", true),
    ] {
        let found = texts(&format!("algorithm: {{advantage: {{estimator: {estimator}}}}}"), RULE);
        assert_eq!(found.len(), usize::from(needs), "{estimator}: {found:?}");
        let group = format!("algorithm: {{advantage: {{estimator: {estimator}}}}}\n  batch: {{nSamplesPerPrompt: 2}}");
        assert!(texts(&group, RULE).is_empty(), "{estimator}");
    }
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let refused = [
        (
            "episodes: 1\n  steps: 2",
            "spec.steps: 2 excludes spec.episodes, 1; remove one of the two",
        ),
        (
            "optimizer: {warmupRatio: 0.1, warmupUpdates: 3}",
            "spec.optimizer.warmupRatio: 0.1 excludes spec.optimizer.warmupUpdates, 3; remove one of the two",
        ),
        (
            "algorithm: {kl: {coef: 0, stopAbove: 3}}",
            "spec.algorithm.kl.stopAbove: the KL coefficient is 0",
        ),
        (
            "algorithm: {kl: {controller: {}}}",
            "spec.algorithm.kl.controller: give exactly one of fixed, adaptive; none is given",
        ),
        (
            "algorithm: {kl: {controller: {fixed: {}, adaptive: {target: 6, horizon: 1000}}}}",
            "spec.algorithm.kl.controller: give exactly one of fixed, adaptive; fixed and adaptive are given",
        ),
        (
            "algorithm: {profile: verl, kl: {controller: {adaptive: {target: 6, horizon: 1000}}}}",
            "cannot rise from 0",
        ),
        (
            "algorithm: {kl: {controller: {adaptive: {target: 6, horizon: 12.8}}}}\n  batch: {rolloutBatchSize: 32, nSamplesPerPrompt: 2}",
            "spec.algorithm.kl.controller.adaptive.horizon: with 12.8 one step of 64 samples could take the coefficient to 0 or below; it must be above 12.8",
        ),
        (
            "algorithm: {clip: {dual: 0.5}}",
            "spec.algorithm.clip.dual: is 0.5; it must be above 1",
        ),
        (
            "algorithm: {profile: trl, ratio: sequence, advantage: {estimator: rloo}}\n  batch: {nSamplesPerPrompt: 2}",
            "spec.algorithm.ratio: is sequence, and rloo under trl has one ratio per sequence already",
        ),
        (
            "algorithm: {profile: trl, surrogate: cispo, advantage: {estimator: rloo}}\n  batch: {nSamplesPerPrompt: 2}",
            "spec.algorithm.surrogate: is cispo, which weighs tokens, and rloo under trl takes a response as one action",
        ),
        (
            "algorithm: {surrogate: cispo, clip: {dual: 3}}",
            "spec.algorithm.clip.dual: is 3, and surrogate: cispo has no dual clip",
        ),
        (
            "algorithm: {profile: alpacafarm, maskTruncated: true}",
            "spec.algorithm.maskTruncated: is true, and the mean is one that counts padding",
        ),
        (
            "algorithm: {maskTruncated: true, aggregation: paddedMean}",
            "spec.algorithm.maskTruncated: is true, and the mean is one that counts padding",
        ),
        (
            "algorithm: {advantage: {deviation: batch}}",
            "spec.algorithm.advantage.deviation: is batch, which is for estimator: grpo; gae divides by no deviation: remove it",
        ),
        (
            "algorithm: {truncatedImportanceSampling: 2, rolloutCorrection: {}}",
            "spec.algorithm.rolloutCorrection: excludes truncatedImportanceSampling, 2; remove one of the two",
        ),
        (
            "algorithm: {rolloutCorrection: {low: 2}}",
            "spec.algorithm.rolloutCorrection: low is 2 and high is 2; low must be below high",
        ),
        (
            "algorithm: {rolloutCorrection: {level: geometric}}",
            "spec.algorithm.rolloutCorrection: level is geometric, which leaves responses out and truncates nothing",
        ),
        (
            "algorithm: {score: {clip: {min: 1, max: 1}}}",
            "spec.algorithm.score.clip: min is 1 and max is 1; min must be below max",
        ),
        (
            "generation: {minNewTokens: 9, maxNewTokens: 8}",
            "spec.generation.minNewTokens: 9 is more than maxNewTokens, 8; use 8",
        ),
        (
            "generation: {temperature: 0}",
            "spec.generation.temperature: 0.0 is out of range; it must be 0.01 to 100",
        ),
        // vLLM would draw at 0.01.
        (
            "generation: {temperature: 1.0e-9}",
            "spec.generation.temperature: 1e-9 is out of range; it must be 0.01 to 100",
        ),
        (
            "generation: {temperature: .nan}",
            "spec.generation.temperature: is not a finite number",
        ),
        (
            "algorithm: {valueCoef: .inf}",
            "spec.algorithm.valueCoef: is not a finite number",
        ),
        (
            "batch: {ppoEpochs: 0}",
            "spec.batch.ppoEpochs: 0 is out of range; it must be 1 to 1000",
        ),
        ("generation: {stop: ['']}", "spec.generation.stop[0]: is empty"),
    ];
    for (blocks, expected) in refused {
        let text = one(blocks, RULE);
        assert!(text.contains(expected), "{blocks}: {text}");
    }
}

#[test]
fn cispo_is_taken_with_its_dual_clip_off_and_with_the_ratio_of_sequences() {
    for blocks in [
        "surrogate: cispo",
        "surrogate: cispo, clip: {dual: 0, policyLow: 1, policyHigh: 4}",
        "surrogate: cispo, profile: verl",
        "surrogate: cispo, profile: trl, ratio: sequence",
    ] {
        let found = texts(&format!("algorithm: {{{blocks}}}"), RULE);
        assert!(found.is_empty(), "{blocks}: {found:?}");
    }
}

#[test]
fn a_critic_or_reference_that_nothing_uses_is_refused() {
    let mut job = job(
        "algorithm: {advantage: {estimator: reinforcePlusPlus}, kl: {coef: 0}}",
        RULE,
    );
    job.spec.model.critic = Some(job.spec.model.policy.clone());
    job.spec.model.reference = Some(job.spec.model.policy.clone());
    let fields: Vec<String> = problems(&job).into_iter().map(|problem| problem.field).collect();
    assert_eq!(fields, ["spec.model.critic", "spec.model.reference"]);
}
