//! What is allowed but most likely not meant.

use super::*;
use crate::resolve;

#[test]
fn a_queue_of_kueue_that_is_not_named_is_warned_of() {
    let fields = |scheduling: &str| -> Vec<String> {
        let job = job(&format!("scheduling: {{{scheduling}}}"), RULE);
        warnings(&job).into_iter().map(|warning| warning.field).collect()
    };
    assert_eq!(fields("gang: kueue"), ["spec.scheduling.queue"]);
    assert!(fields("gang: kueue, queue: training").is_empty());
    assert!(fields("gang: volcano").is_empty());
}

#[test]
fn samples_that_are_a_step_old_are_corrected_for_unless_that_is_switched_off() {
    let resolved = |blocks: &str| {
        let job = job(blocks, RULE);
        let cap = resolve(&job, &laptop())
            .unwrap()
            .algorithm
            .truncated_importance_sampling;
        (cap, warnings(&job).len())
    };
    let off = "algorithm: {truncatedImportanceSampling: 0}";
    assert_eq!(resolved(""), (None, 0));
    assert_eq!(resolved(off), (None, 0));
    assert_eq!(resolved("overlap: oneStep"), (Some(2.0), 0));
    let given = "algorithm: {truncatedImportanceSampling: 3}";
    assert_eq!(resolved(&format!("overlap: oneStep\n  {given}")), (Some(3.0), 0));
    assert_eq!(resolved(&format!("overlap: oneStep\n  {off}")), (None, 1));
    let long = "algorithm: {rolloutCorrection: {outside: mask, low: 0.5, high: 5}}";
    assert_eq!(resolved(&format!("overlap: oneStep\n  {long}")), (None, 0));
}

#[test]
fn truncated_sampling_and_k1_in_the_loss_are_warned_of_but_allowed() {
    let job = job(
        "generation: {topP: 0.9, topK: 5, minP: 0.1, minNewTokens: 2}\n  algorithm: {kl: {placement: loss, estimator: k1}}",
        RULE,
    );
    assert!(problems(&job).is_empty());
    let fields: Vec<String> = warnings(&job).into_iter().map(|warning| warning.field).collect();
    assert_eq!(
        fields,
        [
            "spec.generation.topP",
            "spec.generation.topK",
            "spec.generation.minP",
            "spec.generation.minNewTokens",
            "spec.algorithm.kl.estimator"
        ]
    );
}

#[test]
fn a_penalty_that_a_negative_scale_turns_into_a_gain_is_warned_of() {
    let fields = |score: &str| -> Vec<String> {
        let job = job(&format!("algorithm: {{score: {{{score}}}}}"), RULE);
        assert!(problems(&job).is_empty());
        warnings(&job).into_iter().map(|warning| warning.field).collect()
    };
    assert_eq!(
        fields("missingEosPenalty: 1, scale: -1"),
        ["spec.algorithm.score.missingEosPenalty"]
    );
    for score in ["missingEosPenalty: 1", "missingEosPenalty: 0, scale: -1", "scale: -1"] {
        assert!(fields(score).is_empty(), "{score}");
    }
}

#[test]
fn a_run_that_ends_with_the_critics_warm_up_is_warned_of() {
    let fields = |steps: u64| -> Vec<String> {
        let job = job(&format!("steps: {steps}\n  optimizer: {{criticWarmupSteps: 5}}"), RULE);
        warnings(&job).into_iter().map(|warning| warning.field).collect()
    };
    assert_eq!(fields(5), ["spec.optimizer.criticWarmupSteps"]);
    assert!(fields(6).is_empty());
}

#[test]
fn a_warm_up_as_long_as_the_run_is_warned_of() {
    // 4 updates a step.
    let fields = |warmup: u64| -> Vec<String> {
        let job = job(&format!("steps: 5\n  optimizer: {{warmupUpdates: {warmup}}}"), RULE);
        warnings(&job).into_iter().map(|warning| warning.field).collect()
    };
    assert_eq!(fields(20), ["spec.optimizer.warmupUpdates"]);
    assert!(fields(19).is_empty());
}

