//! kwok's fake kubelets: nodes and pods that exist on paper.

use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;

use crate::component::flags;

/// As whom kwok speaks to the API server.
pub(crate) const USER: &str = "kwok";

/// Its kubeconfig, in the control plane's folder.
pub(crate) const KUBECONFIG: &str = "kwok.kubeconfig";

/// kwok's arguments.
pub(crate) fn argv() -> Vec<String> {
    let stages = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster/stages.yaml");
    let mut argv = flags(&[
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        // Without leases the fake nodes would be NotReady after the grace period.
        "--node-lease-duration-seconds=40",
    ]);
    argv.push(format!("--kubeconfig={KUBECONFIG}"));
    argv.push(format!("--config={}", stages.display()));
    argv
}

/// Refuses kwok the deletion of pods that nobody has asked to end. It deletes by name, often twice; where a real kubelet
/// names the uid, its second deletion would hit the pod that has taken the place of the first.
pub(crate) async fn spare_successors(client: &Client) -> Result<()> {
    let name = "fake-kubelets-spare-successors";
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"]}]},
            "matchConditions": [{"name": "fake-kubelet", "expression": format!("request.userInfo.username == '{USER}'")}],
            "validations": [{
                "expression": "has(oldObject.metadata.deletionTimestamp)",
                "message": "this pod is not the one that was to be deleted"}],
        },
    }))?;
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }))?;
    let refused = "the API server refuses the policy for kwok";
    let create = PostParams::default();
    Api::all(client.clone())
        .create(&create, &policy)
        .await
        .context(refused)?;
    Api::all(client.clone())
        .create(&create, &binding)
        .await
        .context(refused)?;
    Ok(())
}
