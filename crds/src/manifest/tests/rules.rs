//! What is told of the rules where some fields cannot be read.

use super::*;

const PROMPTS: &str = "  prompts: {source: {path: d.jsonl}, labelField: answer}\n";
const REWARD: &str = "  roles: {reward: {rules: [{json: {}}]}}\n";

/// What is told of a spec, each with its field first.
fn told(spec: &str) -> Vec<String> {
    let text = format!("apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetadata: {{name: math}}\nspec:\n{spec}");
    told_of(&text)
}

fn told_of(text: &str) -> Vec<String> {
    match parse_manifest(text, "job.yaml").unwrap_err() {
        ManifestError::Fields { fields, .. } => fields
            .iter()
            .map(|field| format!("{}: {}", field.field, field.message))
            .collect(),
        other => panic!("{other}"),
    }
}

fn assert_starts(told: &[String], starts: &[&str]) {
    assert_eq!(told.len(), starts.len(), "{told:#?}");
    for (told, start) in told.iter().zip(starts) {
        assert!(told.starts_with(start), "{told} does not start with {start}");
    }
}

#[test]
fn a_misspelt_field_hides_no_broken_rule() {
    let text = "apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetadata: {name: Bad_Name}\nspec:\n  model: {policy: {path: p}}\n  \
                prompts: {source: {path: d.jsonl}}\n  algorithm: {advantage: {estimator: rloo}}\n  \
                batch: {nSamplesPerPrompt: 1, rolloutBatchSize: 10, trainBatchSize: 3}\n  bacth: {}\n  \
                roles: {reward: {rules: [{exactMatch: {}}]}}\n";
    let told = told_of(text);
    assert_starts(
        &told,
        &[
            "spec.bacth: unknown field",
            "metadata.name: \"Bad_Name\" is not a DNS label",
            "spec.batch.nSamplesPerPrompt: 1 sample per prompt",
            "spec.batch.trainBatchSize: 3 does not divide the 10 samples of a step (10 prompts x 1); use 2 or 5",
            "spec.roles.reward.rules[0]: compares with the label",
        ],
    );
    let words = parse_manifest(text, "job.yaml").unwrap_err().to_string();
    assert!(words.contains("line 8: spec.batch.trainBatchSize: 3"), "{words}");
}

#[test]
fn what_stands_under_a_misspelt_name_is_read_as_what_was_meant() {
    let spec =
        format!("{MODEL}{PROMPTS}{REWARD}  bacth:\n    rolloutBatchSize: 10\n    trainBatchsize: 3\n    seeed: 1\n");
    assert_starts(
        &told(&spec),
        &[
            "spec.bacth: unknown field",
            "spec.batch.trainBatchsize: unknown field",
            "spec.batch.seeed: unknown field",
            "spec.batch.trainBatchSize: 3 does not divide the 10 samples",
        ],
    );
    let words = error(&spec);
    for line in [
        "line 8: spec.bacth",
        "line 10: spec.batch.trainBatchsize",
        "line 10: spec.batch.trainBatchSize",
    ] {
        assert!(words.contains(line), "{words}");
    }
    let promts = "  promts: {source: {path: d.jsonl}}\n";
    assert_starts(
        &told(&format!("{MODEL}{promts}{REWARD}")),
        &["spec.promts: unknown field"],
    );
    // What was meant is not certain where its value does not fit.
    assert_starts(
        &told(&format!("{MODEL}{PROMPTS}{REWARD}  bacth: 1\n")),
        &["spec.bacth: unknown field"],
    );
}

