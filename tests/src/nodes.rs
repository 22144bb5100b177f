//! Fake nodes with GPUs, for one namespace.

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::{Component, Namespace, PATIENCE, wait_for};

/// The label by which a node belongs to a namespace.
pub const NODE_LABEL: &str = "test.ppojob.dev/namespace";

impl Namespace<'_> {
    /// Adds `count` nodes with `gpus` GPUs each (`nvidia.com/gpu`) and waits until they are ready; their names.
    ///
    /// # Errors
    /// When kwok does not make them ready in time.
    pub async fn gpu_nodes(&self, count: usize, gpus: u32) -> Result<Vec<String>> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let before = self.nodes().await?.len();
        let names: Vec<String> = (before..before + count)
            .map(|index| format!("{}-node-{index}", self.name))
            .collect();
        for name in &names {
            nodes
                .create(&PostParams::default(), &gpu_node(name, &self.name, gpus)?)
                .await?;
        }
        let what = format!("nodes {names:?} to be ready");
        let ready = wait_for(&what, PATIENCE, async || {
            for node in self.nodes().await? {
                if !is_ready(&node) {
                    bail!(
                        "node {} has conditions {:?}",
                        node.name_any(),
                        node.status.and_then(|status| status.conditions)
                    );
                }
            }
            Ok(())
        });
        if let Err(late) = ready.await {
            self.cluster.check().await?;
            return Err(late.context(self.cluster.log_tail(Component::Kwok)));
        }
        Ok(names)
    }

    /// The nodes of this namespace.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn nodes(&self) -> Result<Vec<Node>> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let own = ListParams::default().labels(&format!("{NODE_LABEL}={}", self.name));
        Ok(nodes.list(&own).await?.items)
    }
}

fn gpu_node(name: &str, namespace: &str, gpus: u32) -> Result<Node> {
    let capacity = json!({"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "110",
        "nvidia.com/gpu": gpus.to_string()});
    Ok(serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "labels": {NODE_LABEL: namespace, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64"},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "status": {"capacity": capacity, "allocatable": capacity},
    }))?)
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