#[test]
fn a_share_of_the_run_that_rounds_up_to_all_of_it_is_warned_of() {
    // 4 updates a step.
    let told = |steps: u64| -> Vec<String> {
        let job = job(&format!("steps: {steps}\n  optimizer: {{warmupRatio: 0.9}}"), RULE);
        warnings(&job).iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        told(1),
        [
            "spec.optimizer.warmupRatio: is 0.9, which is 4 of the run's 4 updates: the learning rate rises to the end; lower it, or make more steps"
        ]
    );
    assert!(told(3).is_empty());
}

#[test]
fn a_setting_that_does_nothing_here_is_warned_of_where_it_was_given() {
    let fields = |algorithm: &str| -> Vec<String> {
        let job = job(
            &format!("batch: {{nSamplesPerPrompt: 4}}\n  algorithm: {{{algorithm}}}"),
            RULE,
        );
        warnings(&job).into_iter().map(|warning| warning.field).collect()
    };
    let whitens = |estimator: &str| {
        fields(&format!(
            "advantage: {{estimator: {estimator}}}, score: {{whitenRewards: true}}"
        ))
    };
    for estimator in ["rloo", "grpo", "drGrpo", "reinforcePlusPlusBaseline"] {
        assert_eq!(
            whitens(estimator),
            ["spec.algorithm.score.whitenRewards"],
            "{estimator}"
        );
    }
    assert!(whitens("gae").is_empty() && whitens("reinforcePlusPlus").is_empty());
    // Its default whitens.
    assert!(fields("profile: alpacafarm, advantage: {estimator: rloo}").is_empty());

    let aggregates = |profile: &str| {
        fields(&format!(
            "profile: {profile}, advantage: {{estimator: rloo}}, aggregation: sequenceMeanTokenMean"
        ))
    };
    assert_eq!(aggregates("trl"), ["spec.algorithm.aggregation"]);
    assert!(aggregates("default").is_empty());

    let gspo = |profile: &str, way: &str| fields(&format!("profile: {profile}, ratio: sequence, aggregation: {way}"));
    assert_eq!(gspo("verl", "tokenMean"), ["spec.algorithm.aggregation"]);
    assert!(gspo("verl", "sequenceMeanTokenMean").is_empty() && gspo("trl", "tokenMean").is_empty());

    let discounts = |profile: &str, estimator: &str, kl: &str| {
        fields(&format!(
            "profile: {profile}, advantage: {{estimator: {estimator}, gamma: 0.9}}, kl: {{{kl}}}"
        ))
        .is_empty()
    };
    for (profile, estimator, kl) in [
        ("openrlhf", "rloo", ""),
        ("verl", "reinforcePlusPlusBaseline", ""),
        ("trl", "rloo", ""),
        ("default", "grpo", ""),
        ("default", "drGrpo", "placement: reward, coef: 0"),
    ] {
        assert!(!discounts(profile, estimator, kl), "{profile} {estimator} {kl}");
    }
    for (profile, estimator, kl) in [
        ("openrlhf", "gae", ""),
        ("verl", "reinforcePlusPlus", ""),
        ("trl", "reinforcePlusPlusBaseline", ""),
        ("default", "rloo", ""),
        ("default", "grpo", "placement: reward"),
    ] {
        assert!(discounts(profile, estimator, kl), "{profile} {estimator} {kl}");
    }
    assert!(fields("profile: verl, advantage: {estimator: rloo, gamma: 1}").is_empty());

    for kl in ["placement: loss", "estimator: k3", "clamp: 5"] {
        assert_eq!(fields(&format!("profile: verl, kl: {{{kl}}}")), ["spec.algorithm.kl"]);
        for with_penalty in ["profile: openrlhf, kl: {", "profile: verl, kl: {coef: 0.001, "] {
            let found = fields(&format!("{with_penalty}{kl}}}"));
            assert!(found.is_empty(), "{with_penalty}{kl}: {found:?}");
        }
        // Who writes 0 knows it.
        assert!(fields(&format!("profile: verl, kl: {{coef: 0, {kl}}}")).is_empty());
    }
}

