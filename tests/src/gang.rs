//! Real gang schedulers beside a control plane: their definitions, and their processes.

mod coscheduling;
mod kueue;
mod native;
mod volcano;

use anyhow::Result;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use tokio::task::spawn_blocking;

use crate::{ControlPlane, Programs, definitions};

/// A gang scheduler that a test runs for real.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GangScheduler {
    /// Volcano's scheduler and controller manager.
    Volcano,
    /// A scheduler with the Coscheduling plugin, and the controller of its PodGroups.
    Coscheduling,
    /// Kueue's controller, with its webhooks.
    Kueue,
    /// Kubernetes' own gangs, placed by a second kube-scheduler that pods ask for by [its name](Self::NATIVE), so that a test
    /// can do without it and the cluster with its own.
    Native,
}

impl GangScheduler {
    /// `schedulerName` of pods that [`Native`](Self::Native) places.
    pub const NATIVE: &str = native::SCHEDULER;

    /// Its definitions, for [`Options::crds`](crate::Options).
    ///
    /// # Errors
    /// When Go cannot say where the module is.
    pub async fn crds(self) -> Result<Vec<CustomResourceDefinition>> {
        let (module, package, folder) = match self {
            Self::Volcano => ("schedulers", "volcano.sh/volcano", "config/crd/volcano/bases"),
            Self::Coscheduling => ("schedulers", coscheduling::PACKAGE, "config/crd/bases"),
            Self::Kueue => ("kueue", kueue::PACKAGE, "config/components/crd/bases"),
            // Built in.
            Self::Native => return Ok(Vec::new()),
        };
        definitions(module, package, folder).await
    }

    /// Starts it beside a control plane that has its definitions.
    ///
    /// # Errors
    /// When it cannot be built or does not start.
    pub async fn start(self, cluster: &ControlPlane) -> Result<()> {
        match self {
            Self::Volcano => volcano::start(cluster, &programs("schedulers").await?).await,
            Self::Coscheduling => coscheduling::start(cluster, &programs("schedulers").await?).await,
            Self::Kueue => kueue::start(cluster, &programs("kueue").await?).await,
            Self::Native => native::start(cluster).await,
        }
    }

    /// Ends the process that decides, as if it had been scaled to nothing; its definitions and webhooks stay.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn stop(self, cluster: &ControlPlane) -> Result<()> {
        let process = match self {
            Self::Volcano => volcano::SCHEDULER,
            Self::Coscheduling => coscheduling::SCHEDULER,
            Self::Kueue => kueue::PROCESS,
            Self::Native => native::SCHEDULER,
        };
        cluster.stop_process(process).await
    }
}

async fn programs(module: &'static str) -> Result<Programs> {
    spawn_blocking(move || Programs::of(&[module])).await?
}
