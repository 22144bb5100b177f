//! The settings that the operator's administrator chose.

mod defaults;

pub use defaults::PodDefaults;

/// vLLM's image where nobody names another.
const VLLM_IMAGE: &str = "vllm/vllm-openai:v0.33.0";
/// Version of `nvidia-nccl-cu13` in that image, which torch 2.14 requires. The worker's CUDA image has the same: NCCL joins no peer of
/// another version ("Mismatched NCCL version detected" in its `src/init.cc`), and weights would go over HTTP.
#[cfg(test)]
const VLLM_NCCL: &str = "2.30.7";
/// The profile of scheduler-plugins' own chart (`scheduler.name` in its `manifests/install/charts/as-a-second-scheduler`).
const COSCHEDULING_SCHEDULER: &str = "scheduler-plugins-scheduler";

/// How pods are made.
#[derive(Clone, Debug)]
pub struct PodSettings {
    /// Image of `ppo-worker`, for templates that name none.
    pub worker_image: String,
    /// Image of vLLM, for templates that name none.
    pub vllm_image: String,
    /// When images are pulled.
    pub image_pull_policy: String,
    /// Resource name of a GPU.
    pub gpu_resource: String,
    /// `schedulerName` of the profile with the coscheduling plugin, for templates that name none.
    pub coscheduling_scheduler: String,
    /// User, group and file group of pods whose template names none. None: the cluster's choice.
    pub user: Option<i64>,
    /// Who besides the job's pods may reach the metrics port. None: no NetworkPolicies are made.
    pub network_policies: Option<Scrapers>,
    /// What pods have whose template says nothing else.
    pub defaults: PodDefaults,
    /// Whether a PodDisruptionBudget keeps the actors of running jobs from eviction.
    pub disruption_budgets: bool,
}

/// Namespaces whose pods may read metrics.
#[derive(Clone, Debug, Default)]
pub struct Scrapers {
    /// Their names.
    pub namespaces: Vec<String>,
}

impl Default for PodSettings {
    fn default() -> Self {
        let version = env!("CARGO_PKG_VERSION");
        Self {
            worker_image: format!("ghcr.io/ppojob/ppo-worker:{version}"),
            vllm_image: VLLM_IMAGE.into(),
            image_pull_policy: "IfNotPresent".into(),
            gpu_resource: "nvidia.com/gpu".into(),
            coscheduling_scheduler: COSCHEDULING_SCHEDULER.into(),
            // Of the worker's image, which has no root.
            user: Some(65_532),
            network_policies: Some(Scrapers::default()),
            defaults: PodDefaults::default(),
            disruption_budgets: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workers_cuda_image_has_the_nccl_of_vllms() {
        let image = include_str!("../../worker/Dockerfile.cuda");
        let wheel = format!("nvidia-nccl-cu13=={VLLM_NCCL} ");
        assert!(
            image.contains(&wheel),
            "worker/Dockerfile.cuda should install {wheel}for {VLLM_IMAGE}"
        );
    }

    #[test]
    fn the_workers_cuda_image_finds_its_libtorch_first_and_the_driver_where_gke_mounts_it() {
        let image = include_str!("../../worker/Dockerfile.cuda");
        let path = image.lines().find_map(|line| line.strip_prefix("ENV LD_LIBRARY_PATH="));
        let folders: Vec<&str> = path.unwrap().split(':').collect();
        assert_eq!(folders[0], "/opt/torch/torch/lib");
        assert!(folders.contains(&"/usr/local/nvidia/lib64"), "{folders:?}");
    }
}
