use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::manifest::tests::job;
use crate::spec::{AdapterSpec, Estimator, PodPlacement, Profile, Projection, Role};
use crate::{Geometry, fill, resolve};

const RULE: &str = "reward: {rules: [{exactMatch: {}}]}";

fn laptop() -> Environment {
    Environment::Laptop {
        manifest_folder: "/home/me".into(),
    }
}

fn problems(job: &PpoJob) -> Vec<Problem> {
    validate(job, &Environment::cluster())
        .err()
        .map(|errors| errors.problems)
        .unwrap_or_default()
}

/// The texts of a job's problems, with further blocks of the spec and the given `roles`.
fn texts(blocks: &str, roles: &str) -> Vec<String> {
    problems(&job(blocks, roles)).iter().map(ToString::to_string).collect()
}

fn one(blocks: &str, roles: &str) -> String {
    let texts = texts(blocks, roles);
    assert_eq!(texts.len(), 1, "{texts:#?}");
    texts.into_iter().next().unwrap()
}

/// The job with a fix applied.
fn fixed(job: &PpoJob, fix: &Fix) -> PpoJob {
    let mut value = serde_json::to_value(job).unwrap();
    let pointer = format!("/{}", fix.field.replace('.', "/"));
    let (block, name) = pointer.rsplit_once('/').unwrap();
    let block = value.pointer_mut(block).unwrap();
    block.as_object_mut().unwrap().insert(name.into(), fix.value.into());
    serde_json::from_value::<PpoJob>(value).unwrap()
}

fn count(problems: &[Problem], field: &str) -> usize {
    problems.iter().filter(|problem| problem.field == field).count()
}

#[test]
fn a_small_job_is_valid_with_its_defaults() {
    assert!(texts("", RULE).is_empty());
}

#[test]
fn a_batch_that_does_not_divide_is_told_the_nearest_ones_that_fit() {
    let text = one(
        "batch: {rolloutBatchSize: 32, nSamplesPerPrompt: 4, trainBatchSize: 48}",
        RULE,
    );
    let expected =
        "spec.batch.trainBatchSize: 48 does not divide the 128 samples of a step (32 prompts x 4); use 32 or 64";
    assert_eq!(text, expected);
}

#[test]
fn engines_that_cannot_share_the_prompts_are_told_both_numbers_that_could_change() {
    let text = one(
        "batch: {rolloutBatchSize: 32}",
        &format!("rollout: {{replicas: 3}}, {RULE}"),
    );
    let expected = "spec.batch.rolloutBatchSize: 32 prompts cannot be shared equally by 3 engines; use 30 or 33, or \
                    spec.roles.rollout.replicas: 2 or 4";
    assert_eq!(text, expected);
}

#[test]
fn an_accumulation_that_is_not_whole_is_written_out() {
    let text = one(
        "batch: {rolloutBatchSize: 32, trainBatchSize: 32, microTrainBatchSize: 3}",
        &format!("actor: {{gpusPerNode: 8}}, {RULE}"),
    );
    assert_eq!(
        text,
        "spec.batch.microTrainBatchSize: accumulation = 32 / (3 x 8 ranks) is not whole; use 2 or 4"
    );
}

