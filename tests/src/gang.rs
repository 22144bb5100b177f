//! Real gang schedulers beside a control plane: their definitions, and their processes.

mod coscheduling;
mod kueue;
mod volcano;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use tokio::task::spawn_blocking;

use crate::{ControlPlane, Programs, run};

/// A gang scheduler that a test runs for real.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GangScheduler {
    /// Volcano's scheduler and controller manager.
    Volcano,
    /// A scheduler with the Coscheduling plugin, and the controller of its PodGroups.
    Coscheduling,
    /// Kueue's controller, with its webhooks.
    Kueue,
}

impl GangScheduler {
    /// Its definitions, for [`Options::crds`](crate::Options).
    ///
    /// # Errors
    /// When Go cannot say where the module is.
    pub async fn crds(self) -> Result<Vec<CustomResourceDefinition>> {
        let (module, package, folder) = match self {
            Self::Volcano => ("schedulers", "volcano.sh/volcano", "config/crd/volcano/bases"),
            Self::Coscheduling => ("schedulers", "sigs.k8s.io/scheduler-plugins", "config/crd/bases"),
            Self::Kueue => ("kueue", kueue::PACKAGE, "config/components/crd/bases"),
        };
        let folder = source(module, package).await?.join(folder);
        let listing = std::fs::read_dir(&folder).with_context(|| format!("{} cannot be read", folder.display()))?;
        let mut files: Vec<PathBuf> = listing.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
        files.sort();
        let mut crds = Vec::new();
        for file in files {
            crds.extend(documents(&file)?);
        }
        Ok(crds)
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
        }
    }
}

async fn programs(module: &'static str) -> Result<Programs> {
    spawn_blocking(move || Programs::of(&[module])).await?
}

/// The sources of a Go package of a module of `tests/cluster`.
async fn source(module: &str, package: &str) -> Result<PathBuf> {
    let go = match std::env::var_os("PATH") {
        Some(path) if std::env::split_paths(&path).any(|folder| folder.join("go").exists()) => "go",
        _ => "/usr/local/go/bin/go",
    };
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster").join(module);
    let module = module.display().to_string();
    // The programs come from the same module: what is downloaded here is needed there.
    let download = ["-C", &module, "mod", "download", package];
    run(Path::new(go), &download, &BTreeMap::new()).await?.success()?;
    let list = ["-C", &module, "list", "-m", "-f", "{{.Dir}}", package];
    let folder = run(Path::new(go), &list, &BTreeMap::new()).await?.success()?;
    match folder.trim() {
        "" => bail!("Go does not say where {package} of {module} is"),
        folder => Ok(folder.into()),
    }
}

/// The YAML documents of a file.
fn documents<T: DeserializeOwned>(file: &Path) -> Result<Vec<T>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let documents = serde_yaml::Deserializer::from_str(&text).map(Option::<T>::deserialize);
    let read: Result<Vec<Option<T>>, _> = documents.collect();
    let read = read.with_context(|| format!("{} is not what was expected", file.display()))?;
    Ok(read.into_iter().flatten().collect())
}
