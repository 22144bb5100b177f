//! What the operator may do: this and nothing else.

use std::collections::BTreeSet;

use ppo_operator::world::Kind;
use serde_json::Value;

use crate::rendered::{objects, of_kind, template};

type Right = (String, String, String);

/// Group, resources and verbs in the namespaces that are watched.
const OF_JOBS: [(&str, &str, &str); 16] = [
    ("ppojob.dev", "ppojobs", "get list watch delete"),
    ("ppojob.dev", "ppojobs/status", "patch"),
    ("ppojob.dev", "ppojobs/finalizers", "update"),
    ("", "pods", "list watch create delete"),
    ("", "configmaps", "list watch create"),
    ("", "services", "list watch create patch"),
    ("", "secrets", "list watch create"),
    ("", "persistentvolumeclaims", "list watch create"),
    ("networking.k8s.io", "networkpolicies", "list watch create patch delete"),
    ("policy", "poddisruptionbudgets", "list watch create patch delete"),
    ("events.k8s.io", "events", "create patch"),
    ("scheduling.volcano.sh", "podgroups", "list watch create patch delete"),
    ("scheduling.x-k8s.io", "podgroups", "list watch create patch delete"),
    ("scheduling.k8s.io", "podgroups", "list watch create patch delete"),
    ("kueue.x-k8s.io", "workloads", "list watch create patch delete"),
    ("kueue.x-k8s.io", "workloads/status", "patch"),
];

/// Group, resources and verbs of what lies in no namespace.
const OF_THE_CLUSTER: [(&str, &str, &str); 4] = [
    ("", "nodes", "get"),
    (
        "apiextensions.k8s.io",
        "customresourcedefinitions=ppojobs.ppojob.dev",
        "list watch",
    ),
    ("kueue.x-k8s.io", "resourceflavors workloadpriorityclasses", "get"),
    ("scheduling.k8s.io", "priorityclasses", "get list"),
];

/// In the operator's own namespace.
const OF_THE_LEASE: [(&str, &str, &str); 2] = [
    ("coordination.k8s.io", "leases=ppo-ppo-operator", "get update"),
    ("coordination.k8s.io", "leases", "create"),
];

fn written(table: &[(&str, &str, &str)]) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for (group, resources, verbs) in table {
        for resource in resources.split(' ') {
            rights.extend(
                verbs
                    .split(' ')
                    .map(|verb| (group.to_string(), resource.to_owned(), verb.to_owned())),
            );
        }
    }
    rights
}

fn granted(role: &Value) -> BTreeSet<Right> {
    let words = |rule: &Value, key: &str| -> Vec<String> {
        rule[key]
            .as_array()
            .into_iter()
            .flatten()
            .map(|word| word.as_str().unwrap().to_owned())
            .collect()
    };
    let mut rights = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        let named = words(rule, "resourceNames")
            .iter()
            .map(|name| format!("={name}"))
            .collect::<String>();
        for group in words(rule, "apiGroups") {
            for resource in words(rule, "resources") {
                let right = |verb| (group.clone(), format!("{resource}{named}"), verb);
                rights.extend(words(rule, "verbs").into_iter().map(right));
            }
        }
    }
    rights
}

/// The rights bound to the operator's account, with the namespace they hold in (none: everywhere).
fn bound(rendered: &[Value]) -> Vec<(Option<String>, BTreeSet<Right>)> {
    let mut bound = Vec::new();
    for (binding, role) in [("ClusterRoleBinding", "ClusterRole"), ("RoleBinding", "Role")] {
        for binding in of_kind(rendered, binding) {
            assert_eq!(binding["subjects"][0]["name"], "ppo-ppo-operator");
            assert_eq!(binding["subjects"][0]["namespace"], "ppo-system");
            let namespace = binding["metadata"]["namespace"].as_str();
            let roles = of_kind(rendered, role);
            let found = roles.iter().find(|role| {
                role["metadata"]["name"] == binding["roleRef"]["name"]
                    && role["metadata"]["namespace"].as_str() == namespace
            });
            bound.push((namespace.map(str::to_owned), granted(found.unwrap())));
        }
    }
    bound.sort();
    bound
}

#[test]
fn everywhere_it_may_do_what_it_does_and_no_more() {
    let everywhere = &written(&OF_JOBS) | &written(&OF_THE_CLUSTER);
    let expected = [
        (None, everywhere),
        (Some("ppo-system".to_owned()), written(&OF_THE_LEASE)),
    ];
    assert_eq!(bound(&objects(&template(&[]))), expected);
}

#[test]
fn with_listed_namespaces_it_may_do_it_only_there() {
    let rendered = objects(&template(&["--set", "watchNamespaces={a,b}"]));
    let expected = [
        (None, written(&OF_THE_CLUSTER)),
        (Some("a".to_owned()), written(&OF_JOBS)),
        (Some("b".to_owned()), written(&OF_JOBS)),
        (Some("ppo-system".to_owned()), written(&OF_THE_LEASE)),
    ];
    assert_eq!(bound(&rendered), expected);
}

#[test]
fn whatever_it_makes_for_a_job_it_may_list_watch_and_create() {
    let rights = written(&OF_JOBS);
    for kind in Kind::BUILTIN.into_iter().chain(Kind::GANGS) {
        let resource = kind.resource();
        for verb in ["list", "watch", "create"] {
            let right = (resource.group.clone(), resource.plural.clone(), verb.to_owned());
            assert!(rights.contains(&right), "{right:?}");
        }
    }
}

#[test]
fn of_secrets_it_may_list_watch_and_create_and_it_may_neither_change_rights_nor_use_a_wildcard() {
    let mut of_secrets = BTreeSet::new();
    for (_, rights) in bound(&objects(&template(&[]))) {
        for (group, resource, verb) in rights {
            assert!(
                group != "rbac.authorization.k8s.io" && !resource.starts_with("pods/"),
                "{group} {resource}"
            );
            assert!(
                ![&group, &resource, &verb].iter().any(|word| word.contains('*')),
                "{group} {resource} {verb}"
            );
            if resource.starts_with("secrets") {
                of_secrets.insert(verb);
            }
        }
    }
    assert_eq!(
        of_secrets,
        BTreeSet::from(["create", "list", "watch"].map(str::to_owned))
    );
}

#[test]
fn whoever_may_edit_a_namespace_may_run_jobs_there() {
    let rendered = objects(&template(&[]));
    let roles = of_kind(&rendered, "ClusterRole");
    let aggregated = |to: &str| {
        let label = format!("rbac.authorization.k8s.io/aggregate-to-{to}");
        roles
            .iter()
            .find(|role| role["metadata"]["labels"].get(&label).is_some())
            .map(|role| granted(role))
            .unwrap()
    };
    let right = |resource: &str, verb: &str| ("ppojob.dev".to_owned(), resource.to_owned(), verb.to_owned());
    assert!(aggregated("edit").contains(&right("ppojobs", "create")));
    assert!(aggregated("admin").contains(&right("ppojobs/scale", "patch")));
    assert!(aggregated("view").contains(&right("ppojobs", "watch")));
    assert!(
        !aggregated("view")
            .iter()
            .any(|(_, _, verb)| !["get", "list", "watch"].contains(&verb.as_str()))
    );
    // The status is the operator's to write.
    assert!(
        !aggregated("edit")
            .iter()
            .any(|(_, resource, _)| resource == "ppojobs/status")
    );
}
