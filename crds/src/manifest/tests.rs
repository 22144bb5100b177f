//! What a manifest that cannot be read is told.

mod rules;

use super::*;

/// A small job with further blocks of the spec and the given `roles`, for the tests of this crate.
pub(crate) fn job(blocks: &str, roles: &str) -> PpoJob {
    let text = format!(
        "apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetadata: {{name: math}}\nspec:\n  model: {{policy: {{path: /models/p}}}}\n  \
         prompts: {{source: {{path: /data/p.jsonl}}, labelField: answer}}\n  roles: {{{roles}}}\n  {blocks}\n"
    );
    parse_manifest(&text, "job.yaml").unwrap()
}

fn error(spec: &str) -> String {
    let text = format!("apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetadata: {{name: math}}\nspec:\n{spec}");
    parse_manifest(&text, "job.yaml").unwrap_err().to_string()
}

const MODEL: &str = "  model: {policy: {path: p}}\n";
const REST: &str = "  prompts: {source: {path: d.jsonl}}\n  roles: {reward: {rules: [{json: {}}]}}\n";

#[test]
fn an_unknown_field_is_named_with_its_path_its_line_and_what_is_known() {
    let message = error(&format!("{MODEL}{REST}  batch:\n    trainBatchsize: 32\n"));
    assert_eq!(
        message,
        "job.yaml:9: spec.batch.trainBatchsize: unknown field; known here: dynamicSampling, microRolloutBatchSize, microTrainBatchSize, \
         nSamplesPerPrompt, ppoEpochs, rolloutBatchSize, trainBatchSize (did you mean trainBatchSize?)"
    );
}

#[test]
fn a_missing_field_is_named_with_its_path() {
    assert_eq!(
        error(&format!("  model: {{}}\n{REST}")),
        "job.yaml:5: spec.model.policy: missing; it has no default"
    );
    let message = error(MODEL);
    for field in ["prompts", "roles"] {
        assert!(
            message.contains(&format!("spec.{field}: missing; it has no default")),
            "{message}"
        );
    }
}

#[test]
fn every_field_that_cannot_be_read_is_named_at_once() {
    let blocks = "  batch:\n    trainBatchsize: 32\n    ppoEpochs: -1\n  algorithm:\n    advantage: {estimator: gea}\n  seeed: 1\n";
    let message = error(&format!("{MODEL}{REST}{blocks}"));
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines.len(), 5, "{message}");
    assert_eq!(lines[0], "job.yaml: 4 errors in the manifest:");
    for (line, start) in lines[1..].iter().zip([
        "  1. line 9: spec.batch.trainBatchsize: unknown field",
        "  2. line 10: spec.batch.ppoEpochs: -1 is out of range; it must be 1 to 1000",
        "  3. line 12: spec.algorithm.advantage.estimator: gea is not one of",
        "  4. line 13: spec.seeed: unknown field",
    ]) {
        assert!(line.starts_with(start), "{line}");
    }
}

#[test]
fn a_field_of_a_pod_template_that_kubernetes_does_not_have_is_named() {
    let template = "{metadata: {labels: {a.b/c: d}}, spec: {nodeSelctor: {a: b}, tolerations: [], containers: [{name: worker, imagee: x}]}}";
    let roles = format!("  roles: {{actor: {{template: {template}}}, reward: {{rules: [{{json: {{}}}}]}}}}\n");
    let message = error(&format!("{MODEL}  prompts: {{source: {{path: d.jsonl}}}}\n{roles}"));
    assert!(message.contains(": 2 errors"), "{message}");
    for field in ["spec.nodeSelctor", "spec.containers[0].imagee"] {
        let named = format!("line 7: spec.roles.actor.template.{field}: unknown field");
        assert!(message.contains(&named), "{message}");
    }
    for near in ["(did you mean nodeSelector?)", "(did you mean image?)"] {
        assert!(message.contains(near), "{message}");
    }
}

#[test]
fn a_number_in_a_pod_template_where_a_text_belongs_is_told_to_be_quoted() {
    let template = "{spec: {containers: [{name: worker, env: [{name: A, value: 8}]}]}}";
    let roles = format!("  roles: {{actor: {{template: {template}}}, reward: {{rules: [{{json: {{}}}}]}}}}\n");
    let message = error(&format!("{MODEL}  prompts: {{source: {{path: d.jsonl}}}}\n{roles}"));
    assert!(
        message.ends_with("env[0].value: 8 is given where a text is needed: put it in quotes"),
        "{message}"
    );
}

