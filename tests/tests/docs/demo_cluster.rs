//! `make demo-cluster` takes minutes and is no test: what of its script can be known without a cluster.

use std::collections::BTreeSet;

use ppo_tests::Image;

#[test]
fn the_demo_runs_only_programs_in_its_pod_of_files_that_the_pods_image_has() {
    let script = include_str!("../../../configs/quickstart-cluster/demo.sh");
    let commands = script.split("exec quickstart-files -- ").skip(1);
    let programs: BTreeSet<&str> = commands
        .filter_map(|command| command.split_whitespace().next())
        .collect();
    assert!(programs.contains("sha256sum"), "{programs:?}");
    for program in programs {
        assert!(Image::APPLETS.contains(&program), "{program}");
    }
}
