//! Defaults of each profile, and the values of every enum.

use serde_json::Value;

use super::*;
use crate::spec::AdapterSpec;
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
