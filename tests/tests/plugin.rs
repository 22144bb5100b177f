//! `kubectl ppo` against a real API server and scheduler. The test writes the status that an operator would.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use ppo_crds::PpoJob;
use ppo_tests::{ControlPlane, Finished, Namespace, PATIENCE, wait_for};
use serde_json::{Value, from_value, json};

/// Folder of the binary under test, which is on the path of kubectl.
fn binaries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap().parent().unwrap().to_owned();
    let binary = folder.join("kubectl-ppo");
    assert!(
        binary.exists(),
        "{} is not built: run `cargo build -p ppo-operator`",
        binary.display()
    );
    folder
}

/// `kubectl ppo ...`, run by the real kubectl.
async fn ppo(namespace: &Namespace<'_>, args: &[&str]) -> Finished {
    // A plugin gets its flags behind its name.
    let args = [&["ppo"], args, &["--namespace", &namespace.name]].concat();
    kubectl(namespace, &args, &binaries()).await
}

/// The real kubectl, with the plugin and this folder on its path.
async fn kubectl(namespace: &Namespace<'_>, args: &[&str], folder: &Path) -> Finished {
    let kubectl = namespace.cluster.program("kubectl").unwrap();
    let path = std::env::join_paths([binaries(), folder.into(), "/usr/bin".into(), "/bin".into()]).unwrap();
    let env = BTreeMap::from([
        ("PATH".to_string(), path.into_string().unwrap()),
        (
            "KUBECONFIG".to_string(),
            namespace.cluster.kubeconfig().display().to_string(),
        ),
    ]);
    ppo_tests::run(&kubectl, args, &env).await.unwrap()
}

/// A job of two engines and an actor, as a user applies it, and the status of an operator that saw it.
async fn create_job(namespace: &Namespace<'_>, name: &str, status: Value) {
    let job: PpoJob = from_value(json!({
        "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": name},
        "spec": {
            "model": {"policy": {"pvc": {"claimName": "models", "path": "a"}}},
            "prompts": {"source": {"pvc": {"claimName": "data", "path": "a.jsonl"}}},
            "algorithm": {"advantage": {"estimator": "rloo"}, "kl": {"coef": 0}},
            "batch": {"rolloutBatchSize": 8, "nSamplesPerPrompt": 4, "trainBatchSize": 32},
            "roles": {"rollout": {"replicas": 2}, "reward": {"rules": [{"json": {}}]}},
        },
    }))
    .unwrap();
    let jobs = namespace.api::<PpoJob>();
    jobs.create(&PostParams::default(), &job).await.unwrap();
    if !status.is_null() {
        let status = Patch::Merge(json!({"status": status}));
        jobs.patch_status(name, &PatchParams::default(), &status).await.unwrap();
    }
}

fn seen(phase: &str) -> Value {
    json!({"phase": phase, "observedGeneration": 1, "attempt": 1, "restarts": 0, "ruleRestarts": [], "conditions": [],
           "roles": [], "rolloutReplicas": 2, "rolloutSelector": "", "activeSeconds": 0})
}