#[test]
fn a_field_in_the_wrong_block_is_answered_with_where_it_belongs() {
    let asked = |blocks: &str| {
        let message = error(&format!("{MODEL}{REST}{blocks}"));
        let (_, asked) = message.split_once(" (did you mean ").unwrap();
        asked.trim_end_matches("?)").to_owned()
    };
    assert_eq!(asked("  reward: {rules: [{json: {}}]}\n"), "spec.roles.reward");
    assert_eq!(asked("  micro_train_batch_size: 4\n"), "spec.batch.microTrainBatchSize");
    assert_eq!(asked("  klCoef: 0.1\n"), "spec.algorithm.kl.coef");
    assert_eq!(asked("  policy: Qwen/Qwen3-0.6B\n"), "spec.model.policy");
    let both = asked("  temperature: 0.7\n");
    for place in ["spec.generation.temperature", "spec.evaluation.temperature", " or "] {
        assert!(both.contains(place), "{both}");
    }
    let rates = asked("  optimizer: {learningRate: 1.0e-6}\n");
    for place in ["spec.optimizer.actorLearningRate", "spec.optimizer.criticLearningRate"] {
        assert!(rates.contains(place), "{rates}");
    }
    let many = asked("  path: runs\n");
    assert_eq!(many.matches("spec.").count(), 3, "{many}");
    assert!(!error(&format!("{MODEL}{REST}  nosuch: 1\n")).contains("did you mean"));
    let clip = asked("  algorithm: {clip: {policy: 0.2}}\n");
    assert_eq!(clip, "spec.algorithm.clip.policyHigh or spec.algorithm.clip.policyLow");
}

#[test]
fn a_field_of_pods_in_the_block_of_a_role_is_answered_with_its_place_in_the_template() {
    for (role, field, place) in [
        ("actor", "image: x", "spec.roles.actor.template.spec.containers[].image"),
        (
            "actor",
            "nodeSelector: {a: b}",
            "spec.roles.actor.template.spec.nodeSelector",
        ),
        ("actor", "replicas: 2", "spec.roles.actor.nodes"),
        ("actor", "gpus: 2", "spec.roles.actor.gpusPerNode"),
        ("rollout", "gpus: 2", "spec.roles.rollout.gpusPerReplica"),
        (
            "reward",
            "tolerations: []",
            "spec.roles.reward.placement.template.spec.tolerations",
        ),
    ] {
        let roles = match role {
            "reward" => format!("{{reward: {{rules: [{{json: {{}}}}], {field}}}}}"),
            _ => format!("{{{role}: {{{field}}}, reward: {{rules: [{{json: {{}}}}]}}}}"),
        };
        let message = error(&format!(
            "{MODEL}  prompts: {{source: {{path: d.jsonl}}}}\n  roles: {roles}\n"
        ));
        assert!(message.contains(&format!("(did you mean {place}?)")), "{message}");
    }
}

#[test]
fn a_short_word_is_not_guessed_at_from_two_letters_and_ppo_is_gae() {
    let message = |word: &str| {
        error(&format!(
            "{MODEL}{REST}  algorithm: {{advantage: {{estimator: {word}}}}}\n"
        ))
    };
    assert!(
        message("ppo").ends_with(" (PPO with a critic is gae)"),
        "{}",
        message("ppo")
    );
    assert!(!message("dpo").contains("did you mean"), "{}", message("dpo"));
    assert!(message("rlo").ends_with("(did you mean rloo?)"), "{}", message("rlo"));
}

#[test]
fn a_missing_reward_says_what_there_is() {
    for spec in [
        format!("{MODEL}  prompts: {{source: {{path: d.jsonl}}}}\n"),
        format!("{MODEL}  prompts: {{source: {{path: d.jsonl}}}}\n  roles: {{actor: {{nodes: 1}}}}\n"),
    ] {
        let message = error(&spec);
        assert!(
            message.ends_with("missing; it has no default; give spec.roles.reward one of rules, model, remote"),
            "{message}"
        );
    }
}

