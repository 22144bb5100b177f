//! KubeRay: a RayCluster, its head one of the pods.

use anyhow::Result;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use ppo_tests::definitions;
use serde_json::{Value, json};

use super::{in_peers, pod};

pub async fn crds() -> Result<Vec<CustomResourceDefinition>> {
    definitions(
        &in_peers("kuberay"),
        "github.com/ray-project/kuberay/ray-operator",
        "config/crd/bases",
    )
    .await
}

pub fn spec(pods: usize) -> Value {
    let workers = pods - 1;
    let group = json!({
        "groupName": "workers",
        "replicas": workers,
        "minReplicas": workers,
        "maxReplicas": workers,
        "rayStartParams": {},
        "template": pod("ray-worker", None),
    });
    let groups = if workers > 0 { vec![group] } else { Vec::new() };
    json!({
        "rayVersion": "2.46.0",
        "headGroupSpec": {"rayStartParams": {}, "template": pod("ray-head", None)},
        "workerGroupSpecs": groups,
    })
}

pub fn runs(status: &Value) -> bool {
    status["state"] == "ready"
}
