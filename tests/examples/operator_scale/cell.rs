//! One system at one setting, on a control plane of its own.

use std::time::{Duration, Instant};

use anyhow::Result;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use ppo_tests::{ControlPlane, Namespace};
use serde_json::json;
use tokio::time::sleep;

use crate::driver::{create, until_all_run, until_pods};
use crate::figures::Measured;
use crate::process::{Process, Usage};
use crate::requests;
use crate::setting::Setting;
use crate::systems::System;

/// For which a system is watched at rest.
const REST: Duration = Duration::from_secs(60);
/// For which it is watched after a small change, and within which it must have come to rest.
const AFTERMATH: Duration = Duration::from_secs(8);
/// GPUs, and so pods, of a fake node.
const PODS_PER_NODE: u32 = 100;

/// A system's jobs in the namespace in which they are measured.
struct Bench<'a> {
    system: System,
    namespace: &'a Namespace<'a>,
    jobs: Api<DynamicObject>,
}

/// Measures.
///
/// # Errors
/// When something cannot be built, does not start, ends, or is not done in time.
pub async fn measure(system: System, setting: Setting) -> Result<Measured> {
    system.build().await?;
    let cluster = ControlPlane::start(system.control_plane().await?).await?;
    let namespace = cluster.namespace("scale").await?;
    let pods = setting.jobs * system.pods(setting);
    // One more than needed: what the warm-up leaves must hold up nobody.
    let nodes = pods.div_ceil(PODS_PER_NODE as usize) + 1;
    namespace.gpu_nodes(nodes, PODS_PER_NODE).await?;
    let mut processes = system.start(&cluster).await?;
    let bench = Bench {
        system,
        jobs: Api::namespaced_with(namespace.client.clone(), &namespace.name, &system.resource()),
        namespace: &namespace,
    };
    let done = bench.figures(setting, pods, &mut processes).await;
    // A process that has ended is the reason for whatever else went wrong.
    for process in &mut processes {
        process.check()?;
    }
    done
}

impl Bench<'_> {
    async fn figures(&self, setting: Setting, pods: usize, processes: &mut [Process]) -> Result<Measured> {
        self.warm_up().await?;
        let (_, start) = self.namespace.cluster.audit_events(0)?;
        let base = Usage::sum(processes)?;
        let began = Instant::now();
        let each = self.system.pods(setting);
        let jobs = (0..setting.jobs).map(|index| self.system.job(&format!("job-{index}"), each));
        let jobs = jobs.collect::<Result<Vec<DynamicObject>>>()?;
        let runs = |job: &DynamicObject| self.system.runs(job, each);
        let (pods_exist, all_run, ()) = tokio::try_join!(
            until_pods(self.client(), &self.namespace.name, pods, began),
            until_all_run(self.jobs.clone(), setting.jobs, runs, began),
            create(&self.jobs, jobs),
        )?;
        let busy = Usage::sum(processes)?;
        sleep(AFTERMATH).await;
        let (events, position) = self.namespace.cluster.audit_events(start)?;
        let requests = requests::of(&events, self.system.user_agents());
        let (at_rest, position) = if setting.is_watched_at_rest() {
            let (count, position) = self.requests_within(REST, position).await?;
            (Some(count), position)
        } else {
            (None, position)
        };
        self.touch().await?;
        let (after_touch, position) = self.requests_within(AFTERMATH, position).await?;
        self.jobs.delete("job-0", &DeleteParams::background()).await?;
        let (after_deletion, _) = self.requests_within(AFTERMATH, position).await?;
        Ok(Measured {
            pods,
            pods_exist,
            all_run,
            base,
            busy,
            by_agent: requests::by_agent(&events),
            requests,
            at_rest,
            after_touch,
            after_deletion,
        })
    }

    /// One job comes and goes: then caches are filled, lazy things made, and the system is known to work.
    async fn warm_up(&self) -> Result<()> {
        let pods = self.system.pods(Setting { jobs: 1, pods: 1 });
        create(&self.jobs, vec![self.system.job("warm-up", pods)?]).await?;
        let runs = |job: &DynamicObject| self.system.runs(job, pods);
        until_all_run(self.jobs.clone(), 1, runs, Instant::now()).await?;
        self.jobs.delete("warm-up", &DeleteParams::background()).await?;
        until_pods(self.client(), &self.namespace.name, 0, Instant::now()).await?;
        sleep(AFTERMATH).await;
        Ok(())
    }

    async fn touch(&self) -> Result<()> {
        let note = Patch::Merge(json!({"metadata": {"annotations": {"note": "touched"}}}));
        self.jobs.patch("job-0", &PatchParams::default(), &note).await?;
        Ok(())
    }

    /// The system's requests from now on, but for its lease and renewed watches, and where the audit log then ends.
    async fn requests_within(&self, time: Duration, position: usize) -> Result<(usize, usize)> {
        sleep(time).await;
        let (events, position) = self.namespace.cluster.audit_events(position)?;
        let requests = requests::of(&events, self.system.user_agents());
        Ok((requests::besides_leases_and_watches(&requests), position))
    }

    fn client(&self) -> &Client {
        &self.namespace.client
    }
}
