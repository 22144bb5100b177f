//! A small job, and how a test waits for it.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use ppo_crds::PpoJob;
use ppo_crds::spec::Role;
use ppo_crds::status::{Phase, PpoJobStatus, RoleStatus};
use ppo_tests::{Actor, ControlPlane, Namespace, Operator, PATIENCE, PodFailure, wait_for};
use serde_json::{Value, json};

/// One actor, one reference, two engines, a GPU each; `changes` are merged in.
pub fn manifest(name: &str, changes: Value) -> PpoJob {
    let mut job = json!({
        "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": name},
        "spec": {
            "model": {"policy": {"path": "/models/policy"}},
            "prompts": {"source": {"path": "/data/train.jsonl"}},
            "batch": {"rolloutBatchSize": 32},
            "roles": {"rollout": {"replicas": 2}, "reward": {"rules": [{"json": {}}]}},
            "scheduling": {"gang": "none"},
        },
    });
    merge(&mut job, changes);
    serde_json::from_value(job).unwrap()
}

/// A pod template with a volume that all pods of a role share, at `/shared`.
pub fn shares() -> Value {
    let mount = json!({"name": "shared", "mountPath": "/shared"});
    let volume = json!({"name": "shared", "nfs": {"server": "files", "path": "/"}});
    json!({"spec": {"containers": [{"name": "worker", "volumeMounts": [mount]}], "volumes": [volume]}})
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// A namespace with eight GPUs, an operator and a job.
pub struct Stage<'a> {
    pub namespace: Namespace<'a>,
    pub jobs: Api<PpoJob>,
    pub name: &'static str,
    pub operator: Option<Operator>,
}

impl Stage<'static> {
    /// Applies the job and starts an operator; waits for nothing.
    pub async fn applied(name: &'static str, changes: Value) -> Self {
        let cluster = ControlPlane::shared().await.unwrap();
        let namespace = cluster.namespace(name).await.unwrap();
        namespace.gpu_nodes(1, 8).await.unwrap();
        let jobs: Api<PpoJob> = namespace.api();
        jobs.create(&PostParams::default(), &manifest(name, changes))
            .await
            .unwrap();
        let operator = Some(Operator::start(&namespace));
        Self {
            namespace,
            jobs,
            name,
            operator,
        }
    }

    /// Applies the job and waits until it runs.
    pub async fn running(name: &'static str, changes: Value) -> Self {
        let stage = Self::applied(name, changes).await;
        stage.phase(Phase::Running).await;
        stage
    }
}

