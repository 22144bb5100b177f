//! A real Kubernetes of this machine, with our images on its node, for as long as a command runs.
//!
//! `cargo build --workspace --bins && cargo run -p ppo-tests --example real_cluster -- bash` gives a shell in which kubectl, helm and `kubectl ppo` work on it;
//! `$CTR` is containerd's client. The binaries that go into the images are those beside this example.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use ppo_tests::{Image, RealCluster, lacking};
use tokio::process::Command;

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    let program = words.next().context("usage: real_cluster COMMAND [ARGUMENT]...")?;
    if let Some(lack) = lacking().await? {
        anyhow::bail!(
            "no Kubernetes of its own runs on this machine: {lack}\nSet KUBECONFIG to use a cluster of yours"
        );
    }
    let began = Instant::now();
    let cluster = RealCluster::start().await?;
    eprintln!(
        "Kubernetes answers and its node is ready after {:.0} s",
        began.elapsed().as_secs_f64()
    );
    let binaries = binaries()?;
    let began = Instant::now();
    for image in [Image::operator(&binaries), Image::worker(&binaries), Image::busybox()] {
        cluster.load(&image).await?;
    }
    eprintln!(
        "images of our binaries made and loaded in {:.0} s",
        began.elapsed().as_secs_f64()
    );
    let control_plane = cluster.control_plane();
    let mut folders = vec![binaries];
    for name in ["kubectl", "helm"] {
        folders.extend(control_plane.program(name)?.parent().map(Path::to_owned));
    }
    let status = Command::new(&program)
        .args(words)
        .env("KUBECONFIG", control_plane.kubeconfig())
        .env("PATH", in_front(folders)?)
        .env("CTR", cluster.ctr_command()?.join(" "))
        .env("PPO_VOLUMES", cluster.volumes())
        .kill_on_drop(true)
        .status()
        .await
        .with_context(|| format!("{} does not start", program.display()))?;
    cluster.check().await?;
    Ok(u8::try_from(status.code().unwrap_or(1)).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// The folder of the programs that were built with this one.
fn binaries() -> Result<PathBuf> {
    let this = std::env::current_exe()?;
    let folder = this.parent().and_then(Path::parent);
    Ok(folder.context("this program lies in no build folder")?.to_owned())
}

/// PATH with folders in front.
fn in_front(mut folders: Vec<PathBuf>) -> Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&path));
    Ok(std::env::join_paths(folders)?)
}
