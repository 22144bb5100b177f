//! A real node in the enclosure of a control plane: containerd, kubelet, kube-proxy and CoreDNS, with volumes.

mod files;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::Api;

use crate::command::run_within;
use crate::component::flags;
use crate::machine::cni_plugins;
use crate::supervisor::Enclosure;
use crate::{Component, ControlPlane, Image, Options, PATIENCE, Programs, wait_for};

/// The node's name.
pub const NODE: &str = "node";

/// The image of a pod's sandbox.
const PAUSE: &str = "localhost/pause:1";

/// An image with libtorch is half a gigabyte, to be unpacked beside others.
const LOAD: Duration = Duration::from_secs(300);

/// Processes of a node, in the order in which they start.
const PROCESSES: [&str; 4] = ["containerd", "coredns", "kube-proxy", "kubelet"];

/// A Kubernetes of this machine whose pods are real. It ends when this is dropped or the process ends, however that happens.
#[derive(Debug)]
pub struct RealCluster {
    control_plane: ControlPlane,
    enclosure: Enclosure,
    programs: Programs,
    folder: PathBuf,
}

impl RealCluster {
    /// Starts a control plane and one node with volumes that claims find; the node has no images yet but a sandbox's.
    ///
    /// # Errors
    /// When a process does not come up: its name and the end of its log. [`lacking`](crate::lacking) says beforehand what
    /// this machine cannot do.
    pub async fn start() -> Result<Self> {
        Self::start_with(Options::default()).await
    }