#[test]
fn what_only_comes_of_a_field_that_cannot_be_read_is_not_told() {
    let spec = |blocks: &str, rule: &str| {
        format!("{MODEL}  prompts: {{source: {{path: d.jsonl}}}}\n  roles: {{reward: {{rules: [{rule}]}}}}\n{blocks}")
    };
    let json = "{json: {}}";
    for (spec, only) in [
        (
            spec("  batch: {rolloutBatchSize: many, trainBatchSize: 3}\n", json),
            "spec.batch.rolloutBatchSize",
        ),
        (spec("  batch: []\n  roles2: 1\n", json), "spec.batch"),
        (
            spec("  rolloutBatchSize: 10\n  batch: {trainBatchSize: 5}\n", json),
            "spec.rolloutBatchSize",
        ),
        (spec("", "{exactMatch: }"), "spec.roles.reward.rules[0].exactMatch"),
        (
            spec("  algorithm: {score: {clip: {min: 1, max: x}}}\n", json),
            "spec.algorithm.score.clip.max",
        ),
        (
            spec(
                "  algorithm: {advantage: {estimator: grpp}}\n  batch: {nSamplesPerPrompt: 2, dynamicSampling: {}}\n",
                json,
            ),
            "spec.algorithm.advantage.estimator",
        ),
        (
            spec("  generation: {minNewTokens: 9, maxNewTokens: few}\n", json),
            "spec.generation.maxNewTokens",
        ),
        (
            format!("  model: {{policy: 5}}\n{PROMPTS}{REWARD}"),
            "spec.model.policy",
        ),
        (
            format!("{MODEL}  roles: {{reward: {{rules: [{{exactMatch: {{}}}}]}}}}\n"),
            "spec.prompts",
        ),
        (format!("{MODEL}{PROMPTS}"), "spec.roles"),
        (format!("{MODEL}{PROMPTS}  roles: {{reward: 1}}\n"), "spec.roles.reward"),
    ] {
        let told = told(&spec);
        let told: Vec<&String> = told.iter().filter(|told| !told.starts_with("spec.roles2")).collect();
        assert!(
            told.len() == 1 && told[0].starts_with(&format!("{only}: ")),
            "{spec}{told:#?}"
        );
    }
}

#[test]
fn rules_that_need_no_missing_field_are_told() {
    assert_starts(
        &told("  batch: {trainBatchSize: 3}\n  steps: 1\n  episodes: 2\n"),
        &[
            "spec.model: missing",
            "spec.prompts: missing",
            "spec.roles: missing",
            "spec.steps: 1 excludes spec.episodes",
            "spec.batch.trainBatchSize: 3 does not divide the 128 samples",
        ],
    );
    let text = "apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetadata: {name: A}\n";
    assert_starts(&told_of(text), &["spec: missing", "metadata.name: \"A\""]);
    let second = "  roles: {reward: {rules: [7, {regex: {pattern: '('}}]}}\n";
    assert_starts(
        &told(&format!("{MODEL}{PROMPTS}{second}")),
        &[
            "spec.roles.reward.rules[0]: 7 is given",
            "spec.roles.reward.rules[1].regex.pattern: not a regular",
        ],
    );
}

#[test]
fn every_mistake_of_a_pod_template_is_told_beside_the_rules() {
    let env = "env: [{name: A, value: 8}, {name: B, value: true}]";
    let template = format!("{{spec: {{nodeSelctor: {{}}, containers: [{{name: worker, imagee: x, {env}}}]}}}}");
    let roles = format!("  roles: {{actor: {{template: {template}}}, reward: {{rules: [{{}}]}}}}\n");
    let told = told(&format!("{MODEL}{PROMPTS}{roles}"));
    for field in ["env[0].value: 8", "env[1].value: true", "imagee: unknown field"] {
        let field = format!("spec.roles.actor.template.spec.containers[0].{field}");
        assert!(told.iter().any(|told| told.starts_with(&field)), "{field}: {told:#?}");
    }
    let last = told.last().unwrap();
    assert!(
        last.starts_with("spec.roles.reward.rules[0]: give exactly one of"),
        "{told:#?}"
    );
}

#[test]
fn a_rule_of_the_place_a_job_runs_in_is_not_told_before_that_place_is_known() {
    let claim = "  prompts: {source: {pvc: {claimName: data, path: d.jsonl}}}\n";
    assert_starts(
        &told(&format!("{MODEL}{claim}{REWARD}  seeed: 1\n")),
        &["spec.seeed: unknown field"],
    );
}

#[test]
fn metadata_that_is_missing_or_no_block_hides_no_broken_rule() {
    for (metadata, told) in [
        ("", "metadata: missing; it has no default"),
        ("metadata:\n", "metadata: missing; it has no default"),
        (
            "metadata: 5\n",
            "metadata: 5 is given where a block of fields is needed",
        ),
    ] {
        let spec = format!("{MODEL}{PROMPTS}{REWARD}  batch: {{rolloutBatchSize: 10, trainBatchSize: 3}}\n");
        let text = format!("apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\n{metadata}spec:\n{spec}");
        assert_starts(&told_of(&text), &[told, "spec.batch.trainBatchSize: 3 does not divide"]);
    }
}
