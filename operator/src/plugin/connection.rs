//! From kubeconfig and flags to a client.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use kube::api::{ApiResource, DynamicObject};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Config};
use ppo_crds::PpoJob;

use super::cli::ConnectionArgs;
use super::{kubeconfig, proxy};

/// Longest wait for a connection, unless told otherwise.
const CONNECT: Duration = Duration::from_secs(10);
/// Longest wait for an answer, unless told otherwise.
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
    /// Longest wait for an answer, and for the begin of one that goes on.
    pub answer: Duration,
}

impl Connection {
    /// Connects, with a deadline on every answer.
    pub async fn open(args: &ConnectionArgs) -> Result<Self> {
        Self::with(args, false).await
    }

    /// Connects for answers that go on as long as their reader likes.
    pub async fn open_for_streaming(args: &ConnectionArgs) -> Result<Self> {
        Self::with(args, true).await
    }

    async fn with(args: &ConnectionArgs, is_streaming: bool) -> Result<Self> {
        let mut config = read_config(args).await?;
        act_as(&mut config.auth_info, args)?;
        let answer = args.request_timeout.unwrap_or(ANSWER);
        config.connect_timeout = Some(args.request_timeout.unwrap_or(CONNECT));
        config.read_timeout = (!is_streaming).then_some(answer);
        // Else the time in which a connection has nothing to do counts, as between two looks at a job that is waited for.
        config.reset_reader_on_write = true;
        let namespace = namespace(args, &config);
        let url = config.cluster_url.to_string();
        let client = Client::try_from(config).with_context(|| {
            format!("what this context says of {url} cannot be used (credentials, certificates or proxy)")
        })?;
        Ok(Self {
            client,
            namespace,
            url,
            answer,
        })
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
            answer: ANSWER,
        }
    }

    /// The jobs of the namespace as they are: one that cannot be decoded can still be changed.
    pub fn jobs(&self) -> Api<DynamicObject> {
        let resource = ApiResource::erase::<PpoJob>(&());
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    /// The same of all namespaces.
    pub fn all_jobs(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &ApiResource::erase::<PpoJob>(&()))
    }
}

/// By flag, else by context. An empty one is none, as for kubectl: `-n "$TEAM"` where TEAM is not set.
fn namespace(args: &ConnectionArgs, config: &Config) -> String {
    let named = [args.namespace.as_deref(), Some(config.default_namespace.as_str())];
    let mut named = named.into_iter().flatten().filter(|name| !name.is_empty());
    named.next().unwrap_or("default").into()
}

async fn read_config(args: &ConnectionArgs) -> Result<Config> {
    let chosen = [&args.context, &args.cluster, &args.user];
    if args.kubeconfig.is_none() && chosen.into_iter().all(Option::is_none) {
        return of_environment().await;
    }
    of_kubeconfig(kubeconfig::read(args)?, args).await
}

/// Of the two ways to a cluster the kubeconfig is the one that a person means: the files of a pod's service account are missing elsewhere.
async fn of_environment() -> Result<Config> {
    let read = match kubeconfig::of_environment() {
        Ok(kubeconfig) => configured(kubeconfig, &KubeConfigOptions::default()).await,
        Err(error) => Err(error),
    };
    read.or_else(|error| Config::incluster().map_err(|_| kubeconfig::no_cluster(&error)))
}

async fn of_kubeconfig(kubeconfig: Kubeconfig, args: &ConnectionArgs) -> Result<Config> {
    // kube takes a user that is not there for nobody in particular; kubectl refuses it.
    if let Some(user) = &args.user
        && !kubeconfig.auth_infos.iter().any(|known| known.name == *user)
    {
        bail!("the kubeconfig has no user {user}; `kubectl config get-users` lists those there are");
    }
    let options = KubeConfigOptions {
        context: args.context.clone(),
        cluster: args.cluster.clone(),
        user: args.user.clone(),
    };
    let config = configured(kubeconfig, &options).await;
    config.map_err(|error| wrong_context(args, error))
}

async fn configured(kubeconfig: Kubeconfig, options: &KubeConfigOptions) -> Result<Config, KubeconfigError> {
    let given = proxy::given(&kubeconfig, options);
    let mut config = Config::from_custom_kubeconfig(kubeconfig, options).await?;
    let proxy = proxy::before(&config.cluster_url, given, |name| std::env::var(name).ok());
    config.proxy_url = proxy.map_err(KubeconfigError::ParseProxyUrl)?;
    Ok(config)
}

