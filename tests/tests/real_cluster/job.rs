//! A small job of real pods: its namespace, its claims, whose folders a test reads and writes, and how a test waits for it.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use ppo_crds::PpoJob;
use ppo_crds::manifest::parse_manifest;
use ppo_crds::status::{Phase, PpoJobStatus};
use ppo_tests::{Finished, NODE, Namespace, wait_for};
use serde_json::{Value, from_value, json};

use crate::worker::{Bench, text};
use crate::world::{World, binaries};

/// Longest wait for anything of a job: its pods share two cores with those of other tests.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Name of every job here, each in a namespace of its own.
pub const NAME: &str = "test";

/// A job.
pub struct Job<'a> {
    pub world: &'a World,
    pub namespace: Namespace<'a>,
    pub jobs: Api<PpoJob>,
    pub bench: Bench,
}

impl<'a> Job<'a> {
    /// A namespace with claims, a model and prompts on them, and a manifest with `patch` merged into its spec. Nothing runs.
    pub async fn prepare(world: &'a World, prefix: &str, patch: Value) -> Self {
        let namespace = world.cluster.control_plane().namespace(prefix).await.unwrap();
        let with_models = || {
            let bench = Bench::new();
            bench.reward_model("rm");
            bench
        };
        let bench = tokio::task::spawn_blocking(with_models).await.unwrap();
        let one_thread =
            json!({"spec": {"containers": [{"name": "worker", "env": [{"name": "PPO_THREADS", "value": "1"}]}]}});
        let pods = json!({
            "model": {"policy": {"path": null, "pvc": {"claimName": "data", "path": "sft"}}},
            "prompts": {"source": {"path": null, "pvc": {"claimName": "data", "path": "prompts.jsonl"}}},
            "roles": {
                "actor": {"template": one_thread}, "reference": {"template": one_thread},
                "rollout": {"replicas": 2, "template": one_thread},
            },
            "scheduling": {"gang": "none"},
            "checkpoint": {"pvc": "checkpoints", "everySteps": 20},
        });
        bench.manifests("job.yaml", &[pods, patch]);
        let job = Self {
            jobs: namespace.api(),
            world,
            namespace,
            bench,
        };
        for claim in ["data", "checkpoints"] {
            job.claim(claim).await;
        }
        let data = job.volume("data");
        for model in ["sft", "rm"] {
            fs::create_dir(data.join(model)).unwrap();
            for entry in fs::read_dir(job.bench.path(model)).unwrap() {
                let entry = entry.unwrap();
                fs::copy(entry.path(), data.join(model).join(entry.file_name())).unwrap();
            }
        }
        fs::copy(job.bench.path("prompts.jsonl"), data.join("prompts.jsonl")).unwrap();
        job
    }

    /// The folder of a claim.
    pub fn volume(&self, claim: &str) -> PathBuf {
        self.volumes().join(claim)
    }

    /// The folder of all claims.
    pub fn volumes(&self) -> PathBuf {
        self.world.cluster.volumes().join(&self.namespace.name)
    }

    /// Where the actor writes.
    pub fn checkpoints(&self) -> PathBuf {
        self.volume("checkpoints").join(NAME)
    }

