//! Kubeflow's training operator: a PyTorchJob, its master one of the pods.

use anyhow::Result;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use ppo_tests::definitions;
use serde_json::{Value, json};

use super::{in_peers, pod};

pub async fn crds() -> Result<Vec<CustomResourceDefinition>> {
    let file = "manifests/base/crds/kubeflow.org_pytorchjobs.yaml";
    definitions(
        &in_peers("training-operator"),
        "github.com/kubeflow/training-operator",
        file,
    )
    .await
}

pub fn spec(pods: usize) -> Value {
    // The container must have this name.
    let replicas =
        |count: usize| json!({"replicas": count, "restartPolicy": "OnFailure", "template": pod("pytorch", None)});
    let mut specs = json!({"Master": replicas(1)});
    if pods > 1 {
        specs["Worker"] = replicas(pods - 1);
    }
    json!({"pytorchReplicaSpecs": specs})
}

/// Its condition `Running` speaks of the master alone.
pub fn runs(status: &Value, pods: usize) -> bool {
    let conditions = status["conditions"].as_array();
    let is_running = |condition: &Value| condition["type"] == "Running" && condition["status"] == "True";
    let active = |role: &str| status["replicaStatuses"][role]["active"].as_u64().unwrap_or_default();
    let running = conditions.is_some_and(|conditions| conditions.iter().any(is_running));
    running && active("Master") + active("Worker") == pods as u64
}