#[test]
fn a_micro_batch_is_not_held_against_a_batch_that_has_to_change() {
    let text = one(
        "batch: {rolloutBatchSize: 96, trainBatchSize: 36, microTrainBatchSize: 5}",
        RULE,
    );
    assert!(
        text.starts_with("spec.batch.trainBatchSize: 36 does not divide"),
        "{text}"
    );
}

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
        ("episodes: 1\n  steps: 2", "spec.steps: excludes spec.episodes"),
        (
            "algorithm: {kl: {coef: 0, stopAbove: 3}}",
            "spec.algorithm.kl.stopAbove: the KL coefficient is 0",
        ),
        (
            "algorithm: {kl: {controller: {}}}",
            "spec.algorithm.kl.controller: give exactly one of fixed, adaptive",
        ),
        (
            "algorithm: {profile: verl, kl: {controller: {adaptive: {target: 6, horizon: 1000}}}}",
            "cannot rise from 0",
        ),
        (
            "algorithm: {kl: {controller: {adaptive: {target: 6, horizon: 12.8}}}}\n  batch: {rolloutBatchSize: 32, nSamplesPerPrompt: 2}",
            "spec.algorithm.kl.controller.adaptive.horizon: one step of 64 samples could take the coefficient to 0 or below; it must be above 12.8",
        ),
        (
            "algorithm: {clip: {dual: 0.5}}",
            "spec.algorithm.clip.dual: must be above 1",
        ),
        (
            "algorithm: {score: {clip: {min: 1, max: 1}}}",
            "spec.algorithm.score.clip: min must be below max",
        ),
        (
            "generation: {minNewTokens: 9, maxNewTokens: 8}",
            "spec.generation.minNewTokens: 9 is more than maxNewTokens, 8; use 8",
        ),
        (
            "generation: {temperature: 0}",
            "spec.generation.temperature: 0.0 is out of range; it must be above 0 and at most 100",
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
fn reference_and_reward_model_may_have_any_number_of_ranks() {
    let pods = |reference: u32, reward: u32| {
        let model = "model: {source: {path: /models/reward}}";
        format!("reference: {{gpusPerNode: {reference}}}, reward: {{{model}, placement: {{nodes: {reward}}}}}")
    };
    let batch = "batch: {rolloutBatchSize: 32, microRolloutBatchSize: 16}";
    assert_eq!(texts(batch, &pods(3, 5)), [""; 0]);
    let filled = |reference, reward| {
        let job = job("batch: {rolloutBatchSize: 32}", &pods(reference, reward));
        fill(&job).spec.batch
    };
    assert_eq!(filled(3, 7), filled(1, 1));
}

#[test]
fn dynamic_sampling_is_for_who_compares_a_group_and_waits_for_its_scores() {
    let said = |blocks: &str| {
        let job = job(blocks, RULE);
        problems(&job)
            .into_iter()
            .map(|problem| problem.to_string())
            .collect::<Vec<_>>()
    };
    let batch = "batch: {nSamplesPerPrompt: 4, dynamicSampling: {}}";
    let grpo = "algorithm: {advantage: {estimator: grpo}}";
    assert_eq!(said(&format!("{batch}\n  {grpo}")), [""; 0]);
    let gae = said(batch);
    assert!(
        gae.len() == 1 && gae[0].starts_with("spec.batch.dynamicSampling: is for"),
        "{gae:?}"
    );
    let ahead = said(&format!("{batch}\n  {grpo}\n  overlap: oneStep"));
    assert!(
        ahead.len() == 1 && ahead[0].contains("with overlap: oneStep"),
        "{ahead:?}"
    );
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

fn adapted(adapter: AdapterSpec) -> PpoJob {
    let mut job = job("", RULE);
    job.spec.model.adapter = Some(adapter);
    job
}

#[test]
fn an_adapter_has_a_rank_a_scale_and_each_target_once() {
    let default = AdapterSpec::default;
    assert!(problems(&adapted(default())).is_empty());
    let refused = [
        (
            AdapterSpec { rank: 0, ..default() },
            "spec.model.adapter.rank: 0 is out of range; it must be 1 to 1024",
        ),
        (
            AdapterSpec {
                rank: 1025,
                ..default()
            },
            "spec.model.adapter.rank: 1025 is out of range",
        ),
        (
            AdapterSpec {
                alpha: 0.0,
                ..default()
            },
            "spec.model.adapter.alpha: 0.0 is out of range; it must be above 0",
        ),
        (
            AdapterSpec {
                alpha: f64::NAN,
                ..default()
            },
            "spec.model.adapter.alpha: is not a finite number",
        ),
        (
            AdapterSpec {
                targets: Vec::new(),
                ..default()
            },
            "spec.model.adapter.targets: is empty",
        ),
        (
            AdapterSpec {
                targets: [Projection::Query, Projection::Up, Projection::Query].into(),
                ..default()
            },
            "spec.model.adapter.targets[2]: q_proj is named twice",
        ),
    ];
    for (adapter, expected) in refused {
        let problems = problems(&adapted(adapter));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(
            problems[0].to_string().contains(expected),
            "{expected}: {}",
            problems[0]
        );
    }
}

#[test]
fn the_reference_of_an_adapter_is_its_base_and_takes_no_pod() {
    let mut job = adapted(AdapterSpec::default());
    job.spec.algorithm.kl.coef = Some(0.1);
    assert_eq!(Geometry::of(&job).unwrap().role(Role::Reference).unwrap().pods, 0);
    let config = resolve(&job, &laptop()).unwrap();
    assert!(config.model.reference.is_none() && config.reference_is_base());
    assert_eq!(config.model.critic.as_ref(), Some(&config.model.policy));
    job.spec.algorithm.kl.coef = Some(0.0);
    assert!(!resolve(&job, &laptop()).unwrap().reference_is_base());
    job.spec.algorithm.kl.coef = Some(0.1);
    job.spec.model.reference = Some(job.spec.model.policy.clone());
    let problems = problems(&job);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0]
            .to_string()
            .starts_with("spec.model.reference: with an adapter"),
        "{}",
        problems[0]
    );
}

