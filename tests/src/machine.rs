//! What a machine needs so that a real node can run on it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command::run_within;

/// Programs of a node that are not Go modules, with their Debian packages.
const PROGRAMS: [(&str, &str); 6] = [
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("runc", "runc"),
    ("nft", "nftables"),
    ("busybox", "busybox-static"),
];

/// Where root's programs are, should PATH not say.
const FOLDERS: [&str; 3] = ["/usr/sbin", "/sbin", "/bin"];

/// Where distributions put the CNI plugins.
const CNI_FOLDERS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// Their Debian package.
const CNI_PACKAGE: &str = "containernetworking-plugins";

/// A mirror may be slow.
const INSTALL: Duration = Duration::from_secs(300);

/// Where a program lies.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).chain(FOLDERS.map(PathBuf::from)).collect();
    let programs = folders.iter().map(|folder| folder.join(program));
    programs.into_iter().find(|path| path.is_file())
}

/// The folder of the CNI plugins.
pub(crate) fn cni_plugins() -> Option<PathBuf> {
    let folders = CNI_FOLDERS.map(PathBuf::from);
    folders.into_iter().find(|folder| folder.join("bridge").is_file())
}

/// What is missing: programs and their packages.
fn missing() -> Vec<(&'static str, &'static str)> {
    let programs = PROGRAMS.into_iter().filter(|(program, _)| find(program).is_none());
    let plugins = cni_plugins().is_none().then_some(("the CNI plugins", CNI_PACKAGE));
    programs.chain(plugins).collect()
}

/// What keeps a real node from running on this machine, in one line; None when nothing does. Programs that are missing are
/// installed where `apt-get` can.
///
/// # Errors
/// When a program does not even start.
pub async fn lacking() -> Result<Option<String>> {
    let status = std::fs::read_to_string("/proc/self/status").context("/proc/self/status cannot be read")?;
    let root = status.lines().any(|line| line.starts_with("Uid:\t0\t"));
    if !root {
        return Ok(Some(
            "it needs root, for namespaces, mounts and cgroups of its own".into(),
        ));
    }
    if let Some(words) = install().await? {
        return Ok(Some(words));
    }
    let nothing = BTreeMap::new();
    let namespaces = ["--net", "--mount", "--pid", "--fork", "--mount-proc", "true"];
    let tried = run_within(Path::new("unshare"), &namespaces, &nothing, INSTALL).await?;
    if let Err(refused) = tried.success() {
        return Ok(Some(format!("this machine makes no namespaces: {refused:#}")));
    }
    let filesystems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let overlay = filesystems.lines().any(|line| line.ends_with("\toverlay"));
    let loaded = overlay || {
        let tried = run_within(Path::new("modprobe"), &["overlay"], &nothing, INSTALL).await;
        tried.is_ok_and(|done| done.code == Some(0))
    };
    Ok((!loaded).then(|| "the kernel has no overlay file system".into()))
}

/// Installs the programs that are missing; what is still missing then, in words.
async fn install() -> Result<Option<String>> {
    let mut packages: Vec<&str> = missing().into_iter().map(|(_, package)| package).collect();
    packages.dedup();
    if packages.is_empty() {
        return Ok(None);
    }
    if find("apt-get").is_some() {
        eprintln!("a real node needs {}: apt-get installs it", packages.join(", "));
        let quietly = BTreeMap::from([("DEBIAN_FRONTEND".to_owned(), "noninteractive".to_owned())]);
        let install = [&["install", "--yes", "--no-install-recommends"], packages.as_slice()].concat();
        for words in [["update"].as_slice(), install.as_slice()] {
            let done = run_within(Path::new("apt-get"), words, &quietly, INSTALL).await?;
            if let Err(error) = done.success() {
                return Ok(Some(format!(
                    "{} could not be installed: {error:#}",
                    packages.join(", ")
                )));
            }
        }
    }
    let named = missing()
        .into_iter()
        .map(|(program, package)| format!("{program} (Debian: {package})"));
    let named: Vec<String> = named.collect();
    Ok((!named.is_empty()).then(|| format!("these programs are missing: {}", named.join(", "))))
}
