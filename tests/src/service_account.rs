//! Clients with the rights of a service account, as a pod of it would have.

use std::path::PathBuf;

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use kube::config::Kubeconfig;
use serde_json::json;

use crate::Namespace;
use crate::credentials::write;

/// Longer than any test runs.
const SECONDS: i64 = 3600;

impl Namespace<'_> {
    /// A kubeconfig with a token of a service account of this namespace, whose rights are what RBAC gives it. It lives as
    /// long as the namespace; [`ControlPlane::client_of`](crate::ControlPlane::client_of) makes a client of it.
    ///
    /// # Errors
    /// When there is no such service account.
    pub async fn service_account_kubeconfig(&self, name: &str) -> Result<PathBuf> {
        let accounts: Api<ServiceAccount> = self.api();
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(SECONDS),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await;
        let answer = answer.with_context(|| format!("no token for service account {}/{name}", self.name))?;
        let token = answer.status.and_then(|status| status.token);
        let token = token.context("the API server answered without a token")?;
        let path = self.scratch.path().join(format!("{name}.kubeconfig"));
        write(&path, &self.kubeconfig_with(&token)?)?;
        Ok(path)
    }

    /// The administrator's kubeconfig with another token in it.
    fn kubeconfig_with(&self, token: &str) -> Result<String> {
        let mut config = Kubeconfig::read_from(self.cluster.kubeconfig())?;
        for user in &mut config.auth_infos {
            user.auth_info = Some(serde_json::from_value(json!({"token": token}))?);
        }
        for context in config
            .contexts
            .iter_mut()
            .filter_map(|context| context.context.as_mut())
        {
            context.namespace = Some(self.name.clone());
        }
        Ok(serde_yaml::to_string(&config)?)
    }
}