impl Stage<'_> {
    /// Waits for a phase.
    pub async fn phase(&self, phase: Phase) -> PpoJobStatus {
        self.status(&format!("phase {phase:?}"), |status| status.phase == Some(phase))
            .await
    }

    /// Waits for a status.
    pub async fn status(&self, what: &str, reached: impl Fn(&PpoJobStatus) -> bool) -> PpoJobStatus {
        wait_for(&format!("{what} of {}", self.name), PATIENCE, async || {
            let status = self.jobs.get(self.name).await?.status.unwrap_or_default();
            anyhow::ensure!(reached(&status), "{}", serde_yaml::to_string(&status)?);
            Ok(status)
        })
        .await
        .unwrap()
    }

    /// Waits for something.
    pub async fn wait<T>(&self, what: &str, look: impl AsyncFnMut() -> anyhow::Result<T>) -> T {
        wait_for(what, PATIENCE, look).await.unwrap()
    }

    /// Waits until the operator has seen the last change of the spec.
    pub async fn looked_at(&self) {
        self.wait("the operator to see the change", async || {
            let job = self.jobs.get(self.name).await?;
            let seen = job.status.and_then(|status| status.observed_generation);
            anyhow::ensure!(
                seen == job.metadata.generation,
                "it has seen {seen:?} of {:?}",
                job.metadata.generation
            );
            Ok(())
        })
        .await;
    }

    /// Changes the spec in a way that means nothing while the job lives, and waits until the operator has seen it. The status that
    /// says so holds all that the operator knew by then.
    pub async fn looked_at_anew(&self) {
        let generation = self.jobs.get(self.name).await.unwrap().metadata.generation.unwrap();
        let policy = json!({"ttlSecondsAfterFinished": 1000 + generation});
        self.patch(json!({"spec": {"runPolicy": policy}})).await;
        self.looked_at().await;
    }

    /// Has the operator look twice, and sees that these pods are there and that nobody has asked them to stop.
    pub async fn keeps(&self, shorts: &[&str]) {
        // What the first look leads to is done before the second.
        for _ in 0..2 {
            self.looked_at_anew().await;
        }
        for short in shorts {
            let asked = self.pod(short).await.metadata.deletion_timestamp;
            assert_eq!(asked, None, "{short} was asked to stop");
        }
    }

    /// Applies another job and waits until it runs: the operator has then been through what came before it.
    pub async fn runs_another(&self, name: &str) {
        let another = manifest(name, json!({}));
        self.jobs.create(&PostParams::default(), &another).await.unwrap();
        self.wait(&format!("{name} to run"), async || {
            let status = self.jobs.get(name).await?.status.unwrap_or_default();
            anyhow::ensure!(status.phase == Some(Phase::Running), "{:?}", status.phase);
            Ok(())
        })
        .await;
    }

    /// Waits for an event with these words.
    pub async fn tells(&self, words: &str) {
        let events: Api<Event> = self.namespace.api();
        self.wait(&format!("an event with {words:?}"), async || {
            let list = events.list(&Default::default()).await?;
            let notes: Vec<String> = list.into_iter().filter_map(|event| event.note).collect();
            anyhow::ensure!(notes.iter().any(|note| note.contains(words)), "{notes:#?}");
            Ok(())
        })
        .await;
    }

    /// Waits for a condition with these words, of a job that has not failed for them.
    pub async fn waits_saying(&self, words: &str) {
        let says = |status: &PpoJobStatus| {
            let mut conditions = status.conditions.iter();
            conditions.any(|condition| condition.message.contains(words))
        };
        let status = self.status(&format!("the words {words:?}"), says).await;
        assert_ne!(status.phase, Some(Phase::Failed), "{status:?}");
    }

    /// The actor's report endpoint.
    pub async fn actor(&self) -> Actor {
        let pod = self.pod_name("actor-0");
        Actor::behind(&self.namespace, &pod).await.unwrap()
    }

    /// Has a pod fail.
    pub async fn fail(&self, short: &str, failure: &PodFailure) {
        let pod = self.pod_name(short);
        self.namespace.fail_pod(&pod, failure).await.unwrap();
    }

    /// Merges into the job.
    pub async fn patch(&self, patch: Value) {
        let patch = Patch::Merge(patch);
        self.jobs
            .patch(self.name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// A pod's full name.
    pub fn pod_name(&self, short: &str) -> String {
        format!("{}-{short}", self.name)
    }

    /// A pod, by role and index.
    pub async fn pod(&self, short: &str) -> Pod {
        self.namespace.pods().get(&self.pod_name(short)).await.unwrap()
    }

    /// Its uid.
    pub async fn uid(&self, short: &str) -> String {
        self.pod(short).await.uid().unwrap()
    }

    /// Names of the pods that exist, without the job's.
    pub async fn pods(&self) -> Vec<String> {
        let pods = self.namespace.pods().list(&Default::default()).await.unwrap();
        let prefix = format!("{}-", self.name);
        let mut names: Vec<String> = pods.iter().map(|pod| pod.name_any().replacen(&prefix, "", 1)).collect();
        names.sort();
        names
    }

    /// Waits until exactly these pods exist.
    pub async fn has_pods(&self, expected: &[&str]) {
        self.wait(&format!("pods {expected:?}"), async || {
            let pods = self.pods().await;
            anyhow::ensure!(pods == expected, "{pods:?}");
            Ok(())
        })
        .await;
    }

    /// Waits until the actor's disruption budget is there, or is gone.
    pub async fn has_budget(&self, wanted: bool) {
        let budgets: Api<PodDisruptionBudget> = self.namespace.api();
        let name = format!("{}-actor", self.name);
        self.wait(&format!("budget {name} to be there: {wanted}"), async || {
            let found = budgets.get_opt(&name).await?;
            anyhow::ensure!(found.is_some() == wanted, "{found:?}");
            Ok(())
        })
        .await;
    }

    /// Waits until a pod was replaced by another of its name that is ready; the new one.
    pub async fn replaced(&self, short: &str, uid: &str) -> Pod {
        let name = self.pod_name(short);
        self.wait(&format!("{name} to be replaced"), async || {
            let pod = self.namespace.pods().get(&name).await?;
            anyhow::ensure!(pod.uid().as_deref() != Some(uid), "it is still the old one");
            Ok(())
        })
        .await;
        self.namespace.wait_until_ready(&name).await.unwrap()
    }
}

/// A role's entry.
pub fn role(status: &PpoJobStatus, role: Role) -> &RoleStatus {
    status.roles.iter().find(|status| status.name == role).unwrap()
}

/// A condition's (status, reason, message).
pub fn condition(status: &PpoJobStatus, kind: &str) -> (String, String, String) {
    let condition = status.conditions.iter().find(|condition| condition.type_ == kind);
    let condition = condition.unwrap_or_else(|| panic!("no condition {kind} in {:?}", status.conditions));
    (
        condition.status.clone(),
        condition.reason.clone(),
        condition.message.clone(),
    )
}

/// The value of a variable in a pod's container `worker`.
pub fn variable(pod: &Pod, name: &str) -> Option<String> {
    let containers = &pod.spec.as_ref()?.containers;
    let worker = containers.iter().find(|container| container.name == "worker")?;
    worker
        .env
        .as_ref()?
        .iter()
        .find(|variable| variable.name == name)?
        .value
        .clone()
}
