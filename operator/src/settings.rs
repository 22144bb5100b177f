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
            network_policies: Some(Scrapers::default()),
        }
    }
}
