//! A namespace for one test: its objects, nodes and service accounts meet no other test's.

use std::fmt::Debug;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace as CoreNamespace, Pod};
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use rand::Rng;
use serde::de::DeserializeOwned;
use serde_json::json;
use tempfile::TempDir;

use crate::ControlPlane;
use crate::nodes::NODE_LABEL;

/// A namespace with a name of its own, deleted with its nodes when it is dropped.
pub struct Namespace<'a> {
    /// The cluster it is in.
    pub cluster: &'a ControlPlane,
    /// Its name: what the test asked for and something random.
    pub name: String,
    /// A client with all rights, of the test's runtime.
    pub client: Client,
    /// For files that belong to it.
    pub(crate) scratch: TempDir,
}

impl ControlPlane {
    /// A fresh namespace in which pods can be created. On our own control planes its pods go only to nodes made by
    /// [`Namespace::gpu_nodes`]; where there is a real node, to that.
    ///
    /// # Errors
    /// When the cluster does not do it in time.
    pub async fn namespace(&self, prefix: &str) -> Result<Namespace<'_>> {
        let client = self.client().await?;
        let name = format!("{prefix}-{:08x}", rand::rng().random::<u32>());
        let annotations = match &self.own {
            Some(own) if own.enclosure.is_some() => json!({}),
            _ => json!({"scheduler.alpha.kubernetes.io/node-selector": format!("{NODE_LABEL}={name}")}),
        };
        let namespace: CoreNamespace =
            serde_json::from_value(json!({"metadata": {"name": name, "annotations": annotations}}))?;
        let namespaces: Api<CoreNamespace> = Api::all(client.clone());
        let created = namespaces.create(&PostParams::default(), &namespace).await;
        created.with_context(|| format!("namespace {name} cannot be made"))?;
        let namespace = Namespace {
            cluster: self,
            name,
            client,
            scratch: tempfile::tempdir()?,
        };
        self.wait_for_service_account(&namespace.name).await?;
        Ok(namespace)
    }
}

impl Namespace<'_> {
    /// The objects of a type in this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// The pods of this namespace.
    pub fn pods(&self) -> Api<Pod> {
        self.api()
    }

    /// Runs kubectl in this namespace, with all rights.
    ///
    /// # Errors
    /// As [`ControlPlane::kubectl`].
    pub async fn kubectl(&self, args: &[&str]) -> Result<crate::Finished> {
        let args = [&["--namespace", &self.name], args].concat();
        self.cluster.kubectl(&args).await
    }
}

impl Drop for Namespace<'_> {
    /// Asks for the deletion and does not wait for it.
    fn drop(&mut self) {
        if std::env::var_os("PPO_TEST_KEEP").is_some() {
            return;
        }
        let Ok(kubectl) = self.cluster.program("kubectl") else {
            return;
        };
        let selector = format!("{NODE_LABEL}={}", self.name);
        for what in [
            ["namespaces", self.name.as_str()].as_slice(),
            &["nodes", "-l", &selector],
        ] {
            let deleted = Command::new(&kubectl)
                .args(["delete", "--wait=false", "--ignore-not-found", "--request-timeout=10s"])
                .args(what)
                .env("KUBECONFIG", self.cluster.kubeconfig())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::inherit())
                .status();
            if let Err(error) = deleted {
                eprintln!("namespace {} is left behind: {error}", self.name);
            }
        }
    }
}