    /// The same with options of one's own.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(options: Options) -> Result<Self> {
        let modules = ["node", "containerd", "coredns"];
        let programs = tokio::task::spawn_blocking(move || Programs::of(&modules)).await??;
        let control_plane = ControlPlane::start_own(Options {
            enclosed: true,
            // A node that is not heard of is found out in seconds.
            flags: vec![(
                Component::ControllerManager,
                "--node-monitor-grace-period=20s".to_owned(),
            )],
            ..options
        });
        let control_plane = control_plane.await?;
        let own = control_plane.own()?;
        let enclosure = own.enclosure.clone().context("the control plane is not enclosed")?;
        let folder = own.folder.clone();
        let cluster = Self {
            control_plane,
            enclosure,
            programs,
            folder,
        };
        cluster.start_node().await?;
        Ok(cluster)
    }

    /// The control plane: kubectl, Helm, clients.
    pub fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// Folders of the volumes that claims are bound to.
    pub fn volumes(&self) -> PathBuf {
        self.folder.join(files::VOLUMES)
    }

    /// The node's address, which this machine reaches.
    pub fn address(&self) -> std::net::Ipv4Addr {
        self.enclosure.address
    }

    async fn start_node(&self) -> Result<()> {
        let plugins = cni_plugins().context("the CNI plugins are missing")?;
        files::write(&self.folder, &self.enclosure, &plugins)?;
        self.launch("containerd").await?;
        wait_for("containerd to answer", PATIENCE, async || {
            self.check().await?;
            self.ctr(&["version"]).await?.success()
        })
        .await?;
        let pause = Image::of(PAUSE, &self.programs.path("pause")?, "/pause").with(&["--entrypoint", "/pause"]);
        self.load(&pause).await?;
        for process in &PROCESSES[1..] {
            self.launch(process).await?;
        }
        let file = self.folder.join(files::STORAGE).display().to_string();
        self.control_plane.kubectl(&["apply", "-f", &file]).await?.success()?;
        self.ready("True").await
    }

    /// Starts a process of the node, `containerd`, `coredns`, `kube-proxy` or `kubelet`, again on its old state.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn launch(&self, process: &str) -> Result<()> {
        let folder = self.folder.display();
        let address = self.enclosure.address;
        let mut argv = vec![self.programs.path(process)?.display().to_string()];
        argv.extend(match process {
            "containerd" => flags(&["--config=containerd.toml"]),
            "coredns" => flags(&["-conf", "Corefile"]),
            "kube-proxy" => {
                let mut argv = flags(&[
                    "--kubeconfig=kubeconfig",
                    "--proxy-mode=nftables",
                    "--cluster-cidr=10.244.0.0/24",
                ]);
                // These settings are the machine's, and cannot be written from a network namespace.
                argv.extend(flags(&[
                    "--conntrack-max-per-core=0",
                    "--conntrack-tcp-timeout-established=0",
                    "--conntrack-tcp-timeout-close-wait=0",
                ]));
                argv.push(format!("--hostname-override={NODE}"));
                argv
            }
            "kubelet" => vec![
                "--config=kubelet.yaml".into(),
                "--kubeconfig=kubeconfig".into(),
                format!("--root-dir={folder}/kubelet"),
                format!("--cert-dir={folder}/kubelet/pki"),
                format!("--hostname-override={NODE}"),
                format!("--node-ip={address}"),
            ],
            other => bail!("a node has no process {other:?}, but {PROCESSES:?}"),
        });
        self.control_plane.spawn(process, argv, BTreeMap::new()).await
    }

    /// Stops a process of the node; what containerd runs goes on.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn stop(&self, process: &str) -> Result<()> {
        self.control_plane.stop_process(process).await
    }

    /// Waits until the node's condition Ready has that status.
    ///
    /// # Errors
    /// When it does not in time, with the conditions and, of a process that has ended, the log.
    pub async fn ready(&self, status: &str) -> Result<()> {
        let nodes: Api<NodeObject> = Api::all(self.control_plane.client().await?);
        wait_for(
            &format!("the node's condition Ready to be {status}"),
            2 * PATIENCE,
            async || {
                let node = nodes.get(NODE).await?;
                let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
                let met = |known: &&_| is(known, status);
                match conditions.iter().find(met) {
                    Some(_) => Ok(()),
                    None => bail!("conditions {conditions:?}"),
                }
            },
        )
        .await
        .map_err(|late| late.context(self.control_plane.log_of("kubelet")))
    }

    /// Makes an image and puts it where the node's pods find it.
    ///
    /// # Errors
    /// When a file of it is missing, or containerd refuses it.
    pub async fn load(&self, image: &Image) -> Result<()> {
        let archive = image.write(&self.folder).await?;
        let file = archive.display().to_string();
        let loaded = self.ctr(&["images", "import", &file]).await?.success();
        std::fs::remove_file(&archive).with_context(|| format!("{file} cannot be removed"))?;
        loaded.map(drop)
    }

    /// Sends a signal to the first process of a pod's container: SIGKILL as the kernel does when memory is short, SIGSTOP for one that
    /// hangs.
    ///
    /// # Errors
    /// When there is no such container.
    pub async fn signal(&self, signal: &str, namespace: &str, pod: &str) -> Result<()> {
        let path = "-o=jsonpath={.status.containerStatuses[0].containerID}";
        let id = self
            .control_plane
            .kubectl(&["get", "pod", pod, "--namespace", namespace, path])
            .await?;
        let id = id.success()?;
        let id = id.trim().trim_start_matches("containerd://");
        self.ctr(&["tasks", "kill", "--signal", signal, id])
            .await?
            .success()
            .map(drop)
    }

    /// Program and arguments of containerd's client on this node.
    ///
    /// # Errors
    /// When it was not built.
    pub fn ctr_command(&self) -> Result<Vec<String>> {
        let socket = self.folder.join(files::CONTAINERD_SOCKET).display().to_string();
        let program = self.programs.path("ctr")?.display().to_string();
        Ok([&program, "--address", &socket, "--namespace", "k8s.io"]
            .map(str::to_owned)
            .into())
    }

    async fn ctr(&self, args: &[&str]) -> Result<crate::Finished> {
        let command = self.ctr_command()?;
        let words: Vec<&str> = command[1..]
            .iter()
            .map(String::as_str)
            .chain(args.iter().copied())
            .collect();
        run_within(Path::new(&command[0]), &words, &BTreeMap::new(), LOAD).await
    }

    /// Nothing when every process of the cluster runs.
    ///
    /// # Errors
    /// Names one that has ended, with the end of its log.
    pub async fn check(&self) -> Result<()> {
        self.control_plane.check().await?;
        for process in PROCESSES {
            self.control_plane.check_process(process).await?;
        }
        Ok(())
    }
}

fn is(condition: &k8s_openapi::api::core::v1::NodeCondition, status: &str) -> bool {
    condition.type_ == "Ready" && condition.status == status
}
