//! Where a job runs, and so what its paths mean.

use std::path::{Path, PathBuf};

use crate::run_config::{DataPaths, Location};
use crate::spec::{DataSource, ModelSource, PpoJob, PpoJobSpec, PvcPath, Role};

/// Where the job runs, and so what its paths mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Environment {
    /// All roles on this machine. Claims cannot be mounted; relative paths start at the manifest's folder.
    Laptop {
        /// Folder of the manifest.
        manifest_folder: PathBuf,
    },
    /// Pods. A claim `c` is mounted at `<volumes>/c`; paths are absolute.
    Cluster {
        /// Folder under which the operator mounts claims.
        volumes: PathBuf,
    },
}

impl Environment {
    /// Folder under which the operator mounts claims, by the name of the claim.
    pub const VOLUMES: &str = "/volumes";

    /// The pods of a cluster, with claims under [`Self::VOLUMES`].
    pub fn cluster() -> Self {
        Self::Cluster {
            volumes: Self::VOLUMES.into(),
        }
    }

    /// Where a manifest is meant to run, for `plan`: a cluster when it names a claim or has a pod template, else the machine it lies on.
    pub fn meant_by(job: &PpoJob, manifest_folder: &Path) -> Self {
        if is_for_pods(&job.spec) {
            Self::cluster()
        } else {
            Self::Laptop {
                manifest_folder: manifest_folder.into(),
            }
        }
    }

    /// The machine of a manifest that no cluster takes, and that is for none: it has a relative path, and neither a claim nor a pod template.
    pub fn of_one_machine(job: &PpoJob, manifest_folder: &Path) -> Option<Self> {
        let spec = &job.spec;
        let data = data(spec).flat_map(|source| source.path.iter().chain(source.paths.iter().flatten()));
        let mut paths = models(spec)
            .filter_map(|source| source.path.as_ref())
            .chain(data)
            .chain(&spec.checkpoint.path);
        let relative = paths.any(|path| !path.starts_with('/'));
        (relative && !is_for_pods(spec)).then(|| Self::Laptop {
            manifest_folder: manifest_folder.into(),
        })
    }

    /// Where a path of the manifest is there.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        match self {
            Self::Laptop { manifest_folder } => manifest_folder.join(path),
            Self::Cluster { .. } => path.into(),
        }
    }

    /// Where a claim is mounted there, or what is at a path in it.
    pub(crate) fn claim(&self, claim: &str, path: &str) -> PathBuf {
        let volumes = match self {
            // Refused by `validate`.
            Self::Laptop { manifest_folder } => manifest_folder.as_path(),
            Self::Cluster { volumes } => volumes.as_path(),
        };
        let inside = path.trim_start_matches('/');
        if inside.is_empty() {
            volumes.join(claim)
        } else {
            volumes.join(claim).join(inside)
        }
    }

    fn file(&self, path: Option<&str>, pvc: Option<&PvcPath>) -> PathBuf {
        match (path, pvc) {
            (_, Some(pvc)) => self.claim(&pvc.claim_name, &pvc.path),
            (path, None) => self.path(path.unwrap_or_default()),
        }
    }

    /// Where a model lies there.
    pub fn model(&self, source: &ModelSource) -> Location {
        match &source.hub {
            Some(hub) => Location::Hub {
                id: hub.id.clone(),
                revision: hub.revision.clone(),
            },
            None => Location::Path(self.file(source.path.as_deref(), source.pvc.as_ref())),
        }
    }

    /// Where rows lie there.
    pub(crate) fn data(&self, source: &DataSource) -> DataPaths {
        match &source.paths {
            Some(paths) => paths.iter().map(|path| self.path(path)).collect::<Vec<_>>().into(),
            None => self.file(source.path.as_deref(), source.pvc.as_ref()).into(),
        }
    }
}

fn models(spec: &PpoJobSpec) -> impl Iterator<Item = &ModelSource> {
    let reward = spec.roles.reward.model.as_ref().map(|model| &model.source);
    let model = &spec.model;
    [
        Some(&model.policy),
        model.critic.as_ref(),
        model.reference.as_ref(),
        reward,
    ]
    .into_iter()
    .flatten()
}

fn data(spec: &PpoJobSpec) -> impl Iterator<Item = &DataSource> {
    let held_out = spec.evaluation.as_ref().map(|evaluation| &evaluation.source);
    [Some(&spec.prompts.source), held_out].into_iter().flatten()
}

/// Whether a manifest has what only a cluster knows. Who gives a template means pods: it may be the one thing that says where their paths are.
fn is_for_pods(spec: &PpoJobSpec) -> bool {
    names_a_claim(spec) || Role::ALL.into_iter().any(|role| spec.roles.template(role).is_some())
}

fn names_a_claim(spec: &PpoJobSpec) -> bool {
    spec.checkpoint.claim("").is_some()
        || models(spec).any(|source| source.pvc.is_some())
        || data(spec).any(|source| source.pvc.is_some())
}