#[test]
fn a_run_without_an_adapter_is_written_as_it_was_before_there_were_any() {
    let config = serde_json::to_value(resolve(&job("", RULE), &laptop()).unwrap()).unwrap();
    assert!(config["model"].get("adapter").is_none(), "{config}");
}

#[test]
fn a_reward_must_exist_weigh_something_and_make_sense() {
    let refused = [
        ("reward: {}", "spec.roles.reward: has no source"),
        (
            "reward: {rules: [{json: {}, weight: 0}]}",
            "spec.roles.reward: every source has weight 0",
        ),
        (
            "reward: {rules: [{}]}",
            "spec.roles.reward.rules[0]: give exactly one of",
        ),
        (
            "reward: {rules: [{json: {}, weight: .inf}]}",
            "spec.roles.reward.rules[0].weight: is not a finite number",
        ),
        (
            "reward: {rules: [{regex: {pattern: '('}}]}",
            "spec.roles.reward.rules[0].regex.pattern: not a regular expression: unclosed group",
        ),
        (
            "reward: {rules: [{length: {min: 5, max: 4}}]}",
            "spec.roles.reward.rules[0].length.min: 5 is more than max, 4; use 4",
        ),
        (
            "reward: {remote: {urls: ['verifier:5000']}}",
            "spec.roles.reward.remote.urls[0]: \"verifier:5000\" starts with verifier:",
        ),
        (
            "reward: {remote: {urls: ['verifier']}}",
            "spec.roles.reward.remote.urls[0]: \"verifier\" is not a URL",
        ),
        (
            "reward: {remote: {urls: []}}",
            "spec.roles.reward.remote.urls: is empty",
        ),
        (
            "rollout: {minReplicas: 2}, reward: {rules: [{json: {}}]}",
            "spec.roles.rollout.minReplicas: 2 is more than the 1 replicas",
        ),
    ];
    for (roles, expected) in refused {
        let found = texts("", roles);
        assert!(found.iter().any(|text| text.contains(expected)), "{roles}: {found:?}");
    }
}

#[test]
fn a_rule_that_compares_with_a_label_needs_one() {
    let mut job = job("", RULE);
    job.spec.prompts.label_field = None;
    assert!(problems(&job)[0].to_string().contains("give spec.prompts.labelField"));
}

#[test]
fn a_name_leaves_room_for_the_names_of_pods() {
    let mut job = job("", RULE);
    for (name, fits) in [
        ("a", true),
        ("rloo-math-2", true),
        ("", false),
        ("2a", false),
        ("A", false),
        ("a-", false),
        ("a.b", false),
    ] {
        job.metadata.name = Some(name.into());
        assert_eq!(problems(&job).is_empty(), fits, "{name}");
    }
    job.metadata.name = Some("a".repeat(48));
    let longest = format!("{}-reference-{}", "a".repeat(48), 1023);
    assert!(problems(&job).is_empty() && longest.len() <= 63);
    job.metadata.name = Some("a".repeat(49));
    assert_eq!(problems(&job).len(), 1);
}

#[test]
fn sources_must_be_one_place_that_can_be_reached() {
    let mut job = job("", RULE);
    job.spec.prompts.source.path = Some("data.jsonl".into());
    assert!(problems(&job)[0].message.contains("relative"));
    assert!(validate(&job, &laptop()).is_ok());

    job.spec.prompts.source.pvc = Some(crate::spec::PvcPath {
        claim_name: "data".into(),
        path: "../x".into(),
    });
    let errors = validate(&job, &laptop()).unwrap_err().to_string();
    assert!(
        errors.contains("names 2 places")
            && errors.contains("give path instead")
            && errors.contains("leaves the volume"),
        "{errors}"
    );
}