#[test]
fn a_name_in_place_of_a_model_s_block_is_written_as_one() {
    assert_eq!(
        error(&format!("  model: {{policy: Qwen/Qwen3-0.6B}}\n{REST}")),
        "job.yaml:5: spec.model.policy: \"Qwen/Qwen3-0.6B\" is given where a block of fields is needed, \
         such as {hub: {id: Qwen/Qwen3-0.6B}} or {path: Qwen/Qwen3-0.6B}"
    );
    let folder = error(&format!("  model: {{policy: /models/p}}\n{REST}"));
    assert!(folder.ends_with("is needed, such as {path: /models/p}"), "{folder}");
}

#[test]
fn a_text_in_place_of_a_block_is_answered_with_the_line_to_write() {
    let prompts = "  prompts: {source: {path: d.jsonl}}\n";
    let reward = |reward: &str| error(&format!("{MODEL}{prompts}  roles: {{reward: {reward}}}\n"));
    let spec = |block: &str| error(&format!("{MODEL}{REST}  {block}\n"));
    for (message, line) in [
        (
            error(&format!("  model: {{policy: {{hub: Qwen/Qwen3-0.6B}}}}\n{REST}")),
            "{id: Qwen/Qwen3-0.6B}",
        ),
        (
            error(&format!("  model: Qwen/Qwen3-0.6B\n{REST}")),
            "{policy: {hub: {id: Qwen/Qwen3-0.6B}}} or {policy: {path: Qwen/Qwen3-0.6B}}",
        ),
        (reward("{rules: [exactMatch]}"), "{exactMatch: {}}"),
        (reward("{rules: exact_match}"), "[{exactMatch: {}}]"),
        (reward("{rules: [{regex: \"it's \\\\d\"}]}"), "{pattern: 'it''s \\d'}"),
        (reward("{model: /models/rm}"), "{source: {path: /models/rm}}"),
        (
            reward("{remote: 'http://r:5000/get_reward'}"),
            "{urls: ['http://r:5000/get_reward']}",
        ),
        (reward("{remote: {urls: 'http://r/'}}"), "['http://r/']"),
        (spec("algorithm: {advantage: grpo}"), "{estimator: grpo}"),
        (spec("algorithm: {kl: {controller: fixed}}"), "{fixed: {}}"),
    ] {
        assert!(message.contains(&format!(" is needed, such as {line}")), "{message}");
    }
    assert!(spec("algorithm: {advantage: nosuch}").ends_with("is needed"));
}

#[test]
fn a_python_file_as_a_remote_reward_is_told_to_be_served() {
    let reward = |remote: &str| {
        let roles = format!("  roles: {{reward: {{remote: {remote}}}}}\n");
        error(&format!("{MODEL}  prompts: {{source: {{path: d.jsonl}}}}\n{roles}"))
    };
    let message = reward("reward_func.py");
    assert!(message.contains("serve it (docs/model-and-reward.md"), "{message}");
}

#[test]
fn data_under_another_name_is_answered_with_the_source() {
    for (prompts, place) in [
        ("dataset: d.jsonl", "source.path"),
        ("data: [a.jsonl, b.jsonl]", "source.paths"),
        ("path: d.jsonl", "source.path"),
        ("dataset: {path: d.jsonl}", "source"),
    ] {
        let roles = "  roles: {reward: {rules: [{json: {}}]}}\n";
        let message = error(&format!("{MODEL}  prompts: {{{prompts}}}\n{roles}"));
        // What is missing for it is not told of.
        assert!(
            message.ends_with(&format!("(did you mean spec.prompts.{place}?)")),
            "{message}"
        );
    }
    let top = error(&format!("{MODEL}{REST}  dataset: d.jsonl\n"));
    assert!(top.ends_with("(did you mean spec.prompts.source.path?)"), "{top}");
}

