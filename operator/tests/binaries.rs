//! The two binaries as people start them, without a cluster.
//! Being here also makes cargo build them beside the tests, for the tests of the whole system to run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::path::Path;
use std::process::{Command, Output};

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn operator(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ppo-operator"));
    // A place in the cluster, or a way to one, is nowhere to be found.
    let nowhere = command
        .args(args)
        .env("KUBECONFIG", "/nonexistent")
        .env_remove("KUBERNETES_SERVICE_HOST");
    nowhere.output().unwrap()
}

fn kubectl_ppo(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-ppo"));
    command.args(args).current_dir(repository()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn the_operator_prints_the_definition_that_the_repository_ships() {
    let printed = operator(&["crd"]);
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    let shipped = std::fs::read_to_string(repository().join("crds/ppojob.yaml")).unwrap();
    assert_eq!(text(&printed.stdout), shipped);
}

#[test]
fn an_operator_without_a_cluster_ends_and_says_what_it_looked_for() {
    let ended = operator(&["run", "--http-address", "127.0.0.1:0"]);
    let said = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("/nonexistent"), "{said}");
}

#[test]
fn a_log_that_no_terminal_shows_is_plain_text() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ppo-operator"));
    // kube tells where it looks for a cluster.
    let logging = command
        .args(["run", "--http-address", "127.0.0.1:0", "--log-format", "text"])
        .env("KUBECONFIG", "/nonexistent")
        .env("RUST_LOG", "trace")
        .env_remove("NO_COLOR")
        .env_remove("KUBERNETES_SERVICE_HOST");
    let said = text(&logging.output().unwrap().stderr);
    assert!(said.contains("TRACE"), "{said}");
    assert!(!said.contains('\u{1b}'), "{said:?}");
}

#[test]
fn kubectl_ppo_plans_a_file_without_a_cluster() {
    let planned = kubectl_ppo(&["plan", "-f", "configs/math-rloo-8gpu.yaml"]);
    assert!(planned.status.success(), "{}", text(&planned.stderr));
    let plan = text(&planned.stdout);
    assert!(plan.contains("samples per step 128"), "{plan}");
}

#[test]
fn kubectl_ppo_refuses_what_cannot_run_with_every_reason_at_once() {
    let refused = kubectl_ppo(&["plan", "-f", "configs/illegal.yaml"]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    for field in [
        "metadata.name",
        "spec.generation.temperature",
        "spec.algorithm.clip.dual",
        "spec.steps",
    ] {
        assert!(
            said.contains(&format!(" {field}: ")),
            "{field} is missing from:\n{said}"
        );
    }
}
