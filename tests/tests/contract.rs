//! The files of `configs/` and the generated CRD as a user meets them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ppo_crds::{Environment, Geometry, Plan, PpoJob, fill, parse_manifest, render_plan, resolve, validate};

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs")
}

fn read(name: &str) -> (PpoJob, Environment) {
    let path = configs().join(name);
    let text = std::fs::read_to_string(&path).unwrap();
    let job = parse_manifest(&text, &path.display().to_string()).unwrap();
    let environment = Environment::meant_by(&job, &configs());
    (job, environment)
}

fn manifests() -> Vec<String> {
    let entries = std::fs::read_dir(configs()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".yaml")).collect();
    names.sort();
    assert!(names.len() >= 5, "{names:?}");
    names
}

#[test]
fn every_manifest_we_ship_is_valid_but_the_illegal_one() {
    for name in manifests() {
        let (job, environment) = read(&name);
        let valid = resolve(&job, &environment);
        assert_eq!(valid.is_ok(), name != "illegal.yaml", "{name}: {valid:?}");
    }
}

#[test]
fn every_manifest_we_ship_says_in_its_first_line_what_it_shows() {
    for name in manifests() {
        let text = std::fs::read_to_string(configs().join(&name)).unwrap();
        let first = text.lines().next().unwrap();
        assert!(first.starts_with("# ") && first.len() > 30, "{name}: {first}");
    }
}

#[test]
fn fifteen_lines_are_enough_for_a_run() {
    let text = std::fs::read_to_string(configs().join("minimal.yaml")).unwrap();
    assert!(text.lines().count() <= 15, "{} lines", text.lines().count());
    let (job, environment) = read("minimal.yaml");
    let config = resolve(&job, &environment).unwrap();
    assert!(config.model.critic.is_some() && config.model.reference.is_some());
    assert_eq!(config.batch.samples_per_step(), 128);
}

#[test]
fn a_filled_manifest_runs_as_the_short_one_does() {
    for name in manifests().into_iter().filter(|name| name != "illegal.yaml") {
        let (job, environment) = read(&name);
        let filled = fill(&job);
        assert_eq!(fill(&filled), filled, "{name}");
        assert_eq!(resolve(&filled, &environment), resolve(&job, &environment), "{name}");

        let printed = serde_yaml::to_string(&filled).unwrap();
        assert_eq!(parse_manifest(&printed, "printed").unwrap(), filled, "{name}");
    }
}

#[test]
fn the_illegal_manifest_gets_all_its_errors_at_once() {
    let (job, _) = read("illegal.yaml");
    let errors = validate(
        &job,
        &Environment::Laptop {
            manifest_folder: configs(),
        },
    )
    .unwrap_err();
    let snapshot = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/illegal.txt");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&snapshot, format!("{errors}\n")).unwrap();
    }
    let expected = std::fs::read_to_string(&snapshot).unwrap_or_default();
    assert_eq!(
        format!("{errors}\n"),
        expected,
        "UPDATE_EXPECT=1 rewrites tests/tests/illegal.txt"
    );
}

#[test]
fn the_examples_for_24_gpus_are_written_out_as_their_comments_say() {
    for name in ["rloo", "math-rloo-8gpu"] {
        let (job, environment) = read(&format!("{name}.yaml"));
        let geometry = Geometry::of(&job).unwrap();
        assert_eq!((geometry.gpus, geometry.pods), (24, 4), "{name}");
        let text = render_plan(&Plan::of(&job, &environment, None).unwrap());
        let job = name.trim_end_matches("-8gpu");
        for words in [
            "samples per step 128 = 32 prompts x 4 samples",
            "prompts per engine 16 = 32 / 2 engines",
            "samples per engine 64 = 128 / 2 engines",
            "updates per epoch 4 = 128 / 32",
            "accumulation 4 = 32 / (1 x 8 ranks)",
            &format!("{job}-rollout-0 to {job}-rollout-1"),
            &format!("{job}-actor-0"),
            &format!("{job}-reference-0"),
            "none needed",
        ] {
            assert!(text.contains(words), "{words} is not in\n{text}");
        }
    }
}

#[test]
fn the_job_of_the_cluster_demo_plans_to_five_pods_without_a_gpu() {
    let (job, environment) = read("quickstart-cluster.yaml");
    assert_eq!(environment, Environment::cluster());
    let plan = Plan::of(&job, &environment, None).unwrap();
    let pods = ["rollout-0", "rollout-1", "actor-0", "reference-0", "reward-0"];
    let pods = pods.map(|pod| format!("quickstart-cluster-{pod}"));
    assert_eq!(plan.geometry.gpus, 0);
    assert_eq!(
        plan.pod_names.iter().collect::<BTreeSet<_>>(),
        pods.iter().collect::<BTreeSet<_>>()
    );
    assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
    let config = resolve(&job, &environment).unwrap();
    let checkpoints = Path::new("/volumes/quickstart-checkpoints/quickstart-cluster");
    assert_eq!(config.checkpoint.path.as_deref(), Some(checkpoints));
    // The claims that it names are those that the demo makes.
    let claims = std::fs::read_to_string(configs().join("quickstart-cluster/claims.yaml")).unwrap();
    for claim in ["name: quickstart ", "name: quickstart-checkpoints "] {
        assert!(claims.contains(claim), "{claim}");
    }
}

#[test]
fn the_manifest_that_a_plan_prints_can_be_applied_as_it_is() {
    let (job, environment) = read("quickstart.yaml");
    let text = render_plan(&Plan::of(&job, &environment, None).unwrap());
    let (_, manifest) = text.split_once("---\n").unwrap();
    let printed = parse_manifest(manifest, "plan").unwrap();
    assert_eq!(resolve(&printed, &environment), resolve(&job, &environment));
}

#[test]
fn a_plan_as_json_holds_what_the_text_says() {
    let (job, environment) = read("math-rloo-8gpu.yaml");
    let json = serde_json::to_value(Plan::of(&job, &environment, None).unwrap()).unwrap();
    assert_eq!(json["geometry"]["gpus"], 24);
    assert_eq!(json["podNames"].as_array().unwrap().len(), 4);
    assert_eq!(json["manifest"]["kind"], "PpoJob");
}
