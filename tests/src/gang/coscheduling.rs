//! The Coscheduling plugin in a second scheduler.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::json;

use crate::credentials::write;
use crate::ports::free_ports;
use crate::{ControlPlane, Programs};

/// The process that places pods.
pub(super) const SCHEDULER: &str = "coscheduling";

pub(super) async fn start(cluster: &ControlPlane, programs: &Programs) -> Result<()> {
    let profile = json!({
        "schedulerName": "coscheduling",
        "plugins": {
            "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
            "queueSort": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "*"}]},
        },
        "pluginConfig": [{"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": 10}}],
    });
    let configuration = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": false},
        "clientConnection": {"kubeconfig": "kubeconfig"},
        "profiles": [profile],
    });
    write(&cluster.folder()?.join("coscheduling.yaml"), &configuration.to_string())?;
    let program = |name: &str| Ok::<_, anyhow::Error>(programs.path(name)?.display().to_string());
    let scheduler = vec![
        program("coscheduling")?,
        "--config=coscheduling.yaml".into(),
        "--secure-port=0".into(),
    ];
    cluster.spawn(SCHEDULER, scheduler, BTreeMap::new()).await?;
    let [metrics, probes] = free_ports()?;
    let controller = vec![
        program("controller")?,
        format!("--metricsAddr=127.0.0.1:{metrics}"),
        format!("--probeAddr=127.0.0.1:{probes}"),
    ];
    let kubeconfig = ("KUBECONFIG".to_string(), "kubeconfig".to_string());
    cluster
        .spawn("coscheduling-controller", controller, BTreeMap::from([kubeconfig]))
        .await
}