async fn create_pod(namespace: &Namespace<'_>, job: &str, role: &str, index: u32) {
    let labels = json!({"app.kubernetes.io/name": "ppojob", "ppojob.dev/job": job, "ppojob.dev/role": role,
                        "ppojob.dev/index": index.to_string()});
    let uid = namespace.api::<PpoJob>().get(job).await.unwrap().metadata.uid;
    let owner =
        json!({"apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "name": job, "uid": uid, "controller": true});
    let pod: Pod = from_value(json!({
        "metadata": {"name": format!("{job}-{role}-{index}"), "labels": labels, "ownerReferences": [owner]},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "worker", "image": "worker:test",
            "resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
    }))
    .unwrap();
    namespace.pods().create(&PostParams::default(), &pod).await.unwrap();
}

#[tokio::test]
async fn why_repeats_what_the_real_scheduler_says_once_for_all_pods_and_exits_with_3() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("plugin").await.unwrap();
    namespace.gpu_nodes(2, 4).await.unwrap();
    create_job(&namespace, "large", seen("Scheduling")).await;
    for index in 0..2 {
        create_pod(&namespace, "large", "rollout", index).await;
    }
    wait_for("the scheduler's words in `kubectl ppo why`", PATIENCE, async || {
        let why = ppo(&namespace, &["why", "large"]).await;
        anyhow::ensure!(why.stdout.contains("Insufficient nvidia.com/gpu"), "{why:?}");
        anyhow::ensure!(why.stdout.contains("[large-rollout-0, large-rollout-1]"), "{why:?}");
        anyhow::ensure!(why.stdout.contains("up to 8 on one node"), "{why:?}");
        anyhow::ensure!(why.code == Some(3), "{why:?}");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn list_and_status_show_a_running_job_and_why_finds_nothing() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("plugin").await.unwrap();
    let mut status = seen("Running");
    status["progress"] =
        json!({"step": 40, "total": 150, "summary": "40/150", "percent": 26, "etaSeconds": 1100, "reward": 0.5});
    create_job(&namespace, "math", status).await;
    let list = ppo(&namespace, &["list"]).await.success().unwrap();
    assert!(
        list.lines()
            .nth(1)
            .unwrap()
            .starts_with("math   Running   40/150   0.5"),
        "{list}"
    );
    let status = ppo(&namespace, &["status", "math"]).await.success().unwrap();
    assert!(status.contains("Step:        40/150 (26%), ends in 18m"), "{status}");
    let why = ppo(&namespace, &["why", "math"]).await.success().unwrap();
    assert!(why.contains("Nothing: it runs, step 40/150"), "{why}");
    let plan = ppo(&namespace, &["plan", "math"]).await.success().unwrap();
    assert!(
        plan.contains("math-rollout-0 to math-rollout-1") && !plan.contains("managedFields"),
        "{plan}"
    );
}

#[tokio::test]
async fn plan_ends_with_2_where_what_is_given_cannot_be_used() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("plugin").await.unwrap();
    let illegal = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/illegal.yaml");
    let answer = ppo(&namespace, &["plan", "-f", illegal]).await;
    assert!(answer.code == Some(2) && answer.stderr.contains("spec."), "{answer:?}");
    let answer = ppo(&namespace, &["plan"]).await;
    assert!(
        answer.code == Some(2) && answer.stderr.contains("give NAME, or -f FILE"),
        "{answer:?}"
    );
}

#[tokio::test]
async fn suspend_and_resume_set_the_field_and_why_says_who_did_it() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("plugin").await.unwrap();
    create_job(&namespace, "math", seen("Running")).await;
    let suspended = async || {
        namespace
            .api::<PpoJob>()
            .get("math")
            .await
            .unwrap()
            .spec
            .run_policy
            .suspend
    };
    ppo(&namespace, &["suspend", "math"]).await.success().unwrap();
    assert!(suspended().await);
    let why = ppo(&namespace, &["why", "math"]).await;
    assert!(
        why.code == Some(3) && why.stdout.contains("suspended by kubectl-ppo"),
        "{why:?}"
    );
    // No operator runs here: waiting ends at its deadline, and says what it waited for.
    let waited = ppo(&namespace, &["suspend", "math", "--wait", "--timeout", "1"]).await;
    assert!(
        waited.code == Some(1) && waited.stderr.contains("waits for the operator"),
        "{waited:?}"
    );
    ppo(&namespace, &["resume", "math"]).await.success().unwrap();
    assert!(!suspended().await);
}

#[tokio::test]
async fn a_job_that_would_lose_its_steps_is_left_as_it_is_unless_that_is_meant() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("plugin").await.unwrap();
    let mut status = seen("Running");
    status["progress"] = json!({"step": 40, "total": 150, "summary": "40/150", "percent": 26});
    create_job(&namespace, "math", status).await;
    let written = async || namespace.api::<PpoJob>().get("math").await.unwrap().resource_version();
    let words = "spec.checkpoint names no claim";
    let commands: [&[&str]; 2] = [
        &["restart-role", "math", "actor"],
        &["suspend", "ppojob.ppojob.dev/math"],
    ];
    for command in commands {
        let before = written().await;
        let refused = ppo(&namespace, command).await;
        assert!(refused.code == Some(1) && refused.stderr.contains(words), "{refused:?}");
        assert_eq!(written().await, before, "{refused:?}");
        let meant = [command, &["--discard-checkpoints"]].concat();
        let done = ppo(&namespace, &meant).await.success().unwrap();
        assert!(done.contains(words), "{done}");
        assert_ne!(written().await, before, "{done}");
    }
}

#[tokio::test]
async fn a_job_whose_template_cannot_be_read_is_suspended_and_resumed_and_its_field_is_named() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("plugin").await.unwrap();
    create_job(&namespace, "math", seen("Running")).await;
    let client = namespace.client.clone();
    let jobs: Api<DynamicObject> = Api::namespaced_with(client, &namespace.name, &ApiResource::erase::<PpoJob>(&()));
    let container = json!({"name": "worker", "env": [{"name": "A", "value": 8}]});
    let template = json!({"spec": {"roles": {"actor": {"template": {"spec": {"containers": [container]}}}}}});
    let patch = Patch::Merge(template);
    jobs.patch("math", &PatchParams::default(), &patch).await.unwrap();
    let words = "spec.roles.actor.template: spec.containers[0].env[0].value: invalid type: integer `8`";
    for command in ["why", "status", "plan"] {
        let answer = ppo(&namespace, &[command, "math"]).await;
        assert!(answer.code == Some(1) && answer.stderr.contains(words), "{answer:?}");
        // The CRD is this plugin's.
        assert!(
            !answer.stderr.contains("plugin of the operator's version"),
            "{answer:?}"
        );
    }
    for (command, suspended) in [("suspend", true), ("resume", false)] {
        let answer = ppo(&namespace, &[command, "math"]).await;
        assert!(answer.code == Some(0) && answer.stderr.contains(words), "{answer:?}");
        let job = jobs.get("math").await.unwrap();
        assert_eq!(job.data["spec"]["runPolicy"]["suspend"], suspended);
    }
}

