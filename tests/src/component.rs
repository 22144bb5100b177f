//! The components of a control plane and their command lines.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Result;
use serde_json::json;

use crate::credentials::write;
use crate::{Options, Programs, fake_kubelet};

/// A process of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// Where the API server keeps everything.
    Etcd,
    /// The only one that clients talk to.
    ApiServer,
    /// Garbage collection, service accounts, namespaces, nodes.
    ControllerManager,
    /// The default scheduler.
    Scheduler,
    /// Fake kubelets.
    Kwok,
}

/// Requests per second that controller manager and scheduler may make: their defaults would hide what is measured.
const CLIENT_QPS: u32 = 1000;

/// Where the components of one control plane find each other.
#[derive(Debug)]
pub(crate) struct Addresses {
    /// Where others reach the API server.
    pub(crate) host: Ipv4Addr,
    pub(crate) etcd: u16,
    pub(crate) etcd_peer: u16,
    pub(crate) api_server: u16,
}

impl Component {
    /// The program's name, which is also its log's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kwok => "kwok",
        }
    }

    /// Program and arguments. Relative paths are of the control plane's folder, in which it runs.
    pub(crate) fn argv(self, programs: &Programs, options: &Options, addresses: &Addresses) -> Result<Vec<String>> {
        let mut argv = vec![programs.path(self.name())?.display().to_string()];
        argv.extend(match self {
            Self::Etcd => etcd(addresses),
            Self::ApiServer => api_server(options, addresses),
            Self::ControllerManager => controller_manager(),
            Self::Scheduler => flags(&["--config=scheduler.yaml", "--secure-port=0"]),
            Self::Kwok => fake_kubelet::argv(),
        });
        let gated = [Self::ApiServer, Self::ControllerManager, Self::Scheduler].contains(&self);
        if gated && !options.feature_gates.is_empty() {
            argv.push(format!("--feature-gates={}", options.feature_gates.join(",")));
        }
        argv.extend(options.flags_of(self));
        Ok(argv)
    }
}

pub(crate) fn flags(list: &[&str]) -> Vec<String> {
    list.iter().map(|&flag| flag.to_owned()).collect()
}

fn etcd(Addresses { etcd, etcd_peer, .. }: &Addresses) -> Vec<String> {
    vec![
        "--data-dir=etcd".into(),
        // Nothing here survives a crash of the machine, and nothing must.
        "--unsafe-no-fsync".into(),
        format!("--listen-client-urls=http://127.0.0.1:{etcd}"),
        format!("--advertise-client-urls=http://127.0.0.1:{etcd}"),
        format!("--listen-peer-urls=http://127.0.0.1:{etcd_peer}"),
        format!("--initial-advertise-peer-urls=http://127.0.0.1:{etcd_peer}"),
        format!("--initial-cluster=default=http://127.0.0.1:{etcd_peer}"),
    ]
}

fn api_server(options: &Options, addresses: &Addresses) -> Vec<String> {
    let mut argv = flags(&[
        "--cert-dir=certificates",
        "--service-account-key-file=service-accounts.pub",
        "--service-account-signing-key-file=service-accounts.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--token-auth-file=tokens.csv",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--allow-privileged=true",
        // A namespace's pods go to its own nodes (nodes.rs), so that tests can share a control plane. The other plugin is the
        // one that asks for the right to set finalizers of an owner, which OpenShift turns on and operators forget.
        "--enable-admission-plugins=PodNodeSelector,OwnerReferencesPermissionEnforcement",
    ]);
    argv.push(format!("--advertise-address={}", addresses.host));
    if addresses.host.is_loopback() {
        argv.extend(flags(&["--bind-address=127.0.0.1", "--endpoint-reconciler-type=none"]));
    } else {
        // For pods, which reach it through the Service `kubernetes`; it reaches the kubelet by the node's address, not its name.
        argv.extend(flags(&[
            "--bind-address=0.0.0.0",
            "--kubelet-preferred-address-types=InternalIP",
        ]));
    }
    argv.push(format!("--etcd-servers=http://127.0.0.1:{}", addresses.etcd));
    argv.push(format!("--secure-port={}", addresses.api_server));
    if !options.runtime_config.is_empty() {
        argv.push(format!("--runtime-config={}", options.runtime_config.join(",")));
    }
    if options.audit {
        argv.extend(flags(&[
            "--audit-policy-file=audit-policy.yaml",
            "--audit-log-path=audit.log",
            "--audit-log-maxsize=100000",
        ]));
    }
    argv
}

fn controller_manager() -> Vec<String> {
    let mut argv = flags(&[
        "--kubeconfig=kubeconfig",
        "--service-account-private-key-file=service-accounts.key",
        "--root-ca-file=certificates/apiserver.crt",
        "--leader-elect=false",
        "--secure-port=0",
    ]);
    argv.push(format!("--kube-api-qps={CLIENT_QPS}"));
    argv.push(format!("--kube-api-burst={}", 2 * CLIENT_QPS));
    argv
}

/// Writes the files that the command lines name.
pub(crate) fn write_configuration(folder: &Path) -> Result<()> {
    let audit_policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata"}]});
    let scheduler = json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": false},
        "clientConnection": {"kubeconfig": "kubeconfig", "qps": CLIENT_QPS, "burst": 2 * CLIENT_QPS}});
    write(&folder.join("audit-policy.yaml"), &audit_policy.to_string())?;
    write(&folder.join("scheduler.yaml"), &scheduler.to_string())
}
