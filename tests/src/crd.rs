//! Installs CustomResourceDefinitions.

use anyhow::{Context, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};

use crate::{PATIENCE, wait_for};

/// Applies a definition and waits until the API server serves it, and says so to whoever asks what it serves.
///
/// # Errors
/// When the API server refuses it or does not serve it in time, with the conditions that say why.
pub async fn install_crd(client: &Client, crd: &CustomResourceDefinition) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = crd.name_any();
    let apply = PatchParams::apply("ppo-tests").force();
    crds.patch(&name, &apply, &Patch::Apply(crd))
        .await
        .with_context(|| format!("the API server refuses the CustomResourceDefinition {name}"))?;
    wait_for(
        &format!("CustomResourceDefinition {name} to be served"),
        PATIENCE,
        async || {
            let status = crds.get(&name).await?.status.unwrap_or_default();
            let conditions = status.conditions.unwrap_or_default();
            if !conditions
                .iter()
                .any(|condition| condition.type_ == "Established" && condition.status == "True")
            {
                bail!("conditions {conditions:?}");
            }
            let spec = &crd.spec;
            let Some(version) = spec.versions.iter().find(|version| version.served) else {
                return Ok(());
            };
            let listed = client
                .list_api_group_resources(&format!("{}/{}", spec.group, version.name))
                .await?;
            if !listed.resources.iter().any(|resource| resource.kind == spec.names.kind) {
                bail!("{} of {} is not listed yet", spec.names.kind, listed.group_version);
            }
            Ok(())
        },
    )
    .await
}
