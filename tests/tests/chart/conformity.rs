//! Linters and schema checks on the rendered chart.

use std::fs;

use serde_json::Value;

use crate::rendered::{template, variants};
use crate::schemas;
use crate::tools::{Said, run};

/// kube-score's findings that we choose to live with, everywhere or with some values.
const ACCEPTED: [(&str, &str, &str); 6] = [
    (
        "",
        "container-image-pull-policy",
        "a tag of ours is never pushed twice; `Always` would need the registry at every start",
    ),
    (
        "",
        "deployment-has-host-podantiaffinity",
        "topology spread constraints do it",
    ),
    (
        "everything",
        "container-security-context-user-group-id",
        "the cluster chooses users and groups there",
    ),
    ("namespaces", "pod-networkpolicy", "turned off there"),
    ("namespaces", "deployment-replicas", "one there"),
    (
        "namespaces",
        "deployment-strategy",
        "without leader election the old operator must go first",
    ),
];

#[test]
fn helm_lint_finds_nothing_to_warn_of() {
    for (name, values) in variants() {
        let said = run(
            "helm",
            &["lint", "--strict", "charts/ppo-operator", "--values", &values],
            "",
        );
        assert!(said.ok, "{name}: {}\n{}", said.out, said.err);
    }
}

fn kubeconform(text: &str) -> Said {
    let location = schemas::location();
    let args = [
        "-strict",
        "-summary",
        "-output",
        "json",
        "-schema-location",
        &location,
        "-",
    ];
    run("kubeconform", &args, text)
}

#[test]
fn every_object_is_what_the_api_server_takes_to_the_last_field() {
    for (name, values) in variants() {
        let said = kubeconform(&template(&["--values", &values]));
        let answer: Value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{}{}", said.out, said.err));
        assert!(said.ok, "{name}: {answer:#}");
        assert!(answer["summary"]["valid"].as_u64().unwrap() >= 8, "{name}: {answer}");
        assert_eq!(answer["summary"]["skipped"], 0, "{name}: {answer}");
    }
}

#[test]
fn the_schemas_see_a_field_that_does_not_exist() {
    let text = template(&[]);
    for (right, wrong) in [
        ("enableServiceLinks: false", "enableServiceLink: false"),
        ("maxUnavailable: 1", "maxUnavailable: {}"),
        ("policyTypes: [Ingress, Egress]", "policyTypes: Ingress"),
        ("scope: Namespaced", "scop: Namespaced"),
    ] {
        assert!(text.contains(right), "{right}");
        let said = kubeconform(&text.replacen(right, wrong, 1));
        let answer: Value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{}{}", said.out, said.err));
        let summary = &answer["summary"];
        assert_eq!(
            (&summary["invalid"], &summary["errors"]),
            (&1.into(), &0.into()),
            "{wrong}: {answer:#}"
        );
    }
}

#[test]
fn kube_score_finds_nothing_but_what_we_chose() {
    for (name, values) in variants() {
        let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        // The pod of `helm test` lives for a second and needs no policy.
        fs::write(file.path(), template(&["--skip-tests", "--values", &values])).unwrap();
        // Throttling would delay every job's restart; the request guarantees a share.
        let mut args = vec![
            "score",
            "--output-format",
            "ci",
            "--kubernetes-version",
            "v1.36",
            "--ignore-container-cpu-limit",
        ];
        for (_, check, _) in ACCEPTED.iter().filter(|(with, _, _)| name.starts_with(with)) {
            args.extend(["--ignore-test", check]);
        }
        let path = file.path().display().to_string();
        args.push(&path);
        let said = run("kube-score", &args, "");
        let bad: Vec<&str> = said
            .out
            .lines()
            .filter(|line| line.starts_with("[CRITICAL]") || line.starts_with("[WARNING]"))
            .collect();
        assert!(said.ok && bad.is_empty(), "{name}: {bad:#?} {}", said.err);
        assert!(said.out.contains("[OK] ppo-ppo-operator/ppo"), "{name}: {}", said.out);
    }
}

#[test]
fn the_charts_own_unit_tests_pass() {
    let said = run("helm-unittest", &["--strict", "charts/ppo-operator"], "");
    assert!(said.ok, "{}{}", said.out, said.err);
}