#[test]
fn a_choice_without_a_value_is_told_how_it_is_written() {
    let rules = |rule: &str| {
        format!(
            "{MODEL}  prompts: {{source: {{path: d.jsonl}}}}\n  roles:\n    reward:\n      rules:\n      - {rule}\n"
        )
    };
    let message = error(&rules("exactMatch:"));
    assert!(
        message.ends_with("spec.roles.reward.rules[0].exactMatch: is empty; write `exactMatch: {}`"),
        "{message}"
    );
    let controller = error(&format!(
        "{MODEL}{REST}  algorithm: {{kl: {{controller: {{fixed: }}}}}}\n"
    ));
    assert!(
        controller.ends_with("spec.algorithm.kl.controller.fixed: is empty; write `fixed: {}`"),
        "{controller}"
    );
    // Another one is given.
    let text = rules("exactMatch:\n        json: {}");
    let text = format!("apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetadata: {{name: math}}\nspec:\n{text}");
    assert!(parse_manifest(&text, "x").is_ok());
}

#[test]
fn a_tab_that_indents_is_named() {
    let message = parse_manifest("spec:\n\tmodel: x\n", "job.yaml")
        .unwrap_err()
        .to_string();
    assert!(
        message.ends_with("; line 2 begins with a tab, and YAML indents with spaces"),
        "{message}"
    );
    let other = parse_manifest("a: [", "job.yaml").unwrap_err().to_string();
    assert!(!other.contains("tab"), "{other}");
}

#[test]
fn brackets_that_are_left_open_are_told_of_at_once_and_those_of_a_text_are_not() {
    for open in [129, 100_000] {
        let text = format!("a: {}", "[".repeat(open)) + &"]".repeat(open % 1000);
        let message = parse_manifest(&text, "job.yaml").unwrap_err().to_string();
        assert!(
            message.starts_with("job.yaml is not valid YAML: recursion limit exceeded at line 1")
                && message.ends_with(
                    "; no field lies as deep inside of lists and blocks: look for a bracket that is left open"
                ),
            "{message}"
        );
    }
    let pattern = "[[".repeat(10_000);
    for annotation in [
        format!("'{pattern}'"),
        format!("\"{pattern}\""),
        format!("1m # {pattern}"),
    ] {
        let metadata = format!("metadata:\n  name: math\n  annotations:\n    a: {annotation}");
        let text = format!("apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\n{metadata}\nspec:\n{MODEL}{REST}");
        assert!(parse_manifest(&text, "x").is_ok(), "{annotation:.20}");
    }
}

#[test]
fn a_wrong_type_is_named_with_its_path_and_both_types() {
    assert_eq!(
        error(&format!("{MODEL}{REST}  batch: {{rolloutBatchSize: many}}\n")),
        "job.yaml:8: spec.batch.rolloutBatchSize: \"many\" is given where a whole number is needed"
    );
    assert_eq!(
        error(&format!("{MODEL}{REST}  runPolicy: {{suspend: 1}}\n")),
        "job.yaml:8: spec.runPolicy.suspend: 1 is given where true or false is needed"
    );
}

#[test]
fn a_list_is_no_block() {
    assert_eq!(
        error(&format!("{MODEL}{REST}  batch: []\n")),
        "job.yaml:8: spec.batch: a list is given where a block of fields is needed"
    );
    let rules = "  prompts: {source: {path: d.jsonl}}\n  roles: {reward: {rules: [[]]}}\n";
    assert!(error(&format!("{MODEL}{rules}")).contains("spec.roles.reward.rules[0]: a list is given"));
}

#[test]
fn a_block_with_nothing_in_it_is_left_out() {
    let text = format!("apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetadata: {{name: math}}\nspec:\n{MODEL}{REST}");
    let empty = parse_manifest(&format!("{text}  batch:\n    # ppoEpochs: 2\n"), "x").unwrap();
    assert_eq!(empty, parse_manifest(&text, "x").unwrap());
}

#[test]
fn a_number_is_no_text() {
    assert_eq!(
        error(&format!("{MODEL}{REST}  generation: {{stop: [1]}}\n")),
        "job.yaml:8: spec.generation.stop[0]: 1 is given where a text is needed: put it in quotes"
    );
}

