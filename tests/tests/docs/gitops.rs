//! What Argo CD and Flux are told of a job's health speaks of the phases and conditions that there are.

use ppo_operator::condition::kind;
use serde_json::Value;

use crate::page::repository;

fn file(name: &str) -> Value {
    let path = repository().join("configs/gitops").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The phases that the definition knows.
fn phases() -> Vec<String> {
    let crd = serde_json::to_value(ppo_crds::crd().unwrap()).unwrap();
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/phase/enum";
    let phases = crd.pointer(path).and_then(Value::as_array).unwrap();
    phases.iter().map(|phase| phase.as_str().unwrap().to_owned()).collect()
}

const CONDITIONS: [&str; 7] = [
    kind::ACCEPTED,
    kind::SUSPENDED,
    kind::GANG_SCHEDULED,
    kind::ROLES_READY,
    kind::PROGRESSING,
    kind::COMPLETE,
    kind::FAILED,
];

#[test]
fn argo_cd_is_told_the_health_of_every_phase() {
    let script = &file("argocd-cm.yaml")["data"]["resource.customizations.health.ppojob.dev_PpoJob"];
    let rows: Vec<(&str, Vec<&str>)> = script
        .as_str()
        .unwrap()
        .lines()
        .filter_map(|line| line.trim().strip_suffix("},")?.split_once(" = {"))
        .map(|(phase, words)| (phase, words.split(", ").map(|word| word.trim_matches('"')).collect()))
        .collect();
    let mut told: Vec<&str> = rows.iter().map(|(phase, _)| *phase).collect();
    let mut known = phases();
    told.sort_unstable();
    known.sort();
    assert_eq!(told, known);
    for (phase, words) in rows {
        let [health, condition] = words[..] else {
            panic!("{phase} has {words:?}");
        };
        assert!(
            ["Healthy", "Progressing", "Suspended", "Degraded"].contains(&health),
            "{phase}: {health}"
        );
        assert!(CONDITIONS.contains(&condition), "{phase}: {condition}");
    }
}

#[test]
fn flux_is_told_of_conditions_that_there_are() {
    let checks = file("flux-kustomization.yaml")["spec"]["healthCheckExprs"][0].clone();
    assert_eq!(
        (&checks["apiVersion"], &checks["kind"]),
        (&"ppojob.dev/v1alpha1".into(), &"PpoJob".into())
    );
    let mut named = 0;
    for check in ["failed", "current"] {
        let words = checks[check].as_str().unwrap().split("c.type == '").skip(1);
        for word in words.map(|rest| rest.split('\'').next().unwrap()) {
            assert!(CONDITIONS.contains(&word), "{check}: {word}");
            named += 1;
        }
    }
    assert_eq!(named, 4);
}

#[test]
fn argo_cd_is_told_of_fields_that_there_are() {
    let ignored = file("argocd-application.yaml")["spec"]["ignoreDifferences"][0]["jsonPointers"].clone();
    let spec = ppo_crds::spec_schema();
    for pointer in ignored.as_array().unwrap() {
        let pointer = pointer.as_str().unwrap().strip_prefix("/spec").unwrap();
        let field = pointer.replace('/', "/properties/");
        assert!(spec.pointer(&field).is_some(), "no field {pointer}");
    }
}
