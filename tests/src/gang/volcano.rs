//! Volcano without its webhook manager and leader election.

use anyhow::Result;

use crate::credentials::write;
use crate::{ControlPlane, Programs};

/// The process that places pods.
pub(super) const SCHEDULER: &str = "volcano-scheduler";

/// Volcano's default actions and plugins, without preemption.
const CONFIGURATION: &str = r#"actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - {name: gang, enablePreemptable: false}
  - name: conformance
- plugins:
  - name: overcommit
  - {name: drf, enablePreemptable: false}
  - name: predicates
  - name: proportion
  - name: nodeorder
  - name: binpack
"#;

pub(super) async fn start(cluster: &ControlPlane, programs: &Programs) -> Result<()> {
    write(&cluster.folder()?.join("volcano.yaml"), CONFIGURATION)?;
    let command = |program: &str, flags: &[&str]| -> Result<Vec<String>> {
        let mut argv = vec![programs.path(program)?.display().to_string()];
        argv.extend(["--kubeconfig=kubeconfig", "--leader-elect=false"].map(String::from));
        argv.extend(flags.iter().map(|flag| (*flag).to_string()));
        Ok(argv)
    };
    // Only its PodGroups and queues are looked after: its other controllers want definitions that nobody uses here.
    let controllers = "--controllers=+pg-controller,+queue-controller";
    let manager = command("controller-manager", &[controllers, "--enable-healthz=false"])?;
    cluster
        .spawn("volcano-controller-manager", manager, Default::default())
        .await?;
    let scheduler = [
        "--scheduler-conf=volcano.yaml",
        "--schedule-period=200ms",
        "--cache-dumper=false",
        "--enable-healthz=false",
        "--enable-metrics=false",
    ];
    let scheduler = command("scheduler", &scheduler)?;
    cluster.spawn(SCHEDULER, scheduler, Default::default()).await
}
