//! What a cluster leaves on the machine: nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ppo_tests::RealCluster;

use crate::world::world;

/// Kernel settings that a kubelet writes.
const SETTINGS: [&str; 3] = ["vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops"];

fn settings() -> Vec<String> {
    let read = |name: &str| fs::read_to_string(Path::new("/proc/sys").join(name)).unwrap();
    SETTINGS.map(read).to_vec()
}

/// Where the cgroups of an enclosure are, whatever the version of cgroups.
fn cgroups(name: &str) -> Vec<PathBuf> {
    let below = fs::read_dir("/sys/fs/cgroup")
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let all = below.chain([PathBuf::from("/sys/fs/cgroup")]);
    all.map(|folder| folder.join(name))
        .filter(|cgroup| cgroup.exists())
        .collect()
}

async fn says(program: &str, args: &[&str]) -> String {
    let done = ppo_tests::run(Path::new(program), args, &BTreeMap::new()).await;
    done.unwrap().success().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_cluster_runs_beside_the_first_and_leaves_no_device_cgroup_folder_process_or_setting_behind() {
    if world().await.is_none() {
        return;
    }
    let before = settings();
    let cluster = RealCluster::start().await.unwrap();
    let folder = cluster.control_plane().folder().unwrap().to_owned();
    let number = cluster.address().octets()[2];
    let name = format!("ppo-{number}");
    assert!(says("ip", &["link"]).await.contains(&format!("{name}@")));
    assert!(!cgroups(&name).is_empty());
    assert_eq!(settings(), before, "the kubelet changed the machine's settings");

    drop(cluster);
    assert_eq!(cgroups(&name), Vec::<PathBuf>::new());
    assert!(!folder.exists(), "{} is left", folder.display());
    assert!(!says("ip", &["link"]).await.contains(&format!("{name}@")));
    assert!(
        !says("ip", &["netns"])
            .await
            .lines()
            .any(|line| line.starts_with(&format!("{name} ")))
    );
    let words = folder.file_name().unwrap().to_string_lossy().into_owned();
    assert!(!says("ps", &["-e", "-o", "args"]).await.contains(&words));
}
