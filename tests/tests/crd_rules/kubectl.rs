//! What kubectl users see: our manifests, the manual, the columns, the scale.

use std::path::Path;

use kube::api::{Api, Patch, PatchParams, PostParams};
use ppo_crds::PpoJob;
use ppo_tests::ControlPlane;
use serde_json::json;

use crate::manifest::least;

/// A manifest for one machine has relative paths, which no pod could follow.
#[tokio::test]
async fn every_manifest_we_ship_is_accepted_but_the_illegal_one_and_relative_paths() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("configs").await.unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs");
    let scratch = tempfile::tempdir().unwrap();
    let apply = async |file: &Path| {
        let file = file.to_str().unwrap();
        namespace
            .kubectl(&["apply", "--dry-run=server", "--validate=strict", "-f", file])
            .await
            .unwrap()
    };
    let mut shipped = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "yaml") {
            continue;
        }
        shipped += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        let absolute = scratch.path().join(path.file_name().unwrap());
        std::fs::write(&absolute, text.replace("path: ../", "path: /")).unwrap();
        let applied = apply(&absolute).await;
        let legal = !path.ends_with("illegal.yaml");
        assert_eq!(applied.code == Some(0), legal, "{applied:?}");
        assert!(legal || applied.stderr.contains("Illegal_Name"), "{applied:?}");
        if text.contains("path: ../") {
            let applied = apply(&path).await;
            assert!(
                applied.code != Some(0) && applied.stderr.contains("is relative; in a pod"),
                "{applied:?}"
            );
        }
    }
    assert!(shipped >= 5, "{shipped}");
}

#[tokio::test]
async fn kubectl_explains_every_field() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("explain").await.unwrap();
    let explained = async |words: &[&str]| {
        let all = [&["explain"], words].concat();
        namespace.kubectl(&all).await.unwrap().success().unwrap()
    };
    let spec = explained(&["ppojob.spec"]).await;
    for words in [
        "What to train, how, and on which pods",
        "roles\t<Object> -required-",
        "Seed of everything random",
    ] {
        assert!(spec.contains(words), "{words:?}: {spec}");
    }
    let all = explained(&["ppo", "--recursive"]).await;
    assert!(
        all.contains("missingEosPenalty") && all.contains("rolloutReplicas"),
        "{all}"
    );
    let word = explained(&["ppojob.spec.algorithm.advantage.estimator"]).await;
    assert!(word.contains("ENUM:\n    gae\n    rloo\n"), "{word}");
}

#[tokio::test]
async fn kubectl_get_shows_where_a_job_is() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("get").await.unwrap();
    let jobs: Api<PpoJob> = namespace.api();
    let job = serde_json::from_value(least()).unwrap();
    jobs.create(&PostParams::default(), &job).await.unwrap();
    let status = json!({"status": {"phase": "Running", "ready": "4/4", "restarts": 2,
        "progress": {"step": 40, "total": 150, "summary": "40/150", "reward": 0.5, "kl": 0.25}}});
    let written = jobs
        .patch_status("a", &PatchParams::default(), &Patch::Merge(status))
        .await;
    written.unwrap();
    for name in ["ppo", "ppojob", "ppojobs", "ml"] {
        let table = namespace.kubectl(&["get", name]).await.unwrap().success().unwrap();
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            rows[0],
            ["NAME", "STATE", "STEP", "REWARD", "KL", "READY", "RESTARTS", "AGE"],
            "{table}"
        );
        assert_eq!(
            rows[1][..7],
            ["a", "Running", "40/150", "0.5", "0.25", "4/4", "2"],
            "{table}"
        );
    }
}

#[tokio::test]
async fn kubectl_scale_sets_the_number_of_engines() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("scale").await.unwrap();
    let jobs: Api<PpoJob> = namespace.api();
    let job = serde_json::from_value(least()).unwrap();
    jobs.create(&PostParams::default(), &job).await.unwrap();
    let status = json!({"status": {"rolloutReplicas": 1, "rolloutSelector": "ppojob.dev/job=a"}});
    let written = jobs
        .patch_status("a", &PatchParams::default(), &Patch::Merge(status))
        .await;
    written.unwrap();
    let scaled = namespace.kubectl(&["scale", "ppo/a", "--replicas=3"]).await.unwrap();
    scaled.success().unwrap();
    assert_eq!(jobs.get("a").await.unwrap().spec.roles.rollout.replicas, 3);
    let scale = jobs.get_scale("a").await.unwrap().status.unwrap();
    assert_eq!(
        (scale.replicas, scale.selector.as_deref()),
        (1, Some("ppojob.dev/job=a"))
    );
    // Beyond the schema's limit the scale is refused too.
    let refused = namespace.kubectl(&["scale", "ppo/a", "--replicas=1025"]).await.unwrap();
    assert!(
        refused.code != Some(0) && refused.stderr.contains("1024"),
        "{refused:?}"
    );
}
