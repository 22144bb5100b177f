//! From kubeconfig and flags to a client.

use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Config};
use ppo_crds::PpoJob;

use super::cli::ConnectionArgs;

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(30);

/// A client and the namespace that commands are about.
#[derive(Clone)]
pub struct Connection {
    /// Talks to the API server.
    pub client: Client,
    /// By flag, else by context.
    pub namespace: String,
    /// Address of the API server, for errors.
    pub url: String,
}

impl Connection {
    /// Connects, with a deadline on every answer.
    pub async fn open(args: &ConnectionArgs) -> Result<Self> {
        Self::with(args, Some(ANSWER)).await
    }

    /// Connects for answers that go on as long as their reader likes.
    pub async fn open_for_streaming(args: &ConnectionArgs) -> Result<Self> {
        Self::with(args, None).await
    }

    async fn with(args: &ConnectionArgs, answer: Option<Duration>) -> Result<Self> {
        let mut config = read_config(args).await?;
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = answer;
        let namespace = args
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        let url = config.cluster_url.to_string();
        let client = Client::try_from(config).with_context(|| format!("the credentials for {url} cannot be used"))?;
        Ok(Self { client, namespace, url })
    }

    /// The jobs of the namespace.
    pub fn jobs(&self) -> Api<PpoJob> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

async fn read_config(args: &ConnectionArgs) -> Result<Config> {
    let options = KubeConfigOptions {
        context: args.context.clone(),
        ..KubeConfigOptions::default()
    };
    if let Some(file) = &args.kubeconfig {
        let kubeconfig =
            Kubeconfig::read_from(file).with_context(|| format!("cannot use --kubeconfig {}", file.display()))?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        return config.map_err(|error| wrong_context(args, error));
    }
    if args.context.is_some() {
        return Config::from_kubeconfig(&options)
            .await
            .map_err(|error| wrong_context(args, error));
    }
    Config::infer().await.map_err(no_cluster)
}

fn wrong_context(args: &ConnectionArgs, error: KubeconfigError) -> anyhow::Error {
    let context = args.context.as_deref().unwrap_or("the current one");
    anyhow::Error::new(error).context(format!(
        "context {context} cannot be used; `kubectl config get-contexts` lists those there are"
    ))
}

fn no_cluster(error: InferConfigError) -> anyhow::Error {
    anyhow::Error::new(error).context("no cluster is configured: set KUBECONFIG, or give --kubeconfig FILE")
}