#[test]
fn gpus_that_nothing_would_compute_on_are_warned_of() {
    let fields = |roles: &str| -> Vec<String> {
        let job = job("", &format!("{roles}, {RULE}"));
        warnings(&job).into_iter().map(|warning| warning.field).collect()
    };
    assert_eq!(
        fields("rollout: {gpusPerReplica: 2}, reference: {gpusPerNode: 4}"),
        ["spec.roles.rollout.gpusPerReplica"]
    );
    assert!(fields("actor: {gpusPerNode: 8}, rollout: {engine: vllm, gpusPerReplica: 2}").is_empty());
}

#[test]
fn pods_of_a_reference_that_does_not_run_are_warned_of() {
    let said = |blocks: &str, reference: &str| -> Vec<String> {
        let job = job(blocks, &format!("reference: {{{reference}}}, {RULE}"));
        let warnings = warnings(&job)
            .into_iter()
            .filter(|warning| warning.field == "spec.roles.reference");
        warnings.map(|warning| warning.message).collect()
    };
    let no_kl = "algorithm: {kl: {coef: 0}}";
    for reference in ["gpusPerNode: 8", "nodes: 2"] {
        let said = said(no_kl, reference);
        assert!(
            said.len() == 1 && said[0].contains("the KL coefficient is 0, so no reference runs"),
            "{said:?}"
        );
    }
    assert!(said("algorithm: {profile: verl}", "nodes: 2")[0].contains("the KL coefficient is 0"));
    assert_eq!(said("", "gpusPerNode: 8"), [""; 0]);
    assert_eq!(said(no_kl, ""), [""; 0]);
    let mut adapted = job("", &format!("reference: {{nodes: 2}}, {RULE}"));
    adapted.spec.model.adapter = Some(crate::spec::AdapterSpec::default());
    assert!(
        warnings(&adapted)[0]
            .message
            .contains("with an adapter the reference is the policy without it")
    );
}

#[test]
fn a_pass_score_that_no_answer_reaches_or_a_wrong_one_does_is_warned_of() {
    let found = |pass_score: f64, rules: &str| -> Vec<String> {
        let evaluation = format!("evaluation: {{source: {{path: e.jsonl}}, passScore: {pass_score}}}");
        let job = job(&evaluation, &format!("reward: {{rules: [{rules}]}}"));
        warnings(&job).iter().map(ToString::to_string).collect()
    };
    let never = found(1.0, "{exactMatch: {}, weight: 0.5}");
    assert!(
        never[0].starts_with("spec.evaluation.passScore: is 1, and the rules"),
        "{never:?}"
    );
    let wrong = found(1.0, "{exactMatch: {}}, {length: {max: 9}}");
    assert!(wrong[0].contains("a wrong answer may pass"), "{wrong:?}");
    let anything = found(0.0, "{exactMatch: {}}");
    assert!(anything[0].contains("give by themselves (0), so"), "{anything:?}");
    for (pass_score, rules) in [
        (0.5, "{exactMatch: {}, weight: 0.5}"),
        (2.0, "{exactMatch: {}}, {length: {max: 9}}"),
        (
            1.0,
            "{exactMatch: {}}, {length: {min: 9, max: 9, slope: 3}, weight: -1}",
        ),
        (1.0, "{json: {}}"),
        (1.0, "{exactMatch: {}, weight: 0.7}, {json: {}, weight: 0.3}"),
    ] {
        assert_eq!(found(pass_score, rules), [""; 0], "{pass_score} {rules}");
    }
}
