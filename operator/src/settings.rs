//! What the operator's administrator chose.

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
    /// User, group and file group of pods whose template names none. None: the cluster's choice.
    pub user: Option<i64>,
    /// Who besides the job's pods may reach the metrics port. None: no NetworkPolicies are made.
    pub network_policies: Option<Scrapers>,
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
            vllm_image: "vllm/vllm-openai:v0.33.0".into(),
            image_pull_policy: "IfNotPresent".into(),
            gpu_resource: "nvidia.com/gpu".into(),
            // Of the worker's image, which has no root.
            user: Some(65_532),
            network_policies: Some(Scrapers::default()),
        }
    }
}
