//! `ppo-worker math` against the frameworks: `reference.py` computed what each answers to the same numbers.

use std::path::Path;

use ppo_worker::math;
use serde_json::Value;

const TOLERANCE: f64 = 1e-10;

#[test]
fn every_profile_answers_what_its_framework_answers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/math/expected.json");
    let cases: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert!(cases.len() > 100);
    let wrong: Vec<String> = cases.iter().flat_map(differences).collect();
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn float32_answers_are_the_float64_answers_rounded() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/math/expected.json");
    let cases: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let case = cases
        .iter()
        .find(|case| case["name"] == "default gae right gamma 1.0")
        .unwrap();
    let mut question = case["input"].clone();
    question["dtype"] = "float32".into();
    let answer: Value = serde_json::from_str(&math::run(&question.to_string()).unwrap()).unwrap();
    let mut wrong = Vec::new();
    compare("", &answer, &case["expected"], 2e-5, &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let loss = answer["policyLoss"]["loss"].as_f64().unwrap();
    assert_eq!(
        format!("{loss}"),
        format!("{}", loss as f32),
        "no digits float32 does not have"
    );
}

fn differences(case: &Value) -> Vec<String> {
    let name = case["name"].as_str().unwrap();
    let answer = match math::run(&case["input"].to_string()) {
        Ok(answer) => serde_json::from_str::<Value>(&answer).unwrap(),
        Err(error) => return vec![format!("{name}: {error:#}")],
    };
    let mut wrong = Vec::new();
    compare("", &answer, &case["expected"], TOLERANCE, &mut wrong);
    wrong
        .into_iter()
        .map(|difference| format!("{name}: {difference}"))
        .collect()
}

fn compare(path: &str, answer: &Value, expected: &Value, tolerance: f64, wrong: &mut Vec<String>) {
    match (answer, expected) {
        (Value::Object(a), Value::Object(e)) => {
            assert_eq!(a.keys().collect::<Vec<_>>(), e.keys().collect::<Vec<_>>(), "{path}");
            e.iter()
                .for_each(|(key, e)| compare(&format!("{path}.{key}"), &a[key], e, tolerance, wrong));
        }
        (Value::Array(a), Value::Array(e)) => {
            assert_eq!(a.len(), e.len(), "{path}");
            let pairs = a.iter().zip(e).enumerate();
            pairs.for_each(|(at, (a, e))| compare(&format!("{path}[{at}]"), a, e, tolerance, wrong));
        }
        _ => {
            let (a, e) = (answer.as_f64().unwrap(), expected.as_f64().unwrap());
            if (a - e).abs() > tolerance * e.abs().max(1.0) {
                wrong.push(format!("{path} is {a}, expected {e}"));
            }
        }
    }
}
