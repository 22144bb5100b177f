//! Defaults of each profile, and the values of every enum.

use serde_json::Value;

use super::*;
use crate::spec::{AdapterSpec, DType, Role, RolloutCorrection};
use crate::{fill, resolve};

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
    let mut whole = fill(&job("", "reward: {model: {source: {path: /rm}}}"));
    whole.spec.model.adapter = Some(AdapterSpec::default());
    whole.spec.algorithm.rollout_correction = Some(RolloutCorrection::default());
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

/// A job with a KL and a reward model in which every role is given a number format; the actor's is `model`.
fn of_formats(model: DType, rollout: Option<DType>, reference: Option<DType>, reward: Option<DType>) -> PpoJob {
    let mut job = job("", "reward: {model: {source: {path: /rm}}}");
    job.spec.model.dtype = model;
    let roles = &mut job.spec.roles;
    (roles.rollout.dtype, roles.reference.dtype) = (rollout, reference);
    roles.reward.model.as_mut().unwrap().dtype = reward;
    job
}

#[test]
fn a_role_computes_in_its_own_number_format_and_without_one_in_the_actors() {
    let formats = |job: &PpoJob| Role::ALL.map(|role| resolve(job, &laptop()).unwrap().dtype(role));
    let order = [Role::Actor, Role::Rollout, Role::Reference, Role::Reward].map(|role| {
        let at = Role::ALL.iter().position(|other| *other == role);
        at.unwrap()
    });
    let of = |job: &PpoJob| order.map(|at| formats(job)[at]);
    let (float32, bfloat16) = (DType::Float32, DType::Bfloat16);
    assert_eq!(of(&of_formats(float32, None, None, None)), [float32; 4]);
    assert_eq!(of(&of_formats(bfloat16, None, None, None)), [bfloat16; 4]);
    let (other, given) = (of_formats, Some(bfloat16));
    assert_eq!(
        of(&other(float32, given, None, None)),
        [float32, bfloat16, float32, float32]
    );
    assert_eq!(
        of(&other(float32, None, given, None)),
        [float32, float32, bfloat16, float32]
    );
    assert_eq!(
        of(&other(float32, None, None, given)),
        [float32, float32, float32, bfloat16]
    );
}

#[test]
fn a_manifest_that_names_the_number_formats_it_would_have_anyway_runs_as_one_that_names_none() {
    let plain = of_formats(DType::Float32, None, None, None);
    let named = fill(&plain);
    assert_eq!(named.spec.roles.rollout.dtype, Some(DType::Float32));
    assert_eq!(named.spec.roles.reference.dtype, Some(DType::Float32));
    assert_eq!(
        named.spec.roles.reward.model.as_ref().unwrap().dtype,
        Some(DType::Float32)
    );
    assert_eq!(fill(&named), named);
    let config = |job: &PpoJob| serde_json::to_value(resolve(job, &laptop()).unwrap()).unwrap();
    assert_eq!(config(&named), config(&plain));
    // As images and checkpoints of earlier versions have it.
    let written = config(&plain);
    for (block, field) in [
        ("/model", "referenceDtype"),
        ("/rollout", "dtype"),
        ("/reward/model", "dtype"),
    ] {
        assert_eq!(written.pointer(block).unwrap().get(field), None, "{block}");
    }
}

#[test]
fn where_there_is_no_reference_and_no_reward_model_nobody_has_a_number_format_of_theirs() {
    let filled = fill(&job("algorithm: {kl: {coef: 0}}", RULE)).spec.roles;
    assert_eq!(filled.rollout.dtype, Some(DType::Bfloat16));
    assert!(filled.reference.dtype.is_none() && filled.reward.model.is_none());
    // One that nothing heeds is warned of, as the pods of such a reference are, and keeps no run from going on.
    let roles = format!("reference: {{dtype: float32}}, {RULE}");
    let unheeded = job("algorithm: {kl: {coef: 0}}", &roles);
    assert_eq!(resolve(&unheeded, &laptop()).unwrap().model.reference_dtype, None);
    let warned = warnings(&unheeded);
    assert!(
        warned.iter().any(|warning| warning.field == "spec.roles.reference"),
        "{warned:?}"
    );
}