#[tokio::test]
async fn restart_role_leaves_a_new_value_each_time_and_refuses_roles_without_pods() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("plugin").await.unwrap();
    create_job(&namespace, "math", seen("Running")).await;
    let asked = async || {
        ppo(&namespace, &["restart-role", "math", "actor"])
            .await
            .success()
            .unwrap();
        let job = namespace.api::<PpoJob>().get("math").await.unwrap();
        job.annotations().get("ppojob.dev/restart").cloned().unwrap()
    };
    let value = asked().await;
    let (role, time) = value.split_once('=').unwrap();
    assert!(
        role == "actor" && time.starts_with("20") && time.ends_with('Z'),
        "{value}"
    );
    assert_ne!(asked().await, value);
    let refused = ppo(&namespace, &["restart-role", "math", "reference"]).await;
    assert!(
        refused.code == Some(1) && refused.stderr.contains("algorithm.kl.coef is 0"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_mistyped_name_is_answered_with_the_right_one() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("plugin").await.unwrap();
    create_job(&namespace, "rloo-math", Value::Null).await;
    for command in [
        ["why", "rlo-math"],
        ["logs", "rlo-math"],
        ["status", "rlo-math"],
        ["suspend", "rlo-math"],
    ] {
        let answer = ppo(&namespace, &command).await;
        assert!(
            answer.code == Some(1) && answer.stderr.contains("did you mean rloo-math?"),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn who_has_no_rights_is_told_which_verb_is_missing() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("plugin").await.unwrap();
    let kubeconfig = namespace.service_account_kubeconfig("default").await.unwrap();
    let answer = ppo(&namespace, &["list", "--kubeconfig", kubeconfig.to_str().unwrap()]).await;
    let words = format!("forbidden: you may not list ppojobs in namespace {}", namespace.name);
    assert!(answer.code == Some(1) && answer.stderr.contains(&words), "{answer:?}");
}

#[tokio::test]
async fn who_acts_as_another_has_the_rights_of_the_other() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("plugin").await.unwrap();
    create_job(&namespace, "math", Value::Null).await;
    let answer = ppo(&namespace, &["list", "--as", "eve"]).await;
    assert!(
        answer.code == Some(1) && answer.stderr.contains(r#"User "eve" cannot list"#),
        "{answer:?}"
    );
    let as_group = ["list", "-o", "name", "--as", "eve", "--as-group", "system:masters"];
    let names = ppo(&namespace, &as_group).await.success().unwrap();
    assert_eq!(names, "ppojob.ppojob.dev/math\n");
    // Who has no rights has not that one either.
    let kubeconfig = namespace.service_account_kubeconfig("default").await.unwrap();
    let with = ["list", "--as", "eve", "--kubeconfig", kubeconfig.to_str().unwrap()];
    let answer = ppo(&namespace, &with).await;
    assert!(
        answer.code == Some(1) && answer.stderr.contains("verb `impersonate`"),
        "{answer:?}"
    );
}

#[tokio::test]
async fn a_job_of_another_namespace_is_found_there() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("plugin").await.unwrap();
    let other = cluster.namespace("plugin").await.unwrap();
    create_job(&other, "only-there", Value::Null).await;
    let answer = ppo(&namespace, &["why", "only-there"]).await;
    let words = format!("give -n {}", other.name);
    assert!(answer.code == Some(1) && answer.stderr.contains(&words), "{answer:?}");
}

#[tokio::test]
async fn kubectl_completes_commands_and_names_of_jobs() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("plugin").await.unwrap();
    create_job(&namespace, "rloo-math", Value::Null).await;
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("kubectl_complete-ppo");
    std::os::unix::fs::symlink(binaries().join("kubectl-ppo"), link).unwrap();
    // So do the scripts of `kubectl completion`; behind the choices comes Cobra's directive: no files.
    let completed = async |words: &[&str]| {
        let args = [&["__complete", "ppo"], words].concat();
        kubectl(&namespace, &args, folder.path()).await.success().unwrap()
    };
    let commands = completed(&["susp"]).await;
    assert!(
        commands.starts_with("suspend\t") && commands.ends_with(":4\n"),
        "{commands}"
    );
    let chosen = format!("--namespace={}", namespace.name);
    let names = completed(&["status", &chosen, "rl"]).await;
    assert!(names.starts_with("rloo-math") && names.ends_with(":4\n"), "{names}");
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_is_an_error_that_says_so() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("plugin").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config");
    // Port 9 is that of discard, where nothing listens.
    let text = "{apiVersion: v1, kind: Config, current-context: a, clusters: [{name: a, cluster: {server: 'https://127.0.0.1:9'}}], \
                users: [], contexts: [{name: a, context: {cluster: a, user: ''}}]}";
    std::fs::write(&file, text).unwrap();
    let answer = ppo(&namespace, &["list", "--kubeconfig", file.to_str().unwrap()]).await;
    assert!(
        answer.code == Some(1) && answer.stderr.contains("no cluster answers at https://127.0.0.1:9"),
        "{answer:?}"
    );
}
