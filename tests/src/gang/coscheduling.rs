//! The Coscheduling plugin in a second scheduler, whose profile has the name that scheduler-plugins' own chart gives it: jobs ask for it
//! without being told.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::credentials::write;
use crate::go_module::{documents, source};
use crate::ports::free_ports;
use crate::{ControlPlane, Programs};

/// The Go package, with its definitions and its chart.
pub(super) const PACKAGE: &str = "sigs.k8s.io/scheduler-plugins";

/// The process that places pods.
pub(super) const SCHEDULER: &str = "coscheduling";

/// What the chart installs where nobody says otherwise.
const VALUES: &str = "manifests/install/charts/as-a-second-scheduler/values.yaml";

pub(super) async fn start(cluster: &ControlPlane, programs: &Programs) -> Result<()> {
    let name = profile().await?;
    let profile = json!({
        "schedulerName": name,
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

/// The profile's name in that chart.
async fn profile() -> Result<String> {
    let file = source("schedulers", PACKAGE).await?.join(VALUES);
    let values: Vec<Value> = documents(&file)?;
    let name = values.first().and_then(|values| values["scheduler"]["name"].as_str());
    let name = name.with_context(|| format!("{} names no scheduler", file.display()))?;
    Ok(name.to_owned())
}
