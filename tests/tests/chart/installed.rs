//! The chart on a real API server: installed, upgraded, tested, removed.

use std::fs;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use ppo_tests::{ControlPlane, Namespace, PATIENCE, wait_for};

use crate::tools::chart;

const CRD: &str = "ppojobs.ppojob.dev";

/// The chart as an older release had it: its definition has a column that ours has not.
fn older_chart(folder: &Path) {
    let mut left = vec![(chart(), folder.to_owned())];
    while let Some((from, to)) = left.pop() {
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let to = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                left.push((entry.path(), to));
            } else {
                fs::copy(entry.path(), to).unwrap();
            }
        }
    }
    let definition = folder.join("files/ppojob.yaml");
    let ours = fs::read_to_string(&definition).unwrap();
    let older = ours.replacen("name: KL\n", "name: Divergence\n", 1);
    assert_ne!(ours, older);
    fs::write(definition, older).unwrap();
}

async fn columns(namespace: &Namespace<'_>) -> Vec<String> {
    let crds: Api<CustomResourceDefinition> = Api::all(namespace.client.clone());
    let versions = crds.get(CRD).await.unwrap().spec.versions;
    let columns = versions
        .into_iter()
        .flat_map(|version| version.additional_printer_columns.unwrap_or_default());
    columns.map(|column| column.name).collect()
}

/// Whether the operator's account may do that.
async fn may(namespace: &Namespace<'_>, words: &[&str]) -> bool {
    let account = format!("--as=system:serviceaccount:{}:ppo-operator", namespace.name);
    let answer = namespace
        .cluster
        .kubectl(&[&["auth", "can-i", &account], words].concat())
        .await
        .unwrap();
    answer.stdout.trim() == "yes"
}

#[tokio::test]
async fn a_release_is_installed_upgraded_tested_and_removed_without_its_definition() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("chart").await.unwrap();
    namespace.gpu_nodes(2, 0).await.unwrap();
    let name = namespace.name.as_str();
    let helm = async |words: &[&str]| {
        cluster
            .helm(&[words, &["--namespace", name]].concat())
            .await
            .unwrap()
            .success()
            .unwrap()
    };

    // The harness has put the definition there: Helm takes it over, as the README says, with fields that others wrote.
    let folder = tempfile::tempdir().unwrap();
    older_chart(folder.path());
    let older = folder.path().display().to_string();
    helm(&[
        "install",
        "ppo-operator",
        &older,
        "--take-ownership",
        "--force-conflicts",
        "--wait",
        "--timeout",
        "60s",
    ])
    .await;
    assert!(columns(&namespace).await.contains(&"Divergence".to_owned()));

    let chart = chart().display().to_string();
    helm(&[
        "upgrade",
        "ppo-operator",
        &chart,
        "--wait",
        "--timeout",
        "60s",
        "--set",
        "podAnnotations.new=yes",
    ])
    .await;
    let upgraded = columns(&namespace).await;
    assert!(
        upgraded.contains(&"KL".to_owned()) && !upgraded.contains(&"Divergence".to_owned()),
        "{upgraded:?}"
    );

    assert!(may(&namespace, &["create", "pods", "--namespace", "default"]).await);
    assert!(
        may(
            &namespace,
            &[
                "patch",
                "ppojobs.ppojob.dev",
                "--subresource=status",
                "--namespace",
                "default"
            ]
        )
        .await
    );
    assert!(
        may(
            &namespace,
            &["update", "leases.coordination.k8s.io/ppo-operator", "--namespace", name]
        )
        .await
    );
    assert!(
        !may(
            &namespace,
            &["update", "leases.coordination.k8s.io/other", "--namespace", name]
        )
        .await
    );
    assert!(!may(&namespace, &["get", "secrets", "--namespace", "default"]).await);

    // Nothing runs in a fake node's pod, so that this test ends it as the check would.
    let test = async { helm(&["test", "ppo-operator", "--timeout", "60s"]).await };
    let check = async {
        let pod = "ppo-operator-test-ready";
        wait_for("the pod of helm test", PATIENCE, async || {
            namespace.wait_until_ready(pod).await
        })
        .await
        .unwrap();
        namespace.complete_pod(pod).await.unwrap();
    };
    let (said, ()) = tokio::time::timeout(Duration::from_secs(90), async { tokio::join!(test, check) })
        .await
        .unwrap();
    assert!(said.contains("Succeeded"), "{said}");

    helm(&["uninstall", "ppo-operator", "--wait", "--timeout", "60s"]).await;
    assert_eq!(columns(&namespace).await, upgraded);
}

#[tokio::test]
async fn with_listed_namespaces_the_operator_has_no_rights_elsewhere() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("chart-listed").await.unwrap();
    let (name, chart) = (namespace.name.as_str(), chart().display().to_string());
    let watched = format!("watchNamespaces={{{name}}}");
    let install = [
        "install",
        "ppo-operator",
        &chart,
        "--namespace",
        name,
        "--set",
        &watched,
        "--set",
        "crds.install=false",
    ];
    cluster.helm(&install).await.unwrap().success().unwrap();

    assert!(may(&namespace, &["create", "pods", "--namespace", name]).await);
    assert!(!may(&namespace, &["create", "pods", "--namespace", "default"]).await);
    assert!(!may(&namespace, &["list", "ppojobs.ppojob.dev", "--all-namespaces"]).await);
    assert!(may(&namespace, &["get", "nodes/any"]).await);
    assert!(!may(&namespace, &["list", "nodes"]).await);
    assert!(
        may(
            &namespace,
            &[
                "watch",
                &format!("customresourcedefinitions.apiextensions.k8s.io/{CRD}")
            ]
        )
        .await
    );
}