/// Whom the API server is asked to take us for. Flags win over the kubeconfig, each for itself, as kubectl has it.
fn act_as(who: &mut AuthInfo, args: &ConnectionArgs) -> Result<()> {
    who.impersonate = args.as_user.clone().or(who.impersonate.take());
    who.impersonate_uid = args.as_uid.clone().or(who.impersonate_uid.take());
    if !args.as_group.is_empty() {
        who.impersonate_groups = Some(args.as_group.clone());
    }
    let has_groups = who.impersonate_groups.as_ref().is_some_and(|groups| !groups.is_empty());
    if who.impersonate.is_none() && (who.impersonate_uid.is_some() || has_groups) {
        bail!("--as-group and --as-uid are of a user: give --as USER too");
    }
    Ok(())
}

fn wrong_context(args: &ConnectionArgs, error: KubeconfigError) -> anyhow::Error {
    if let Some(misread) = proxy::misread(&error) {
        return misread;
    }
    if let (Some(cluster), KubeconfigError::LoadClusterOfContext(_)) = (&args.cluster, &error) {
        return anyhow!("the kubeconfig has no cluster {cluster}; `kubectl config get-clusters` lists those there are");
    }
    let context = args.context.as_deref().unwrap_or("the current one");
    anyhow::Error::new(error).context(format!(
        "context {context} cannot be used; `kubectl config get-contexts` lists those there are"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBECONFIG: &str = "{apiVersion: v1, kind: Config, current-context: a, \
        clusters: [{name: one, cluster: {server: 'https://one'}}, {name: two, cluster: {server: 'https://two'}}], \
        users: [{name: me, user: {username: me, as: alice, as-groups: [staff]}}, {name: you, user: {username: you}}], \
        contexts: [{name: a, context: {cluster: one, user: me, namespace: ''}}]}";

    async fn config(args: &ConnectionArgs) -> Result<Config> {
        let mut config = of_kubeconfig(Kubeconfig::from_yaml(KUBECONFIG).unwrap(), args).await?;
        act_as(&mut config.auth_info, args)?;
        Ok(config)
    }

    fn given(text: &str) -> Option<String> {
        Some(text.into())
    }

    #[tokio::test]
    async fn cluster_and_user_are_those_of_the_flags_and_must_be_there() {
        let mut args = ConnectionArgs {
            cluster: given("two"),
            user: given("you"),
            ..ConnectionArgs::default()
        };
        let chosen = config(&args).await.unwrap();
        assert_eq!(chosen.cluster_url.host(), Some("two"));
        assert_eq!(chosen.auth_info.username.as_deref(), Some("you"));
        args.cluster = given("three");
        let error = config(&args).await.unwrap_err().to_string();
        assert!(
            error.contains("no cluster three") && error.contains("get-clusters"),
            "{error}"
        );
        args.user = given("nobody");
        let error = config(&args).await.unwrap_err().to_string();
        assert!(
            error.contains("no user nobody") && error.contains("get-users"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn flags_of_impersonation_win_each_over_its_own_in_the_kubeconfig() {
        let mut args = ConnectionArgs {
            as_user: given("eve"),
            ..ConnectionArgs::default()
        };
        let known = config(&args).await.unwrap().auth_info;
        assert_eq!(known.impersonate.as_deref(), Some("eve"));
        assert_eq!(known.impersonate_groups, Some(vec!["staff".to_string()]));
        args = ConnectionArgs {
            as_group: vec!["ops".into()],
            ..ConnectionArgs::default()
        };
        let known = config(&args).await.unwrap().auth_info;
        assert_eq!(known.impersonate.as_deref(), Some("alice"));
        assert_eq!(known.impersonate_groups, Some(vec!["ops".to_string()]));
        args.user = given("you");
        let error = config(&args).await.unwrap_err().to_string();
        assert!(error.contains("give --as USER"), "{error}");
    }

    #[tokio::test]
    async fn an_empty_namespace_is_none() {
        let mut args = ConnectionArgs {
            namespace: given(""),
            ..ConnectionArgs::default()
        };
        let mut config = config(&args).await.unwrap();
        assert_eq!(namespace(&args, &config), "default");
        config.default_namespace = "team".into();
        assert_eq!(namespace(&args, &config), "team");
        args.namespace = given("other");
        assert_eq!(namespace(&args, &config), "other");
    }
}
