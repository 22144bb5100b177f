//! Starts a control plane and hands out what tests need of it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
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
use crate::supervisor::{Enclosure, Supervisor};
use crate::{Component, Finished, Options, PATIENCE, Programs, credentials, fake_kubelet, install_crd, run, wait_for};

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
    pub(crate) enclosure: Option<Enclosure>,
}

impl ControlPlane {
    /// Starts a control plane that holds our CRD, or takes the cluster that `PPO_TEST_KUBECONFIG` names.
    ///
    /// # Errors
    /// When a component does not come up: its name, the reason and the end of its log.
    pub async fn start(options: Options) -> Result<Self> {
        let programs = programs(&options).await?;
        if let Some(given) = std::env::var_os(GIVEN) {
            return Self::given(given.into(), programs, &options).await;
        }
        Self::start_with(programs, options).await
    }

    /// Starts one of our own, whatever cluster is given.
    pub(crate) async fn start_own(options: Options) -> Result<Self> {
        Self::start_with(programs(&options).await?, options).await
    }

    async fn start_with(programs: Programs, options: Options) -> Result<Self> {
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
        let (supervisor, enclosure) = if options.enclosed {
            let path = folder.path().to_owned();
            let (supervisor, enclosure) = spawn_blocking(move || Supervisor::enclosed(&path)).await??;
            (supervisor, Some(enclosure))
        } else {
            (Supervisor::start(folder.path())?, None)
        };
        // The supervisor deletes the folder: it outlives us.
        let folder = folder.keep();
        let cluster = Self {
            kubeconfig: folder.join("kubeconfig"),
            programs,
            own: Some(Own {
                addresses: Addresses {
                    host: enclosure.as_ref().map_or(Ipv4Addr::LOCALHOST, |made| made.address),
                    etcd,
                    etcd_peer,
                    api_server,
                },
                folder,
                options: options.clone(),
                supervisor: Arc::new(supervisor),
                enclosure,
            }),
        };
        cluster.write_files()?;
        cluster.launch(Component::Etcd).await?;
        cluster.launch(Component::ApiServer).await?;
        cluster.wait_until_serving().await?;
        cluster.install_crds(&options).await?;
        cluster.launch(Component::ControllerManager).await?;
        cluster.launch(Component::Scheduler).await?;
        if !options.enclosed {
            fake_kubelet::spare_successors(&cluster.client().await?).await?;
            cluster.launch(Component::Kwok).await?;
        }
        cluster.wait_for_service_account("default").await?;
        cluster.check().await?;
        Ok(cluster)
    }

    fn write_files(&self) -> Result<()> {
        let own = self.own()?;
        write_configuration(&own.folder)?;
        credentials::write_signing_key(&own.folder)?;
        let users = ["admin", fake_kubelet::USER];
        let tokens = credentials::write_tokens(&own.folder.join("tokens.csv"), users)?;
        let authority = own.folder.join("certificates/apiserver.crt");
        let files = [self.kubeconfig.clone(), own.folder.join(fake_kubelet::KUBECONFIG)];
        let server = SocketAddrV4::new(own.addresses.host, own.addresses.api_server);
        for (file, token) in files.iter().zip(tokens) {
            let config = credentials::kubeconfig(server, &authority, &token)?;
            credentials::write(file, &serde_yaml::to_string(&config)?)?;
        }
        Ok(())
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
        // To a real node our definition comes with the chart, as to a user's.
        if !options.enclosed {
            install_crd(&client, &ppo_crds::crd()?).await?;
        }
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
    /// When it does not end within two minutes.
    pub async fn kubectl(&self, args: &[&str]) -> Result<Finished> {
        run(&self.program("kubectl")?, args, &self.environment()).await
    }

    /// Runs Helm with all rights.
    ///
    /// # Errors
    /// When it does not end within two minutes.
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
        self.stop_process(component.name()).await
    }

    /// Stops a process that [`spawn`](Self::spawn) started.
    pub(crate) async fn stop_process(&self, name: &str) -> Result<()> {
        let supervisor = Arc::clone(&self.own()?.supervisor);
        let name = name.to_owned();
        spawn_blocking(move || supervisor.stop(&name, STOP)).await?
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
        for component in [
            Component::Etcd,
            Component::ApiServer,
            Component::ControllerManager,
            Component::Scheduler,
            Component::Kwok,
        ] {
            self.check_process(component.name()).await?;
        }
        Ok(())
    }

    /// An error when a process of that name was started and has ended by itself, with the end of its log.
    pub(crate) async fn check_process(&self, name: &str) -> Result<()> {
        let Some(own) = &self.own else { return Ok(()) };
        let supervisor = Arc::clone(&own.supervisor);
        let asked = name.to_owned();
        let code = spawn_blocking(move || supervisor.exit_code(&asked)).await?;
        // An error: it was not started yet, or a test stopped it.
        match code {
            Ok(Some(code)) => bail!("{name} has ended with code {code}\n{}", self.log_of(name)),
            Ok(None) | Err(_) => Ok(()),
        }
    }

    /// The last lines of a component's log.
    pub fn log_tail(&self, component: Component) -> String {
        self.log_of(component.name())
    }

    /// The last lines of a process' log.
    pub(crate) fn log_of(&self, name: &str) -> String {
        let Some(own) = &self.own else {
            return format!("{name} is not ours: no log");
        };
        let path = own.folder.join(format!("{name}.log"));
        match std::fs::read(&path) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                let lines: Vec<&str> = text.lines().collect();
                let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n");
                format!("the end of the log of {name}:\n{tail}")
            }
            Err(error) => format!("{name} has no log: {error}"),
        }
    }

    /// Where its processes listen for each other: an address of this machine's, or of the enclosure's.
    pub(crate) fn host(&self) -> Result<Ipv4Addr> {
        Ok(self.own()?.addresses.host)
    }

    pub(crate) fn options(&self) -> Result<&Options> {
        Ok(&self.own()?.options)
    }

    pub(crate) fn own(&self) -> Result<&Own> {
        let own = self.own.as_ref();
        own.ok_or_else(|| anyhow!("this needs a control plane of our own: unset {GIVEN}"))
    }
}

async fn programs(options: &Options) -> Result<Programs> {
    let kubernetes = options.kubernetes.module();
    spawn_blocking(move || Programs::of(&["etcd", kubernetes, "kwok", "helm"])).await?
}
