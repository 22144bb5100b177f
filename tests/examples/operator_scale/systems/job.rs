//! Kubernetes' own Jobs. The controller runs in a process of its own: beside the other controllers of the controller manager
//! its memory and CPU could not be told from theirs.

use anyhow::Result;
use ppo_tests::ControlPlane;
use serde_json::{Value, json};

use super::{CONCURRENCY, RAISED, pod};

/// The flag by which the control plane's controller manager leaves Jobs to that process.
pub const ELSEWHERE: &str = "--controllers=*,-job-controller";

pub fn argv(cluster: &ControlPlane) -> Result<Vec<String>> {
    let program = cluster.program("kube-controller-manager")?.display().to_string();
    let mut argv = vec![program, format!("--kubeconfig={}", cluster.kubeconfig().display())];
    let flags = [
        "--controllers=job-controller",
        "--leader-elect=false",
        "--secure-port=0",
    ];
    argv.extend(flags.into_iter().chain(RAISED).map(str::to_owned));
    argv.push(format!("--concurrent-job-syncs={CONCURRENCY}"));
    Ok(argv)
}

pub fn spec(pods: usize) -> Value {
    json!({
        "parallelism": pods,
        "completions": pods,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": pod("worker", Some("Never")),
    })
}

pub fn runs(status: &Value, pods: usize) -> bool {
    status["ready"] == pods
}