#[test]
fn variables_of_the_chat_template_need_a_template_and_are_none_of_its_renderers_arguments() {
    let with = |prompts: Value| {
        let mut job = serde_json::to_value(job("", RULE)).unwrap();
        for (name, value) in prompts.as_object().unwrap() {
            job["spec"]["prompts"][name] = value.clone();
        }
        problems(&serde_json::from_value(job).unwrap())
    };
    let field = "spec.prompts.chatTemplateVariables";
    let variables = serde_json::json!({"enable_thinking": false, "documents": [{"title": "a"}]});
    let found = with(serde_json::json!({"chatTemplate": true, "chatTemplateVariables": variables}));
    assert!(found.is_empty(), "{found:#?}");
    let found = with(serde_json::json!({"chatTemplateVariables": variables}));
    assert_eq!((found.len(), count(&found, field)), (1, 1), "{found:#?}");
    let found = with(serde_json::json!({"chatTemplate": true, "chatTemplateVariables": {"tokenize": true}}));
    assert_eq!(count(&found, &format!("{field}.tokenize")), 1, "{found:#?}");
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
fn what_vllm_refuses_at_its_start_is_refused_before() {
    let fields = |rollout: &str| -> Vec<String> {
        let job = job(
            "",
            &format!("rollout: {{maxSequences: 512, maxBatchTokens: 256{rollout}}}, {RULE}"),
        );
        problems(&job).into_iter().map(|problem| problem.field).collect()
    };
    assert_eq!(fields(", engine: vllm"), ["spec.roles.rollout.maxBatchTokens"]);
    assert!(fields("").is_empty());
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
fn errors_are_a_numbered_list() {
    let errors = validate(&job("episodes: 0\n  batch: {ppoEpochs: 0}", RULE), &laptop()).unwrap_err();
    let lines: Vec<String> = errors.to_string().lines().map(str::to_string).collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[0], "2 errors in the manifest:");
    assert!(
        lines[1].starts_with("  1. spec.") && lines[2].starts_with("  2. spec."),
        "{lines:?}"
    );
}

#[test]
fn each_profile_fills_in_its_own_framework_s_defaults() {
    let filled = |profile: &str| {
        let job = fill(&job(&format!("algorithm: {{profile: {profile}}}"), RULE));
        let a = job.spec.algorithm;
        (
            a.advantage.lambda.unwrap(),
            a.kl.coef.unwrap(),
            a.clip.dual.unwrap(),
            a.clip.value.unwrap(),
            a.kl.clamp,
            a.score.whiten_rewards.unwrap(),
        )
    };
    assert_eq!(filled("default"), (0.95, 0.01, 0.0, 0.2, None, false));
    assert_eq!(filled("openrlhf"), (1.0, 0.01, 0.0, 0.5, Some(10.0), false));
    assert_eq!(filled("verl"), (1.0, 0.0, 3.0, 0.5, None, false));
    assert_eq!(filled("trl"), (0.95, 0.05, 0.0, 0.2, None, false));
    assert_eq!(filled("alpacafarm"), (1.0, 0.2, 0.0, 0.2, None, true));
}

#[test]
fn a_given_value_wins_over_the_profile_s() {
    let job = fill(&job(
        "algorithm: {profile: verl, clip: {dual: 0}, kl: {coef: 0.1}}",
        RULE,
    ));
    assert_eq!(
        (job.spec.algorithm.clip.dual, job.spec.algorithm.kl.coef),
        (Some(0.0), Some(0.1))
    );
    let config = resolve(&job, &laptop()).unwrap();
    assert_eq!(config.algorithm.clip.dual, None);
    assert!(config.model.reference.is_some());
}

#[test]
fn every_value_of_every_enum_reads_back_from_what_it_writes() {
    let schema = crate::spec_schema();
    let mut values = 0;
    // Sets each enum of the schema to each of its values in a job that has every block, and reads it back.
    let mut whole = fill(&job("", RULE));
    whole.spec.model.adapter = Some(AdapterSpec::default());
    whole.spec.checkpoint.volume_claim =
        serde_json::from_str(r#"{"storage": "1Gi", "accessModes": ["ReadWriteOnce"]}"#).unwrap();
    whole.spec.failure_policy.rules = serde_json::from_str(r#"[{"action": "FailJob", "roles": ["actor"]}]"#).unwrap();
    let whole = serde_json::to_value(whole).unwrap();
    for (pointer, names) in enums(schema, String::from("/spec")) {
        for name in names {
            let mut changed = whole.clone();
            *changed
                .pointer_mut(&pointer)
                .unwrap_or_else(|| panic!("{pointer} is not in the job")) = name.clone();
            let read: PpoJob = serde_json::from_value(changed).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap().pointer(&pointer), Some(&name));
            values += 1;
        }
    }
    assert!(values > 40, "{values}");
}

fn enums(schema: &Value, pointer: String) -> Vec<(String, Vec<Value>)> {
    let own = schema
        .get("enum")
        .and_then(Value::as_array)
        .map(|names| (pointer.clone(), names.clone()));
    let properties = schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    let inner = properties.flat_map(|(name, schema)| enums(schema, format!("{pointer}/{name}")));
    let items = schema
        .get("items")
        .into_iter()
        .flat_map(|items| enums(items, format!("{pointer}/0")));
    own.into_iter().chain(inner).chain(items).collect()
}

#[test]
fn several_actor_pods_need_a_folder_that_all_of_them_reach() {
    let two = |template: &str| format!("{RULE}, actor: {{nodes: 2{template}}}");
    let refused = texts("", &two(""));
    assert!(
        refused[0].starts_with("spec.checkpoint: 2 actor pods write each checkpoint together"),
        "{refused:?}"
    );
    let mounted = ", template: {spec: {containers: [{name: worker, volumeMounts: [{name: runs, mountPath: /runs}]}]}}";
    for (blocks, roles) in [
        ("checkpoint: {path: /runs/shared}", two(mounted)),
        ("checkpoint: {pvc: checkpoints}", two("")),
        ("checkpoint: {volumeClaim: {storage: 1Gi}}", two("")),
        ("", two(mounted)),
    ] {
        assert_eq!(texts(blocks, &roles), Vec::<String>::new(), "{blocks} {roles}");
    }
    let once = "checkpoint: {volumeClaim: {storage: 1Gi, accessModes: [ReadWriteOnce]}}";
    assert!(texts(once, &two(""))[0].starts_with("spec.checkpoint.volumeClaim.accessModes: "));
    assert_eq!(texts(once, RULE), Vec::<String>::new());
}

#[test]
fn a_claim_for_checkpoints_can_be_written() {
    let claim = |modes: &str| format!("checkpoint: {{volumeClaim: {{storage: 1Gi, accessModes: [{modes}]}}}}");
    let field = "spec.checkpoint.volumeClaim.accessModes";
    assert_eq!(
        one(&claim("ReadOnlyMany"), RULE),
        format!("{field}: [ReadOnlyMany] cannot be written, and checkpoints are; use ReadWriteOnce")
    );
    assert_eq!(
        one(&claim("ReadOnlyMany"), &format!("{RULE}, actor: {{nodes: 2}}")),
        format!("{field}: [ReadOnlyMany] cannot be written, and checkpoints are; use ReadWriteMany")
    );
    for modes in ["", "ReadWriteOncePod", "ReadOnlyMany, ReadWriteOnce"] {
        assert_eq!(texts(&claim(modes), RULE), Vec::<String>::new(), "{modes}");
    }
}

/// Roles with an actor that mounts a volume of the given source.
fn mounting(path: &str, source: &str) -> String {
    let worker = format!("{{name: worker, volumeMounts: [{{name: disk, mountPath: {path}}}]}}");
    format!("{RULE}, actor: {{template: {{spec: {{containers: [{worker}], volumes: [{{name: disk, {source}}}]}}}}}}")
}

#[test]
fn checkpoints_on_a_cluster_go_where_a_pod_can_write() {
    let claim = "persistentVolumeClaim: {claimName: disk}";
    let at = "checkpoint: {path: /disk/run}";
    assert!(one(at, RULE).starts_with("spec.checkpoint.path: \"/disk/run\" is in no volume"));
    assert!(one(at, &mounting("/dis", claim)).starts_with("spec.checkpoint.path: "));
    assert!(texts(at, &mounting("/disk", claim)).is_empty());
    assert!(texts("checkpoint: {path: /tmp/run}", RULE).is_empty());
    assert!(validate(&job(at, RULE), &laptop()).is_ok());
}

#[test]
fn checkpoints_do_not_go_into_a_volume_that_can_only_be_read() {
    let at = "checkpoint: {path: /disk/run}";
    let claim = "persistentVolumeClaim: {claimName: disk}";
    let mounted_to_read = |path: &str| mounting(path, claim).replace("mountPath:", "readOnly: true, mountPath:");
    let text = one(at, &mounted_to_read("/disk"));
    assert!(
        text.starts_with("spec.checkpoint.path: \"/disk/run\" is where checkpoints are written, in the volume disk"),
        "{text}"
    );
    for source in [
        "persistentVolumeClaim: {claimName: disk, readOnly: true}",
        "configMap: {name: disk}",
        "secret: {secretName: disk}",
    ] {
        assert_eq!(one(at, &mounting("/disk", source)), text, "{source}");
    }
    let text = one("", &mounted_to_read("/runs"));
    assert!(text.starts_with("spec.checkpoint: \"/runs\" is where"), "{text}");
    assert_eq!(texts("checkpoint: {pvc: disk}", &mounted_to_read("/data")), [""; 0]);
    assert!(validate(&job(at, &mounted_to_read("/disk")), &laptop()).is_ok());
}

#[test]
fn a_claim_of_nothing_is_refused() {
    let claim = |size: &str| format!("checkpoint: {{volumeClaim: {{storage: {size}}}}}");
    for nothing in ["'0'", "0Gi", "'0.00'", "00.0T"] {
        let text = one(&claim(nothing), RULE);
        assert!(
            text.contains("storage") && text.contains("want a number above 0"),
            "{text}"
        );
    }
    for size in ["0.5Gi", "'1'", "010Gi", "10.25T"] {
        assert_eq!(texts(&claim(size), RULE), [""; 0], "{size}");
    }
}

#[test]
fn a_container_does_not_ask_for_more_than_it_may_use() {
    let of = |list: &str, request: &str, limit: &str| {
        let resources = format!("resources: {{requests: {{memory: {request}}}, limits: {{memory: {limit}}}}}");
        let template = format!("rollout: {{template: {{spec: {{{list}: [{{name: worker, {resources}}}]}}}}}}");
        texts("", &format!("{template}, {RULE}"))
    };
    assert_eq!(
        of("containers", "65Gi", "64Gi"),
        [
            "spec.roles.rollout.template.spec.containers[0].resources.requests.memory: 65Gi is more than its limit, 64Gi: lower it, or raise \
          limits.memory"
        ]
    );
    assert_eq!(of("initContainers", "1G", "999M").len(), 1);
    for (request, limit) in [
        ("1Gi", "1024Mi"),
        ("300m", "0.3"),
        ("1e3", "1k"),
        ("1Gi", "2G"),
        ("0", "0"),
    ] {
        assert_eq!(of("containers", request, limit), [""; 0], "{request} {limit}");
    }
    for (request, limit) in [("1Gi", "1G"), ("2", "1999m"), ("'1E'", "'1P'"), ("1e3", "999")] {
        assert_eq!(of("containers", request, limit).len(), 1, "{request} {limit}");
    }
}

#[test]
fn a_model_that_goes_with_its_pod_is_warned_of_on_a_cluster_alone() {
    let fields = |blocks: &str, roles: &str, environment: &Environment| -> Vec<String> {
        let plan = crate::Plan::of(&job(blocks, roles), environment, None).unwrap();
        plan.warnings.into_iter().map(|warning| warning.field).collect()
    };
    let cluster = |blocks: &str, roles: &str| fields(blocks, roles, &Environment::cluster());
    let (claim, scratch) = ("persistentVolumeClaim: {claimName: disk}", "emptyDir: {}");
    for (blocks, roles) in [
        ("", RULE.to_owned()),
        ("checkpoint: {path: /tmp/run}", RULE.to_owned()),
        ("", mounting("/runs", scratch)),
        ("checkpoint: {path: /disk/run}", mounting("/disk", scratch)),
    ] {
        assert_eq!(cluster(blocks, &roles), ["spec.checkpoint"], "{blocks} {roles}");
        assert!(fields(blocks, &roles, &laptop()).is_empty());
    }
    for (blocks, roles) in [
        ("checkpoint: {pvc: disk}", RULE.to_owned()),
        ("checkpoint: {volumeClaim: {storage: 1Gi}}", RULE.to_owned()),
        ("", mounting("/runs", claim)),
        ("", mounting("/runs/math", claim)),
        ("checkpoint: {path: /disk/run}", mounting("/disk", claim)),
    ] {
        assert!(cluster(blocks, &roles).is_empty(), "{blocks} {roles}");
    }
}

#[test]
fn a_data_file_has_an_extension_that_tells_its_format() {
    let mut job = job("evaluation: {source: {path: /data/test}}", RULE);
    job.spec.prompts.source.path = Some("/data/train.csv".into());
    let fields: Vec<String> = problems(&job).into_iter().map(|problem| problem.field).collect();
    assert_eq!(fields, ["spec.prompts.source.path", "spec.evaluation.source.path"]);
    job.spec.evaluation = None;
    job.spec.prompts.source.path = None;
    let mut inside = |path: &str| {
        job.spec.prompts.source.pvc = Some(crate::spec::PvcPath {
            claim_name: "data".into(),
            path: path.into(),
        });
        problems(&job)
    };
    assert_eq!(inside("train")[0].field, "spec.prompts.source.pvc.path");
    for known in ["a.jsonl", "a.NDJSON", "a.b.json", "x/a.parquet"] {
        assert!(inside(known).is_empty(), "{known}");
    }
}

#[test]
fn names_of_other_systems_have_their_forms() {
    let mut refused = Vec::new();
    let mut check = |id: &str, revision: &str, claim: &str| {
        let mut job = job(&format!("checkpoint: {{pvc: {claim}}}"), RULE);
        job.spec.model.policy.path = None;
        job.spec.model.policy.hub = Some(crate::spec::HubModel {
            id: id.into(),
            revision: revision.into(),
        });
        refused.extend(problems(&job).into_iter().map(|problem| problem.field));
    };
    check("Qwen/Qwen3-0.6B", "refs/pr/1", "my.claim-2");
    check("gpt2", "main", "a");
    check("https://huggingface.co/Qwen/Qwen3-0.6B", "main", "a");
    check("a/b/c", "a b", "My_Claim");
    let id = "spec.model.policy.hub.id";
    assert_eq!(
        refused,
        [id, id, "spec.model.policy.hub.revision", "spec.checkpoint.pvc"]
    );
}

prop_compose! {
    /// Sizes small enough to collide often, with some of the greatest there are.
    fn any_size()(small in 0u32..50, pick in 0u32..24) -> u32 {
        match pick { 0 => u32::MAX, 1 => 1 << 20, 2 => 1 << 30, _ => small }
    }
}

prop_compose! {
    fn any_job()(
        prompts in any_size(), group in any_size(), epochs in any_size(),
        train in proptest::option::of(any_size()), micro_train in proptest::option::of(any_size()),
        micro_rollout in proptest::option::of(any_size()),
        actor in (any_size(), any_size()), reference in (any_size(), any_size()),
        replicas in any_size(), min_replicas in any_size(),
        profile in proptest::sample::select(vec![Profile::Default, Profile::Verl]),
        estimator in proptest::sample::select(vec![Estimator::Gae, Estimator::Rloo]),
    ) -> PpoJob {
        let mut job = job("", RULE);
        let batch = &mut job.spec.batch;
        (batch.rollout_batch_size, batch.n_samples_per_prompt, batch.ppo_epochs) = (prompts, group, epochs);
        (batch.train_batch_size, batch.micro_train_batch_size, batch.micro_rollout_batch_size) = (train, micro_train, micro_rollout);
        let roles = &mut job.spec.roles;
        let placed = |(nodes, gpus_per_node): (u32, u32)| PodPlacement { nodes, gpus_per_node, template: None };
        (roles.actor, roles.reference) = (placed(actor), placed(reference));
        (roles.rollout.replicas, roles.rollout.min_replicas) = (replicas, min_replicas);
        job.spec.algorithm.profile = profile;
        job.spec.algorithm.advantage.estimator = estimator;
        job
    }
}

prop_compose! {
    /// Mostly valid: few ranks and engines.
    fn small_job()(
        prompts in 1u32..65, group in 1u32..9, train in proptest::option::of(1u32..129),
        micro_train in proptest::option::of(1u32..9), micro_rollout in proptest::option::of(1u32..9),
        actor in 0u32..5, reference in 0u32..5, replicas in 1u32..5,
    ) -> PpoJob {
        let mut job = job("", RULE);
        let batch = &mut job.spec.batch;
        (batch.rollout_batch_size, batch.n_samples_per_prompt) = (prompts, group);
        (batch.train_batch_size, batch.micro_train_batch_size, batch.micro_rollout_batch_size) = (train, micro_train, micro_rollout);
        job.spec.roles.actor.gpus_per_node = actor;
        job.spec.roles.reference.gpus_per_node = reference;
        job.spec.roles.rollout.replicas = replicas;
        job
    }
}

fn check_fixes(job: &PpoJob) {
    let before = problems(job);
    for problem in &before {
        for fix in &problem.fixes {
            let after = problems(&fixed(job, fix));
            assert!(
                count(&after, &problem.field) < count(&before, &problem.field),
                "{problem}\nafter {fix:?}: {after:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, max_global_rejects: 100_000, ..ProptestConfig::default() })]

    #[test]
    fn no_numbers_make_validation_or_the_arithmetic_panic(job in any_job()) {
        let valid = problems(&job).is_empty();
        let _ = warnings(&job);
        prop_assert!(!valid || Geometry::of(&job).is_some());
    }

    #[test]
    fn a_valid_job_has_a_geometry_whose_products_give_back_the_batch(job in small_job()) {
        prop_assume!(problems(&job).is_empty());
        let geometry = Geometry::of(&job).unwrap();
        let batch = fill(&job).spec.batch;
        let (train, micro) = (u64::from(batch.train_batch_size.unwrap()), u64::from(batch.micro_train_batch_size.unwrap()));
        prop_assert_eq!(geometry.updates_per_epoch * train, geometry.samples_per_step);
        prop_assert_eq!(geometry.accumulation_steps * micro * geometry.actor_ranks, train);
        prop_assert_eq!(geometry.prompts_per_engine * u64::from(job.spec.roles.rollout.replicas), u64::from(batch.rollout_batch_size));
        prop_assert!(resolve(&job, &Environment::cluster()).is_ok());
    }

    #[test]
    fn every_suggestion_fits_when_it_is_followed(job in prop_oneof![any_job(), small_job()]) {
        check_fixes(&job);
    }

    #[test]
    fn filling_twice_changes_nothing_and_a_filled_job_runs_as_the_short_one(job in prop_oneof![any_job(), small_job()]) {
        let filled = fill(&job);
        prop_assert_eq!(&fill(&filled), &filled);
        let environment = Environment::cluster();
        if let Ok(config) = resolve(&job, &environment) {
            prop_assert_eq!(resolve(&filled, &environment), Ok(config));
        }
    }
}

#[test]
fn a_field_of_a_pod_template_that_no_pod_would_have_is_named_when_the_job_comes_from_the_api_server() {
    let mut given = serde_json::to_value(job("", RULE)).unwrap();
    let template = serde_json::json!({"spec": {"nodeSelctor": {"a": "b"}, "containers": [{"name": "worker", "imagee": "x", "env": []}]}});
    for role in ["actor", "reference", "rollout"] {
        given["spec"]["roles"][role]["template"] = template.clone();
    }
    given["spec"]["roles"]["reward"]["placement"]["template"] = template;
    let read: PpoJob = serde_json::from_value(given).unwrap();
    let texts: Vec<String> = problems(&read).iter().map(ToString::to_string).collect();
    let expected = ["actor", "reference", "rollout", "reward.placement"].map(|role| {
        ["spec.nodeSelctor", "spec.containers[0].imagee"].map(|field| {
            format!("spec.roles.{role}.template.{field}: unknown field: Kubernetes has none of this name here")
        })
    });
    assert_eq!(texts, expected.concat());
}

#[test]
fn a_quantity_of_a_pod_template_that_kubernetes_does_not_read_is_named() {
    let inside = |name: &str, spec: &str| {
        let template = format!("{name}: {{template: {{spec: {{{spec}}}}}}}");
        texts("", &format!("{template}, {RULE}"))
    };
    let wrong = inside(
        "actor",
        "containers: [{name: worker, resources: {limits: {memory: 16GB, cpu: -1}}}], volumes: [{name: a, emptyDir: {sizeLimit: 2 Gi}}]",
    );
    let expected = [
        ("containers[0].resources.limits.cpu", "-1"),
        ("containers[0].resources.limits.memory", "16GB"),
        ("volumes[0].emptyDir.sizeLimit", "2 Gi"),
    ]
    .map(|(field, given)| {
        let field = format!("spec.roles.actor.template.spec.{field}");
        format!("{field}: {given:?} is not a quantity: want a number and a unit, such as 500m, 16G or 16Gi")
    });
    assert_eq!(wrong, expected);
    for quantity in [
        "8", "0.5", "1.5", "500m", "16G", "16Gi", "1k", "1e9", "'1E'", "'.5Gi'", "'+1'",
    ] {
        let spec =
            format!("initContainers: [{{name: fetch, resources: {{requests: {{nvidia.com/gpu: {quantity}}}}}}}]");
        // A template without containers is read: the operator adds them.
        let found = inside("rollout", &spec);
        assert!(found.is_empty(), "{quantity}: {found:?}");
    }
    for no_quantity in ["''", "1K", "16gb", "1Gi1", "Gi"] {
        let spec = format!("containers: [{{name: worker, resources: {{requests: {{memory: {no_quantity}}}}}}}]");
        assert_eq!(inside("reference", &spec).len(), 1, "{no_quantity}");
    }
}
