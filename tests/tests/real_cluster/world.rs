//! The cluster that the tests of this process share, with our operator installed by Helm.

use std::path::PathBuf;

use anyhow::Result;
use ppo_tests::{Image, Options, RealCluster, lacking, skipped};
use tokio::sync::{OnceCell, RwLock, RwLockReadGuard};

use crate::worker::{binary, repository};

/// Where the operator runs.
pub const OPERATOR_NAMESPACE: &str = "ppo-system";

/// A cluster with our operator.
pub struct World {
    pub cluster: RealCluster,
    /// Held for writing by a test that takes the node away.
    pub node: RwLock<()>,
}

/// The cluster, started by the first test that asks; None, said in one line, where this machine cannot run it.
pub async fn world() -> Option<&'static World> {
    static WORLD: OnceCell<Option<World>> = OnceCell::const_new();
    WORLD.get_or_init(|| started(Options::native_gang())).await.as_ref()
}

/// Another one beside it, whose control plane is that of the next Kubernetes; its node's kubelet is of the same as the other's. It ends
/// when it is dropped.
pub async fn next_world() -> Option<World> {
    started(Options::next_native_gang()).await
}

async fn started(options: Options) -> Option<World> {
    if let Some(lack) = lacking().await.unwrap() {
        skipped("tests of real pods", &lack);
        return None;
    }
    Some(World::start(options).await.unwrap())
}

impl World {
    async fn start(options: Options) -> Result<Self> {
        let cluster = RealCluster::start_with(options).await?;
        let binaries = binaries();
        for image in [Image::operator(&binaries), Image::worker(&binaries), Image::busybox()] {
            cluster.load(&image).await?;
        }
        cluster.control_plane().install_monitoring_kinds().await?;
        let monitoring = format!("monitoring={}", crate::prometheus::values());
        let chart = repository().join("charts/ppo-operator").display().to_string();
        let tag = "worker.image.variant=cpu".to_owned();
        let install = [
            "install",
            "ppo-operator",
            &chart,
            "--namespace",
            OPERATOR_NAMESPACE,
            "--create-namespace",
            "--set",
            &tag,
            "--set-json",
            &monitoring,
            "--wait",
            "--timeout",
            "100s",
        ];
        let installed = cluster.control_plane().helm(&install).await?;
        if let Err(error) = installed.success() {
            let pods = cluster
                .control_plane()
                .kubectl(&["describe", "pods", "--namespace", OPERATOR_NAMESPACE])
                .await?;
            return Err(error.context(pods.stdout));
        }
        Ok(Self {
            cluster,
            node: RwLock::new(()),
        })
    }

    /// Keeps the node as long as it is held.
    pub async fn keep_node(&self) -> RwLockReadGuard<'_, ()> {
        self.node.read().await
    }
}

/// The folder of the binaries under test.
pub fn binaries() -> PathBuf {
    binary().parent().unwrap().to_owned()
}