    async fn claim(&self, claim: &str) {
        let folder = self.volume(claim);
        fs::create_dir_all(&folder).unwrap();
        let (namespace, name) = (&self.namespace.name, format!("{}-{claim}", self.namespace.name));
        let volume: PersistentVolume = from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
                "claimRef": {"namespace": namespace, "name": claim},
                "local": {"path": folder},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}]}]}},
            },
        }))
        .unwrap();
        let volumes: Api<PersistentVolume> = Api::all(self.namespace.client.clone());
        volumes.create(&PostParams::default(), &volume).await.unwrap();
        let claim: PersistentVolumeClaim = from_value(json!({
            "metadata": {"name": claim},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": name,
                     "resources": {"requests": {"storage": "1Gi"}}},
        }))
        .unwrap();
        self.namespace
            .api()
            .create(&PostParams::default(), &claim)
            .await
            .unwrap();
    }

    /// `kubectl apply`.
    pub async fn apply(&self) {
        let file = self.bench.path("job.yaml").display().to_string();
        self.namespace
            .kubectl(&["apply", "-f", &file])
            .await
            .unwrap()
            .success()
            .unwrap();
    }

    /// The status.
    pub async fn status(&self) -> PpoJobStatus {
        self.jobs.get(NAME).await.unwrap().status.unwrap_or_default()
    }

    /// Waits for a phase; when it does not come, with what `kubectl ppo why` says.
    pub async fn phase(&self, phase: Phase) -> PpoJobStatus {
        self.reaches(&format!("phase {phase:?}"), |status| status.phase == Some(phase))
            .await
    }

    /// Waits for a status.
    pub async fn reaches(&self, what: &str, reached: impl Fn(&PpoJobStatus) -> bool) -> PpoJobStatus {
        self.wait(what, async || {
            let status = self.status().await;
            ensure!(reached(&status), "{}", serde_yaml::to_string(&status)?);
            Ok(status)
        })
        .await
    }

    /// Waits for something.
    pub async fn wait<T>(&self, what: &str, look: impl AsyncFnMut() -> Result<T>) -> T {
        match wait_for(&format!("{what} of {}", self.namespace.name), PATIENCE, look).await {
            Ok(seen) => seen,
            Err(late) => {
                let why = self.ppo(&["why", NAME]).await;
                let pods = self.namespace.kubectl(&["get", "pods", "-o", "wide"]).await.unwrap();
                let logs = self.ppo(&["logs", NAME, "--tail", "20"]).await;
                panic!(
                    "{late:#}\n{}\n{}\n{}{}",
                    why.stdout, pods.stdout, logs.stdout, logs.stderr
                )
            }
        }
    }

    /// Figures of the steps that the actor has written, those of attempts that were cut off left out.
    fn metrics(&self) -> Vec<Value> {
        let lines = fs::read_to_string(self.checkpoints().join("metrics.jsonl")).unwrap_or_default();
        let steps = lines.lines().filter_map(|line| serde_json::from_str(line).ok());
        steps.collect()
    }

    /// Steps whose figures the actor has written.
    pub fn steps(&self) -> u64 {
        let newest = self.metrics().pop();
        newest.and_then(|step| step["step"].as_u64()).unwrap_or_default()
    }

    /// A figure, added up over the steps.
    pub fn total(&self, metric: &str) -> f64 {
        self.metrics().iter().filter_map(|step| step[metric].as_f64()).sum()
    }

    /// Waits until a step is done.
    pub async fn step(&self, step: u64) {
        self.wait(&format!("step {step}"), async || {
            ensure!(self.steps() >= step, "step {}", self.steps());
            Ok(())
        })
        .await;
    }

    /// A pod, if it is there.
    pub async fn pod(&self, pod: &str) -> Option<Pod> {
        self.namespace.pods().get_opt(&format!("{NAME}-{pod}")).await.unwrap()
    }

    /// The uid of a pod.
    pub async fn uid(&self, pod: &str) -> String {
        self.pod(pod).await.and_then(|pod| pod.metadata.uid).unwrap()
    }

    /// Waits until another pod has taken the place of the one with that uid, and is ready or has done its work already.
    pub async fn replaced(&self, pod: &str, uid: &str) {
        self.wait(&format!("a successor of pod {pod}"), async || {
            let found = self.pod(pod).await.context("none yet")?;
            ensure!(found.metadata.uid.as_deref() != Some(uid), "the old one is still there");
            let phase = found.status.as_ref().and_then(|status| status.phase.as_deref());
            ensure!(is_ready(&found) || phase == Some("Succeeded"), "{:?}", found.status);
            Ok(())
        })
        .await;
    }

    /// Asks for a pod's deletion, as `kubectl delete pod` does.
    pub async fn delete(&self, pod: &str) {
        let name = format!("{NAME}-{pod}");
        self.namespace
            .pods()
            .delete(&name, &DeleteParams::default())
            .await
            .unwrap();
    }

    /// SIGKILL to a pod's process.
    pub async fn kill(&self, pod: &str) {
        self.signal("SIGKILL", pod).await;
    }

    /// SIGSTOP to a pod's process: its connections stay, and nobody answers.
    pub async fn freeze(&self, pod: &str) {
        self.signal("SIGSTOP", pod).await;
    }

    async fn signal(&self, signal: &str, pod: &str) {
        let name = format!("{NAME}-{pod}");
        let sent = self.world.cluster.signal(signal, &self.namespace.name, &name);
        sent.await.unwrap();
    }

    /// `kubectl ppo ...`, run by the real kubectl.
    pub async fn ppo(&self, args: &[&str]) -> Finished {
        let control_plane = self.world.cluster.control_plane();
        let path = std::env::join_paths([binaries(), "/usr/bin".into(), "/bin".into()]).unwrap();
        let kubeconfig = control_plane.kubeconfig().display().to_string();
        let env = [
            ("PATH".to_owned(), path.into_string().unwrap()),
            ("KUBECONFIG".to_owned(), kubeconfig),
        ]
        .into();
        let args = [&["ppo"], args, &["--namespace", &self.namespace.name]].concat();
        ppo_tests::run(&control_plane.program("kubectl").unwrap(), &args, &env)
            .await
            .unwrap()
    }

    /// The run of one process, which nobody disturbs, has the bits that the pods left.
    pub async fn check_bits(&self) {
        let here = self.bench.path("volumes");
        fs::create_dir_all(here.join("checkpoints")).unwrap();
        std::os::unix::fs::symlink(self.volume("data"), here.join("data")).unwrap();
        let process = self.bench.command([
            "run",
            "-f",
            "job.yaml",
            "--volumes",
            "volumes",
            "--run-dir",
            "whole",
            "--quiet",
        ]);
        let done = tokio::process::Command::from(process).kill_on_drop(true).output();
        let done = tokio::time::timeout(PATIENCE, done).await.unwrap().unwrap();
        assert!(done.status.success(), "{}", text(&done.stderr));
        let pods = self.checkpoints();
        let whole = here.join("checkpoints").join(NAME);
        let job = parse_manifest(&fs::read_to_string(self.bench.path("job.yaml")).unwrap(), "job.yaml").unwrap();
        let last = format!("step-{:08}", job.spec.steps.unwrap());
        for (one, pods) in [
            (self.bench.path("whole/model"), pods.join("model")),
            (whole.join(&last), pods.join(&last)),
            (whole.join(&last).join("critic"), pods.join(&last).join("critic")),
        ] {
            let mut compared = 0;
            for entry in fs::read_dir(&one).unwrap_or_else(|error| panic!("{}: {error}", one.display())) {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|extension| extension == "safetensors") {
                    let name = path.file_name().unwrap();
                    assert!(
                        fs::read(&path).unwrap() == fs::read(pods.join(name)).unwrap(),
                        "{} differs",
                        path.display()
                    );
                    compared += 1;
                }
            }
            assert!(compared > 0, "no weights in {}", one.display());
        }
    }
}

/// Whether a pod is ready.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
