//! Rules of what is read: models, prompts, held-out prompts.

use serde_json::Value;

use super::*;
use crate::resolve;

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
        errors.contains("names 2 places: give exactly one of path, paths, pvc; path and pvc are given")
            && errors.contains("give path instead")
            && errors.contains("leaves the volume"),
        "{errors}"
    );
}

#[test]
fn a_path_below_a_home_folder_is_to_be_written_in_full_wherever_it_runs() {
    let blocks = "evaluation: {source: {paths: [/a.jsonl, ~/e.jsonl]}}\n  checkpoint: {path: '~'}";
    let mut job = job(blocks, "reward: {model: {source: {path: ~/rm}}}");
    job.spec.model.policy.path = Some("~/p".into());
    job.spec.model.critic = Some(job.spec.model.policy.clone());
    job.spec.model.reference = Some(job.spec.model.policy.clone());
    job.spec.prompts.source.path = Some("~/d.jsonl".into());
    for environment in [laptop(), Environment::cluster()] {
        let errors = validate(&job, &environment).unwrap_err();
        let told = |problem: &&Problem| {
            problem
                .message
                .ends_with("write its path in full: no shell expands ~ here")
        };
        let told: Vec<&Problem> = errors.problems.iter().filter(told).collect();
        let fields: Vec<&str> = told.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "spec.model.policy.path",
                "spec.model.critic.path",
                "spec.model.reference.path",
                "spec.prompts.source.path",
                "spec.evaluation.source.paths[1]",
                "spec.roles.reward.model.source.path",
                "spec.checkpoint.path"
            ]
        );
        assert!(
            told[0].message.starts_with("\"~/p\" lies below a home folder"),
            "{}",
            told[0].message
        );
    }
    let mut job = super::job("checkpoint: {path: ~runs}", RULE);
    job.spec.model.policy.path = Some("a~/p".into());
    assert!(validate(&job, &laptop()).is_ok());
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
fn a_data_file_has_an_extension_that_tells_its_format_and_a_folder_has_none_or_a_slash() {
    let mut job = job("evaluation: {source: {paths: [/a.jsonl, b, /c.txt]}}", RULE);
    job.spec.prompts.source.path = Some("/data/train.csv".into());
    let problems_of = |job: &PpoJob| problems(job).into_iter().map(|problem| problem.field);
    let held_out = "spec.evaluation.source.paths";
    assert!(problems_of(&job).eq([
        "spec.prompts.source.path".to_owned(),
        format!("{held_out}[1]"),
        format!("{held_out}[2]")
    ]));
    job.spec.evaluation = None;
    job.spec.prompts.source.path = None;
    let mut inside = |path: &str| {
        job.spec.prompts.source.pvc = Some(crate::spec::PvcPath {
            claim_name: "data".into(),
            path: path.into(),
        });
        problems(&job)
    };
    let refused = inside("data.v2").remove(0);
    assert_eq!(refused.field, "spec.prompts.source.pvc.path");
    assert!(refused.message.contains("ends with a slash"), "{}", refused.message);
    for known in [
        "a.jsonl",
        "a.NDJSON",
        "a.b.json",
        "x/a.parquet",
        "",
        "train",
        "v2.0/train",
        "data.v2/",
    ] {
        assert!(inside(known).is_empty(), "{known}");
    }
}

#[test]
fn several_paths_are_a_place_of_their_own_and_there_is_one_at_the_least() {
    let mut job = job("", RULE);
    let source = &mut job.spec.prompts.source;
    source.paths = Some(vec!["/a.jsonl".into(), "/b".into()]);
    let refused = problems(&job).remove(0);
    assert_eq!(refused.field, "spec.prompts.source");
    assert!(
        refused
            .message
            .contains("names 2 places: give exactly one of path, paths, pvc")
    );
    job.spec.prompts.source.path = None;
    assert!(problems(&job).is_empty());
    job.spec.prompts.source.paths = Some(vec!["a.jsonl".into(), "/b".into()]);
    let config = resolve(&job, &laptop()).unwrap();
    assert_eq!(config.prompts.path.to_string(), "/home/me/a.jsonl, /b");
    job.spec.prompts.source.paths = Some(Vec::new());
    assert_eq!(problems(&job)[0].field, "spec.prompts.source.paths");
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
