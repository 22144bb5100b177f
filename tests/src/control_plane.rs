//! Starts a control plane and hands out what tests need of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;

use crate::component::{Addresses, write_configuration};
use crate::ports::free_ports;
use crate::supervisor::Supervisor;
use crate::{Component, Finished, Options, PATIENCE, Programs, credentials, install_crd, run, wait_for};

/// Names a cluster to use instead of one of our own.
const GIVEN: &str = "PPO_TEST_KUBECONFIG";

/// Times a control plane is started anew when another process has taken one of its ports.
const ATTEMPTS: u32 = 3;

/// How long a component may take to end by itself: an API server whose watches stay open would take a minute.
const STOP: Duration = Duration::from_secs(2);

/// Lines of a log that an error shows.
const TAIL: usize = 25;

/// A running Kubernetes. Its processes end when this is dropped or the test process ends, however that happens.
#[derive(Debug)]
pub struct ControlPlane {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) programs: Programs,
    pub(crate) own: Option<Own>,
}

/// What only a cluster of our own has.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) folder: PathBuf,
    addresses: Addresses,
    options: Options,
    supervisor: Arc<Supervisor>,
}

impl ControlPlane {
    /// Starts a control plane that holds our CRD, or takes the cluster that `PPO_TEST_KUBECONFIG` names.
    ///
    /// # Errors
    /// When a component does not come up: its name, the reason and the end of its log.
    pub async fn start(options: Options) -> Result<Self> {
        let programs = spawn_blocking(|| Programs::of(&["etcd", "kubernetes", "kwok", "helm"])).await??;
        if let Some(given) = std::env::var_os(GIVEN) {
            return Self::given(given.into(), programs, &options).await;
        }
        let mut attempt = 1;
        loop {
            match Self::start_once(programs.clone(), options.clone()).await {
                Err(error) if attempt < ATTEMPTS && format!("{error:#}").contains("address already in use") => {
                    attempt += 1
                }
                done => return done,
            }
        }
    }

