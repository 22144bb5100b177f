//! A second kube-scheduler beside the cluster's own.

use anyhow::Result;
use serde_json::json;

use crate::ControlPlane;
use crate::credentials::write;

/// The process, and the profile that pods ask for.
pub(super) const SCHEDULER: &str = "gang-scheduler";

pub(super) async fn start(cluster: &ControlPlane) -> Result<()> {
    let configuration = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": false},
        "clientConnection": {"kubeconfig": "kubeconfig"},
        "profiles": [{"schedulerName": SCHEDULER}],
    });
    write(
        &cluster.folder()?.join("gang-scheduler.yaml"),
        &configuration.to_string(),
    )?;
    let argv = vec![
        cluster.program("kube-scheduler")?.display().to_string(),
        "--config=gang-scheduler.yaml".into(),
        "--secure-port=0".into(),
        format!("--feature-gates={}", cluster.options()?.feature_gates.join(",")),
    ];
    cluster.spawn(SCHEDULER, argv, Default::default()).await
}
