//! What Argo CD and Flux are told of a job's health speaks of the phases and conditions that there are.

use ppo_operator::condition::kind;
use serde_json::{Value, json};

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

/// Of each phase the health that Argo CD shows, and the condition whose message it shows with it.
const HEALTH: [(&str, &str, &str); 9] = [
    ("Pending", "Progressing", kind::ROLES_READY),
    ("Queued", "Progressing", kind::GANG_SCHEDULED),
    ("Scheduling", "Progressing", kind::GANG_SCHEDULED),
    ("Initializing", "Progressing", kind::ROLES_READY),
    ("Running", "Healthy", kind::PROGRESSING),
    ("Restarting", "Progressing", kind::ROLES_READY),
    ("Suspended", "Suspended", kind::SUSPENDED),
    ("Succeeded", "Healthy", kind::COMPLETE),
    ("Failed", "Degraded", kind::FAILED),
];

#[test]
fn argo_cd_is_told_the_health_of_every_phase() {
    let script = &file("argocd-cm.yaml")["data"]["resource.customizations.health.ppojob.dev_PpoJob"];
    let rows: Vec<(&str, &str, &str)> = script
        .as_str()
        .unwrap()
        .lines()
        .filter_map(|line| line.trim().strip_suffix("\"},")?.split_once(" = {\""))
        .map(|(phase, words)| {
            let (health, condition) = words
                .split_once("\", \"")
                .unwrap_or_else(|| panic!("{phase} has {words}"));
            (phase, health, condition)
        })
        .collect();
    assert_eq!(rows, HEALTH);
    let mut told: Vec<&str> = rows.iter().map(|(phase, ..)| *phase).collect();
    let mut known = phases();
    told.sort_unstable();
    known.sort();
    assert_eq!(told, known);
}

#[test]
fn flux_is_told_which_conditions_make_a_job_ready_and_which_failed() {
    let checks = file("flux-kustomization.yaml")["spec"]["healthCheckExprs"][0].clone();
    let holds = |kind: &str| format!("status.conditions.exists(c, c.type == '{kind}' && c.status == 'True')");
    let ready = [kind::ROLES_READY, kind::SUSPENDED, kind::COMPLETE].map(holds);
    let expected = json!({
        "apiVersion": "ppojob.dev/v1alpha1",
        "kind": "PpoJob",
        "inProgress": "!has(status.observedGeneration) || status.observedGeneration != metadata.generation",
        "failed": holds(kind::FAILED),
        "current": ready.join(" || "),
    });
    assert_eq!(checks, expected);
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
    for scaled in ["/spec/roles/rollout/replicas", "/spec/roles/rollout/minReplicas"] {
        assert!(ignored.as_array().unwrap().contains(&json!(scaled)), "{scaled}");
    }
}
