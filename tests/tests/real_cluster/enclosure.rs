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

/// Command lines of all processes: a machine need not have `ps`.
fn command_lines() -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap();
    // A process may end meanwhile, and a file there is none.
    let lines = processes.filter_map(|process| fs::read(process.ok()?.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).into_owned()).collect()
}

/// A machine whose VPN has all of 10.0.0.0/8, and on which somebody uses two of our networks; which of three are taken.
const ROUTES: &str = "
set -e
ip link add wire type veth peer name other
ip address add 10.5.0.7/24 dev wire
ip link set wire up
ip route add default via 10.5.0.1
ip route add 10.0.0.0/8 via 10.5.0.1
ip route add 10.199.7.0/30 via 10.5.0.1
ip route add unreachable 10.199.8.0/24
python3 -B -c '
import runpy, sys
is_taken = runpy.run_path(sys.argv[1])[\"is_taken\"]
print([is_taken(f\"10.199.{number}.2/30\") for number in (6, 7, 8)])' \"$1\"
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_holds_all_of_ours_is_no_hindrance_and_one_among_them_is_left_alone() {
    if world().await.is_none() {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster/enclosure");
    let taken = says("unshare", &["--net", "bash", "-c", ROUTES, "bash", script]).await;
    assert_eq!(taken, "[False, True, True]\n");
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
    assert!(!command_lines().iter().any(|line| line.contains(&words)));
}