    /// The control plane that the tests of this process share; started by the first that asks.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn shared() -> Result<&'static Self> {
        static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
        SHARED.get_or_try_init(|| Self::start(Options::default())).await
    }

    async fn given(kubeconfig: PathBuf, programs: Programs, options: &Options) -> Result<Self> {
        let cluster = Self {
            kubeconfig,
            programs,
            own: None,
        };
        cluster.install_crds(options).await?;
        Ok(cluster)
    }

    async fn start_once(programs: Programs, options: Options) -> Result<Self> {
        let [etcd, etcd_peer, api_server] = free_ports()?;
        let folder = tempfile::Builder::new().prefix("ppo-cluster-").tempdir()?;
        // The supervisor deletes the folder: it outlives us.
        let supervisor = Arc::new(Supervisor::start(folder.path())?);
        let folder = folder.keep();
        let cluster = Self {
            kubeconfig: folder.join("kubeconfig"),
            programs,
            own: Some(Own {
                addresses: Addresses {
                    etcd,
                    etcd_peer,
                    api_server,
                },
                folder,
                options: options.clone(),
                supervisor,
            }),
        };
        cluster.write_files()?;
        cluster.launch(Component::Etcd).await?;
        cluster.launch(Component::ApiServer).await?;
        cluster.wait_until_serving().await?;
        cluster.install_crds(&options).await?;
        for component in [Component::ControllerManager, Component::Scheduler, Component::Kwok] {
            cluster.launch(component).await?;
        }
        cluster.wait_for_service_account("default").await?;
        cluster.check().await?;
        Ok(cluster)
    }

    fn write_files(&self) -> Result<()> {
        let own = self.own()?;
        write_configuration(&own.folder)?;
        credentials::write_signing_key(&own.folder)?;
        let token = credentials::write_admin_token(&own.folder.join("tokens.csv"))?;
        let authority = own.folder.join("certificates/apiserver.crt");
        let config = credentials::kubeconfig(own.addresses.api_server, &authority, &token)?;
        credentials::write(&self.kubeconfig, &serde_yaml::to_string(&config)?)
    }

    async fn wait_until_serving(&self) -> Result<()> {
        let ready = wait_for("the API server to be ready", PATIENCE, async || {
            let answer = self.get_raw("/readyz").await;
            // An API server that has ended never answers: give up at once.
            if let Err(ended) = self.check().await {
                return Ok(Err(ended));
            }
            answer.map(Ok)
        });
        match ready.await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(ended)) => Err(ended),
            Err(late) => Err(late.context(self.log_tail(Component::ApiServer))),
        }
    }

    async fn get_raw(&self, path: &str) -> Result<String> {
        let request = http::Request::get(path).body(Vec::new())?;
        Ok(self.client().await?.request_text(request).await?)
    }

    async fn install_crds(&self, options: &Options) -> Result<()> {
        let client = self.client().await?;
        install_crd(&client, &ppo_crds::crd()?).await?;
        for crd in &options.crds {
            install_crd(&client, crd).await?;
        }
        Ok(())
    }

    /// Waits until the controller manager has made the `default` service account of a namespace: pods need it.
    pub(crate) async fn wait_for_service_account(&self, namespace: &str) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, namespace);
        let what = format!("the controller manager to make the default service account of {namespace}");
        match wait_for(&what, PATIENCE, async || Ok(accounts.get("default").await?)).await {
            Ok(_) => Ok(()),
            Err(late) => {
                self.check().await?;
                Err(late.context(self.log_tail(Component::ControllerManager)))
            }
        }
    }

    /// A client with all rights. It belongs to the calling test's runtime: make one per test.
    ///
    /// # Errors
    /// When the kubeconfig cannot be read.
    pub async fn client(&self) -> Result<Client> {
        self.client_of(&self.kubeconfig).await
    }

    /// A client for a kubeconfig of this cluster, such as that of a service account.
    ///
    /// # Errors
    /// When the kubeconfig cannot be read.
    pub async fn client_of(&self, kubeconfig: &Path) -> Result<Client> {
        let read = Kubeconfig::read_from(kubeconfig);
        let read = read.with_context(|| format!("{} is no kubeconfig", kubeconfig.display()))?;
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }

    /// The kubeconfig with all rights.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The path of `kubectl`, `helm` or another of the pinned programs.
    ///
    /// # Errors
    /// When there is no such program.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        self.programs.path(name)
    }

    /// Runs kubectl with all rights.
    ///
    /// # Errors
    /// When it does not end within a minute.
    pub async fn kubectl(&self, args: &[&str]) -> Result<Finished> {
        run(&self.program("kubectl")?, args, &self.environment()).await
    }

    /// Runs Helm with all rights.
    ///
    /// # Errors
    /// When it does not end within a minute.
    pub async fn helm(&self, args: &[&str]) -> Result<Finished> {
        run(&self.program("helm")?, args, &self.environment()).await
    }

    fn environment(&self) -> BTreeMap<String, String> {
        let kubeconfig = self.kubeconfig.display().to_string();
        BTreeMap::from([("KUBECONFIG".to_owned(), kubeconfig)])
    }

    /// Stops a component and waits for its end; [`launch`](Self::launch) starts it again on the same port.
    ///
    /// # Errors
    /// When it does not run, or the cluster is a given one.
    pub async fn stop(&self, component: Component) -> Result<()> {
        let supervisor = Arc::clone(&self.own()?.supervisor);
        spawn_blocking(move || supervisor.stop(component.name(), STOP)).await?
    }

    /// Starts a component that was stopped.
    ///
    /// # Errors
    /// When its program does not start, or the cluster is a given one.
    pub async fn launch(&self, component: Component) -> Result<()> {
        let own = self.own()?;
        let argv = component.argv(&self.programs, &own.options, &own.addresses)?;
        self.spawn(component.name(), argv, BTreeMap::new()).await
    }

    /// Starts another process of the cluster, such as a gang scheduler: it ends when the cluster does. Its output goes to
    /// `<name>.log` in [`folder`](Self::folder).
    ///
    /// # Errors
    /// When it does not start, or the cluster is a given one.
    pub async fn spawn(&self, name: &str, argv: Vec<String>, env: BTreeMap<String, String>) -> Result<()> {
        let supervisor = Arc::clone(&self.own()?.supervisor);
        let name = name.to_owned();
        spawn_blocking(move || supervisor.spawn(&name, &argv, &env)).await?
    }

    /// The folder in which the processes of the cluster run and log.
    ///
    /// # Errors
    /// When the cluster is a given one.
    pub fn folder(&self) -> Result<&Path> {
        Ok(&self.own()?.folder)
    }

    /// Nothing when every component runs.
    ///
    /// # Errors
    /// Names a component that has ended, with the end of its log.
    pub async fn check(&self) -> Result<()> {
        let Some(own) = &self.own else { return Ok(()) };
        for component in [
            Component::Etcd,
            Component::ApiServer,
            Component::ControllerManager,
            Component::Scheduler,
            Component::Kwok,
        ] {
            let supervisor = Arc::clone(&own.supervisor);
            let code = spawn_blocking(move || supervisor.exit_code(component.name())).await?;
            // An error: it was not started yet, or a test stopped it.
            if let Ok(Some(code)) = code {
                bail!(
                    "{} has ended with code {code}\n{}",
                    component.name(),
                    self.log_tail(component)
                );
            }
        }
        Ok(())
    }

    /// The last lines of a component's log.
    pub fn log_tail(&self, component: Component) -> String {
        let Some(own) = &self.own else {
            return format!("{} is not ours: no log", component.name());
        };
        let path = own.folder.join(format!("{}.log", component.name()));
        match std::fs::read(&path) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                let lines: Vec<&str> = text.lines().collect();
                let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n");
                format!("the end of the log of {}:\n{tail}", component.name())
            }
            Err(error) => format!("{} has no log: {error}", component.name()),
        }
    }

    pub(crate) fn own(&self) -> Result<&Own> {
        let own = self.own.as_ref();
        own.ok_or_else(|| anyhow!("this needs a control plane of our own: unset {GIVEN}"))
    }
}
