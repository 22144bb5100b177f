//! Rules of what is read: models, prompts, held-out prompts.

use serde_json::Value;

use super::*;

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
        errors.contains("names 2 places: give exactly one of path, pvc; path and pvc are given")
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
