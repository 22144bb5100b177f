//! What the processes of a node read.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

use super::{NODE, PAUSE};
use crate::credentials::write as write_file;
use crate::supervisor::Enclosure;

/// Folders of volumes, below the cluster's.
pub(super) const VOLUMES: &str = "volumes";
/// Their definitions.
pub(super) const STORAGE: &str = "storage.yaml";
/// Where containerd is reached, below the cluster's folder.
pub(super) const CONTAINERD_SOCKET: &str = "containerd.sock";

/// Volumes that claims can be bound to.
const COUNT: usize = 24;

/// Writes them all.
pub(super) fn write(folder: &Path, enclosure: &Enclosure, cni_plugins: &Path) -> Result<()> {
    for below in ["cni", "kubelet"] {
        make(&folder.join(below))?;
    }
    write_file(&folder.join("containerd.toml"), &containerd(folder, cni_plugins))?;
    write_file(&folder.join("cni/10-kube.conflist"), &cni(folder).to_string())?;
    write_file(&folder.join("kubelet.yaml"), &kubelet(folder, enclosure).to_string())?;
    write_file(&folder.join("Corefile"), &corefile(enclosure))?;
    for index in 0..COUNT {
        make(&folder.join(VOLUMES).join(index.to_string()))?;
    }
    write_file(&folder.join(STORAGE), &storage(folder)?)
}

fn make(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))
}

/// `restrict_oom_score_adj`: without CAP_SYS_RESOURCE, as in many virtual machines, no sandbox starts otherwise.
fn containerd(folder: &Path, cni_plugins: &Path) -> String {
    let (folder, plugins) = (folder.display(), cni_plugins.display());
    format!(
        r#"version = 3
root = "{folder}/containerd"
state = "{folder}/containerd-state"
disabled_plugins = ["io.containerd.grpc.v1.tracing", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "{folder}/{CONTAINERD_SOCKET}"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{plugins}"]
  conf_dir = "{folder}/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = false
"#
    )
}

/// Pods on one bridge, with no way out of the enclosure.
fn cni(folder: &Path) -> serde_json::Value {
    json!({"cniVersion": "1.0.0", "name": "kube", "plugins": [
        {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true, "ipam": {
            "type": "host-local", "dataDir": folder.join("addresses"),
            "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
        {"type": "loopback"},
    ]})
}

fn kubelet(folder: &Path, enclosure: &Enclosure) -> serde_json::Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": format!("unix://{}/{CONTAINERD_SOCKET}", folder.display()),
        "cgroupRoot": enclosure.cgroup,
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": false,
        "failSwapOn": false,
        "podLogsDir": folder.join("pod-logs"),
        "volumePluginDir": folder.join("volume-plugins"),
        "clusterDNS": [enclosure.address],
        "clusterDomain": "cluster.local",
        "resolvConf": "/dev/null",
        // Nobody but this machine reaches it.
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        // The disk is this machine's: what else lies on it must evict no pod and delete no image.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        // Well within the grace period that the controller manager gives a node here.
        "nodeLeaseDurationSeconds": 12,
    })
}

/// Names of Services and pods; all others do not exist.
fn corefile(enclosure: &Enclosure) -> String {
    format!(
        ".:53 {{\n  bind {}\n  kubernetes cluster.local {{\n    kubeconfig kubeconfig test\n  }}\n  errors\n}}\n",
        enclosure.address
    )
}

/// A default StorageClass and local volumes of this node, which claims are bound to when a pod asks for them.
fn storage(folder: &Path) -> Result<String> {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
    });
    let volume = |index: usize| {
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("volume-{index}")},
            "spec": {
                "capacity": {"storage": "10Gi"}, "storageClassName": "local",
                "accessModes": ["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "local": {"path": folder.join(VOLUMES).join(index.to_string())},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}]}]}},
            },
        })
    };
    let objects = std::iter::once(class).chain((0..COUNT).map(volume));
    let documents: Vec<String> = objects
        .map(|object| serde_yaml::to_string(&object))
        .collect::<Result<_, _>>()?;
    Ok(documents.join("---\n"))
}
