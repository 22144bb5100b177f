//! Two jobs of which the node has room for one and a part of the other.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use ppo_crds::status::{Phase, PpoJobStatus};
use ppo_tests::{GangScheduler, NODE, install_crd};
use serde_json::{Value, json};

use super::holders::Holders;
use crate::job::{Job, NAME};
use crate::world::World;

/// Pods of a job: an actor, a reference, an engine.
pub const GANG: usize = 3;

/// Enough that the other one is seen to wait.
pub const STEPS: u64 = 60;

/// What the node has: a job's, and room for one more pod. Without gangs both jobs would get a part and wait for ever.
const CAPACITY: usize = GANG + 1;

/// Two jobs that the node has room for one of.
pub struct Rivals<'a> {
    world: &'a World,
    jobs: [Job<'a>; 2],
    holders: Holders,
}

impl<'a> Rivals<'a> {
    /// The node gets the resource `test.ppojob.dev/<name>`, of which every pod wants one.
    pub async fn prepare(world: &'a World, name: &str, patch: Value, template: Value) -> Self {
        let client = world.cluster.control_plane().client().await.unwrap();
        let resource = resource(name);
        let amount = json!({&resource: CAPACITY.to_string()});
        let advertised = Patch::Merge(json!({"status": {"capacity": amount, "allocatable": amount}}));
        let nodes: Api<Node> = Api::all(client.clone());
        nodes
            .patch_status(NODE, &PatchParams::default(), &advertised)
            .await
            .unwrap();
        let jobs = [
            job(world, &format!("{name}-a"), &resource, &patch, &template).await,
            job(world, &format!("{name}-b"), &resource, &patch, &template).await,
        ];
        let namespaces: BTreeSet<String> = jobs.iter().map(|job| job.namespace.name.clone()).collect();
        let holders = Holders::watch(client, namespaces);
        Self { world, jobs, holders }
    }

    /// Both.
    pub fn jobs(&self) -> impl Iterator<Item = &Job<'a>> {
        self.jobs.iter()
    }

    /// Gives the cluster a scheduler's definitions, and no process.
    pub async fn install(&self, scheduler: GangScheduler) {
        let client = self.world.cluster.control_plane().client().await.unwrap();
        for crd in scheduler.crds().await.unwrap() {
            install_crd(&client, &crd).await.unwrap();
        }
    }

    /// Applies both at once.
    pub async fn apply(&self) {
        let [one, other] = &self.jobs;
        tokio::join!(one.apply(), other.apply());
    }

    /// The job that is placed first, and the other one.
    pub async fn first(&self) -> (&Job<'a>, &Job<'a>) {
        let [one, other] = &self.jobs;
        let waits = [None, Some(Phase::Pending), Some(Phase::Queued), Some(Phase::Scheduling)];
        one.wait("one of two to be placed", async || {
            for (job, rival) in [(one, other), (other, one)] {
                if !waits.contains(&job.status().await.phase) {
                    return Ok((job, rival));
                }
            }
            let status = other.status().await;
            anyhow::bail!("the other: {}", serde_yaml::to_string(&status)?)
        })
        .await
    }

    /// No pod of one had the node while the other had it, and both had it whole.
    pub fn never_met(&self) {
        self.holders.never_met(GANG);
    }
}

/// What the pods of the jobs of that name want one of.
pub fn resource(name: &str) -> String {
    format!("test.ppojob.dev/{name}")
}

/// A job whose pods want one of the resource each, and what `template` says.
pub async fn job<'a>(world: &'a World, prefix: &str, resource: &str, patch: &Value, template: &Value) -> Job<'a> {
    let one = json!({resource: "1"});
    let container = json!({
        "name": "worker", "env": [{"name": "PPO_THREADS", "value": "1"}],
        "resources": {"requests": one, "limits": one},
    });
    let mut spec = template.clone();
    spec["containers"] = json!([container]);
    let role = json!({"template": {"spec": spec}});
    let mut whole = json!({"steps": STEPS, "roles": {"actor": role, "reference": role, "rollout": role}});
    whole["roles"]["rollout"]["replicas"] = json!(1);
    for (field, value) in patch.as_object().unwrap() {
        whole[field] = value.clone();
    }
    Job::prepare(world, prefix, whole).await
}

/// Waits until the job says that its scheduler is silent, in these words, and `kubectl ppo why` with it.
pub async fn says_that_nobody_looks(job: &Job<'_>, words: &str) {
    gang(job, "SchedulerSilent", words).await;
    let why = job.ppo(&["why", NAME]).await;
    println!("{}", why.stdout);
    assert_eq!(why.code, Some(3), "{why:?}");
    for part in ["No scheduler looks at the job", words, "What helps: start it"] {
        assert!(why.stdout.contains(part), "{part:?} is not in {}", why.stdout);
    }
}

/// Waits until the job says that no pod of it has a node, in the scheduler's words.
pub async fn waits_for_nodes(job: &Job<'_>) {
    gang(job, "WaitsForNodes", &format!("0 of {GANG} pods have nodes")).await;
}

async fn gang(job: &Job<'_>, reason: &str, words: &str) {
    job.reaches(&format!("{reason}, {words:?}"), |status: &PpoJobStatus| {
        let mut conditions = status.conditions.iter();
        let gang = conditions.find(|condition| condition.type_ == "GangScheduled");
        gang.is_some_and(|gang| gang.status == "False" && gang.reason == reason && gang.message.contains(words))
    })
    .await;
}