#[test]
fn a_whole_number_may_have_a_point_or_an_exponent() {
    let steps = |number: &str| {
        let text = format!(
            "apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetadata: {{name: math}}\nspec:\n{MODEL}{REST}  steps: {number}\n"
        );
        parse_manifest(&text, "x").unwrap().spec.steps
    };
    assert_eq!(
        [steps("1e3"), steps("10.0"), steps("7")],
        [Some(1000), Some(10), Some(7)]
    );
    let refused = |number: &str| error(&format!("{MODEL}{REST}  steps: {number}\n"));
    for number in ["1.5", ".nan", "-.inf"] {
        assert_eq!(
            refused(number),
            format!("job.yaml:8: spec.steps: {number} is given where a whole number is needed")
        );
    }
    assert!(
        refused("1e22").contains("spec.steps: 1e") && refused("1e22").contains(" is out of range; it must be 1 to ")
    );
}

#[test]
fn a_number_of_more_than_64_bits_is_out_of_range_by_its_field() {
    for number in ["10000000000000000000000", "-10000000000000000000000"] {
        assert_eq!(
            error(&format!("{MODEL}{REST}  steps: {number}\n")),
            format!("job.yaml:8: spec.steps: {number} is out of range; no field takes such a number")
        );
    }
}

#[test]
fn a_block_may_be_merged_of_one_with_an_anchor() {
    let text = "apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetadata: {name: math}\nspec:\n  model: {policy: {path: p}}\n  \
                prompts: {source: {path: d.jsonl}}\n  roles:\n    actor: &cpu {gpusPerNode: 0, nodes: 3}\n    \
                reference: {<<: *cpu, nodes: 2}\n    reward: {rules: [{json: {}}]}\n";
    let roles = parse_manifest(text, "x").unwrap().spec.roles;
    assert_eq!((roles.reference.gpus_per_node, roles.reference.nodes), (0, 2));
    let message = error(&format!("{MODEL}{REST}  batch: {{<<: 1}}\n"));
    assert!(message.contains("spec.batch.<<: unknown field"), "{message}");
}

#[test]
fn a_byte_order_mark_before_the_text_is_no_part_of_it() {
    let text = format!("apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetadata: {{name: math}}\nspec:\n{MODEL}{REST}");
    let marked = parse_manifest(&format!("\u{feff}{text}"), "x").unwrap();
    assert_eq!(marked, parse_manifest(&text, "x").unwrap());
}

#[test]
fn an_unknown_value_is_answered_with_the_known_ones() {
    let message = error(&format!(
        "{MODEL}{REST}  algorithm: {{advantage: {{estimator: gea}}}}\n"
    ));
    assert!(
        message.contains("spec.algorithm.advantage.estimator: gea is not one of gae, rloo"),
        "{message}"
    );
    assert!(message.ends_with("(did you mean gae?)"), "{message}");
}

#[test]
fn a_text_that_is_no_ppo_job_says_what_it_is() {
    let message = |text: &str| parse_manifest(text, "x.yaml").unwrap_err().to_string();
    assert!(
        message("").contains("it is empty") || message("").contains("a document is empty"),
        "{}",
        message("")
    );
    assert!(message("kind: PpoJob").contains("`apiVersion` is missing"));
    assert!(message("apiVersion: ppojob.dev/v1alpha1").contains("`kind` is missing"));
    assert!(message("apiVersion: v1\nkind: Pod").contains("`kind` is Pod"));
    assert!(message("apiVersion: ppojob.dev/v2\nkind: PpoJob").contains("`apiVersion` is ppojob.dev/v2"));
    assert!(message("a: [").contains("not valid YAML"));
    assert!(message("apiVersion: v1\nkind: Pod").contains("starts with `apiVersion: ppojob.dev/v1alpha1`"));
}

#[test]
fn the_ppo_job_is_found_among_other_documents_and_two_are_refused() {
    let job =
        format!("---\napiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetadata: {{name: math}}\nspec:\n{MODEL}{REST}");
    let text = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: rl}}\n{job}");
    assert_eq!(
        parse_manifest(&text, "x").unwrap().metadata.name.as_deref(),
        Some("math")
    );
    assert!(
        parse_manifest(&format!("{text}{job}"), "x")
            .unwrap_err()
            .to_string()
            .contains("holds 2 PpoJobs")
    );
}

#[test]
fn a_misspelt_top_level_field_is_refused() {
    let text = format!("apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetdata: {{name: math}}\nspec:\n{MODEL}{REST}");
    let message = parse_manifest(&text, "x").unwrap_err().to_string();
    assert!(
        message.contains("metdata: unknown field") && message.contains("did you mean metadata?"),
        "{message}"
    );
}
