//! From kubeconfig and flags to a client.

use std::error::Error as _;
use std::io::ErrorKind;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use kube::api::{ApiResource, DynamicObject};
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
        let client = Client::try_from(config).with_context(|| {
            format!("what this context says of {url} cannot be used (credentials, certificates or proxy)")
        })?;
        Ok(Self { client, namespace, url })
    }

    /// To an API server of a test's own, namespace `n`.
    #[cfg(test)]
    pub async fn served(router: axum::Router) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self {
            client: Client::try_from(Config::new(url.parse().unwrap())).unwrap(),
            namespace: "n".into(),
            url,
        }
    }

    /// The jobs of the namespace as they are: one that cannot be decoded can still be changed.
    pub fn jobs(&self) -> Api<DynamicObject> {
        let resource = ApiResource::erase::<PpoJob>(&());
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
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

/// Of the two ways to a cluster the kubeconfig is the one that a person means: the files of a pod's service account are missing elsewhere.
fn no_cluster(error: InferConfigError) -> anyhow::Error {
    let kubeconfig = error
        .source()
        .and_then(|source| source.downcast_ref::<KubeconfigError>());
    anyhow!("{}", without_kubeconfig(kubeconfig))
}

fn without_kubeconfig(error: Option<&KubeconfigError>) -> String {
    let why = match error {
        Some(KubeconfigError::ReadConfig(cause, path)) if cause.kind() == ErrorKind::NotFound => {
            format!("{} does not exist", path.display())
        }
        Some(other) => other.to_string(),
        None => "there is no kubeconfig".into(),
    };
    format!("no cluster is configured: {why}; set KUBECONFIG, or give --kubeconfig FILE")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_that_does_not_exist_is_named_once_and_with_what_helps() {
        let missing = KubeconfigError::ReadConfig(ErrorKind::NotFound.into(), "/home/me/.kube/config".into());
        assert_eq!(
            without_kubeconfig(Some(&missing)),
            "no cluster is configured: /home/me/.kube/config does not exist; set KUBECONFIG, or give --kubeconfig FILE"
        );
        let without_context = without_kubeconfig(Some(&KubeconfigError::CurrentContextNotSet));
        assert!(
            without_context.contains("failed to determine current context; set KUBECONFIG"),
            "{without_context}"
        );
    }
}
