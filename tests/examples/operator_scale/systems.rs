//! What is measured: our operator and its peers.

mod job;
mod jobset;
mod kuberay;
mod ours;
mod training_operator;

use std::str::FromStr;

use anyhow::{Context as _, Error, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject};
use ppo_tests::{Component, ControlPlane, Options, Programs};
use serde_json::{Value, json};

use crate::process::Process;
use crate::setting::Setting;

/// Client limits of every peer, far above what two cores reach; as shipped they would be 20 requests a second for most.
const RAISED: [&str; 2] = ["--kube-api-qps=1000", "--kube-api-burst=2000"];
/// Reconciles side by side of every peer: as many as ours does as shipped.
const CONCURRENCY: u32 = 16;

/// A system that runs jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Our operator.
    Ours,
    /// Kubernetes' built-in Job controller.
    Job,
    /// JobSet, and the Job controller below it.
    JobSet,
    /// KubeRay's RayClusters.
    KubeRay,
    /// Kubeflow's PyTorchJobs.
    TrainingOperator,
}

impl System {
    /// All, ours first.
    pub const ALL: [Self; 5] = [
        Self::Ours,
        Self::Job,
        Self::JobSet,
        Self::KubeRay,
        Self::TrainingOperator,
    ];

    /// Its name, which is also that on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Job => "job",
            Self::JobSet => "jobset",
            Self::KubeRay => "kuberay",
            Self::TrainingOperator => "training-operator",
        }
    }

    /// With its version, as the table shows it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Ours => "**ours**",
            Self::Job => "Kubernetes Job 1.36",
            Self::JobSet => "JobSet 0.10 with Job",
            Self::KubeRay => "KubeRay 1.4",
            Self::TrainingOperator => "training-operator 1.8",
        }
    }

    /// Pods of each of its jobs at a setting: ours has at least an actor and an engine.
    pub fn pods(self, setting: Setting) -> usize {
        match self {
            Self::Ours => setting.pods.max(2),
            _ => setting.pods,
        }
    }

    /// What its User-Agents hold.
    pub fn user_agents(self) -> &'static [&'static str] {
        match self {
            Self::Ours => &["ppo-operator"],
            Self::Job => &["job-controller"],
            Self::JobSet => &["jobset", "job-controller"],
            Self::KubeRay => &["kuberay-operator"],
            Self::TrainingOperator => &["training-operator"],
        }
    }

    /// The module of `tests/peers` that pins it; none: it is ours, or part of Kubernetes.
    fn module(self) -> Option<&'static str> {
        matches!(self, Self::JobSet | Self::KubeRay | Self::TrainingOperator).then(|| self.name())
    }

    /// Builds it unless this machine has it: minutes, which shall not fall into a measurement.
    ///
    /// # Errors
    /// When it does not build.
    pub async fn build(self) -> Result<()> {
        match self.module() {
            Some(module) => peer(module).await.map(|_| ()),
            None => Ok(()),
        }
    }

    /// The control plane it is measured on.
    ///
    /// # Errors
    /// When its definitions are not to be had.
    pub async fn control_plane(self) -> Result<Options> {
        let mut options = Options {
            crds: self.crds().await?,
            ..Options::audited()
        };
        if self.has_job_controller() {
            options
                .flags
                .push((Component::ControllerManager, job::ELSEWHERE.into()));
        }
        Ok(options)
    }

    async fn crds(self) -> Result<Vec<CustomResourceDefinition>> {
        match self {
            Self::Ours | Self::Job => Ok(Vec::new()),
            Self::JobSet => jobset::crds().await,
            Self::KubeRay => kuberay::crds().await,
            Self::TrainingOperator => training_operator::crds().await,
        }
    }

    fn has_job_controller(self) -> bool {
        matches!(self, Self::Job | Self::JobSet)
    }

    /// Starts its processes.
    ///
    /// # Errors
    /// When one cannot be built or does not start.
    pub async fn start(self, cluster: &ControlPlane) -> Result<Vec<Process>> {
        let mut lines = Vec::new();
        if self == Self::Ours {
            lines.push(("ppo-operator", ours::argv()?));
        }
        if let Some(module) = self.module() {
            lines.push((module, peer(module).await?));
        }
        if self.has_job_controller() {
            lines.push(("job-controller", job::argv(cluster)?));
        }
        let start =
            |(name, argv): (&str, Vec<String>)| Process::start(name, &argv, cluster.folder()?, cluster.kubeconfig());
        lines.into_iter().map(start).collect()
    }

    /// The type of its jobs.
    pub fn resource(self) -> ApiResource {
        let (group, version, kind, plural) = match self {
            Self::Ours => ("ppojob.dev", "v1alpha1", "PpoJob", "ppojobs"),
            Self::Job => ("batch", "v1", "Job", "jobs"),
            Self::JobSet => ("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"),
            Self::KubeRay => ("ray.io", "v1", "RayCluster", "rayclusters"),
            Self::TrainingOperator => ("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs"),
        };
        ApiResource {
            group: group.into(),
            version: version.into(),
            api_version: format!("{group}/{version}"),
            kind: kind.into(),
            plural: plural.into(),
        }
    }

    /// A job of so many pods.
    ///
    /// # Errors
    /// Never, but for a mistake in a manifest.
    pub fn job(self, name: &str, pods: usize) -> Result<DynamicObject> {
        let spec = match self {
            Self::Ours => ours::spec(pods),
            Self::Job => job::spec(pods),
            Self::JobSet => jobset::spec(pods),
            Self::KubeRay => kuberay::spec(pods),
            Self::TrainingOperator => training_operator::spec(pods),
        };
        let resource = self.resource();
        let object = json!({"apiVersion": resource.api_version, "kind": resource.kind,
            "metadata": {"name": name}, "spec": spec});
        serde_json::from_value(object).context("a manifest of the bench")
    }

    /// Whether it reports a job of so many pods as running, all pods of it.
    pub fn runs(self, job: &DynamicObject, pods: usize) -> bool {
        let status = &job.data["status"];
        match self {
            Self::Ours => ours::runs(status),
            Self::Job => job::runs(status, pods),
            Self::JobSet => jobset::runs(status),
            Self::KubeRay => kuberay::runs(status),
            Self::TrainingOperator => training_operator::runs(status, pods),
        }
    }
}

impl FromStr for System {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let names = Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|system| system.name() == text);
        found.with_context(|| format!("{text:?} is none of {names}"))
    }
}

/// The command line of a peer: its module and its program have one name.
async fn peer(module: &'static str) -> Result<Vec<String>> {
    let programs = tokio::task::spawn_blocking(move || Programs::of(&[&in_peers(module)])).await??;
    let mut argv = vec![programs.path(module)?.display().to_string()];
    argv.extend(RAISED.map(str::to_owned));
    argv.push(format!("--concurrency={CONCURRENCY}"));
    Ok(argv)
}

/// A module of `tests/peers` as `tests/cluster/build` is told of it.
fn in_peers(module: &str) -> String {
    format!("../peers/{module}")
}

/// A pod of a peer: one container that takes one GPU, as those of ours do.
fn pod(container: &str, restart_policy: Option<&str>) -> Value {
    json!({"spec": {
        "restartPolicy": restart_policy,
        "containers": [{
            "name": container,
            "image": "worker",
            "command": ["worker"],
            "resources": {"limits": {"nvidia.com/gpu": "1"}},
        }],
    }})
}
