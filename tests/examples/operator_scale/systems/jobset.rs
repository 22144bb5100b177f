//! JobSet: one Job in each set. The manifest says what JobSet's webhook would default
//! (jobset 0.10.1, pkg/webhooks/jobset_webhook.go).

use anyhow::Result;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use ppo_tests::definitions;
use serde_json::{Value, json};

use super::{in_peers, job};

pub async fn crds() -> Result<Vec<CustomResourceDefinition>> {
    definitions(&in_peers("jobset"), "sigs.k8s.io/jobset", "config/components/crd/bases").await
}

pub fn spec(pods: usize) -> Value {
    json!({
        "successPolicy": {"operator": "All"},
        "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
        "network": {"enableDNSHostnames": true, "publishNotReadyAddresses": true},
        "replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": job::spec(pods)}}],
    })
}

/// Its Jobs whose pods are all ready.
pub fn runs(status: &Value) -> bool {
    status["replicatedJobsStatus"][0]["ready"] == 1
}
