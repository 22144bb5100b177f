//! The operator's life: serve, wait to lead, act, hand over.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use futures::future::try_join_all;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::runtime::events::Reporter;
use tokio::sync::{Semaphore, broadcast, watch};
use tokio::task::JoinSet;

use crate::context::Context;
use crate::contract::{self, Contract};
use crate::controller::{Scope, control};
use crate::events::Recorders;
use crate::http::{self, Shown};
use crate::lease::Candidate;
use crate::metrics::Metrics;
use crate::settings::PodSettings;
use crate::world::World;

/// For the first look at the CRD.
const CONTRACT_DEADLINE: Duration = Duration::from_secs(30);
/// For reconciles under way when the operator is told to stop.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);

/// Kinds of gang schedulers that can be found at once.
const NEW_KINDS: usize = 16;

/// Writes under way at once, over all jobs. Each takes a connection of its own; more of them make the API server no faster.
const CONCURRENT_WRITES: usize = 32;

/// What the operator was started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Namespaces to look after; none: all.
    pub namespaces: Vec<String>,
    /// Where `/metrics` and the probes are served.
    pub http_address: SocketAddr,
    /// Reconciles side by side.
    pub concurrency: u16,
    /// Between two questions to an actor.
    pub report_interval: Duration,
    /// For one reconcile: one that waits longer for an answer is ended and tried again.
    pub reconcile_deadline: Duration,
    /// The Lease to hold; None: this process alone acts.
    pub lease: Option<LeaseOptions>,
    /// Name of this process among the operator's replicas.
    pub identity: String,
    /// How pods are made.
    pub pods: PodSettings,
}

#[cfg(test)]
impl Options {
    /// Those of an operator that alone looks after all namespaces.
    pub fn plain() -> Self {
        Self {
            namespaces: Vec::new(),
            http_address: SocketAddr::from(([127, 0, 0, 1], 0)),
            concurrency: 1,
            report_interval: Duration::from_secs(1),
            reconcile_deadline: Duration::from_secs(60),
            lease: None,
            identity: "one".into(),
            pods: PodSettings::default(),
        }
    }
}

/// Which Lease decides who acts.
#[derive(Clone, Debug)]
pub struct LeaseOptions {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Runs until `stop` turns true.
///
/// # Errors
/// When the address is taken, something cannot be watched, or leadership was lost: start again.
pub async fn run(client: Client, options: Options, mut stop: watch::Receiver<bool>) -> anyhow::Result<()> {
    let (contract_state, contract) = watch::channel(Contract::Unknown);
    let (ready, is_ready) = watch::channel(false);
    let metrics = Arc::new(Metrics::new().context("the metrics are wrong")?);
    let context = Arc::new(context(client.clone(), &options, metrics, contract.clone()));
    let listener = http::bind(options.http_address).await?;
    let shown = Shown {
        context: context.clone(),
        ready: is_ready,
    };
    // Dropped at the end, and the tasks with it.
    let mut tasks = JoinSet::new();
    tasks.spawn(http::serve(listener, shown));
    let own = ppo_crds::contract().context("this operator's own CRD is wrong")?;
    tasks.spawn(async {
        contract::follow(client, own, contract_state).await;
        Ok(())
    });
    tokio::select! {
        looked = contract::looked_at(contract, CONTRACT_DEADLINE) => looked?,
        _ = stop.wait_for(|stop| *stop) => return Ok(()),
    }
    let acting = lead_and_act(context, &options, ready, stop);
    tokio::select! {
        ended = acting => ended,
        Some(failed) = tasks.join_next() => failed.context("a task ended")?,
    }
}

async fn lead_and_act(
    context: Arc<Context>,
    options: &Options,
    ready: watch::Sender<bool>,
    mut stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let Some(lease) = &options.lease else {
        context.metrics.is_leader.with_label_values(&[""]).set(1);
        return act(context, options, &ready, stop).await;
    };
    let is_leader = context.metrics.is_leader.with_label_values(&[&lease.name]);
    let candidate = Candidate::new(context.client.clone(), &lease.namespace, &lease.name, &options.identity);
    // One that waits is as ready as it can be.
    ready.send_replace(true);
    tracing::info!(lease = lease.name, identity = options.identity, "waits to lead");
    let term = tokio::select! {
        term = candidate.lead() => term,
        _ = stop.wait_for(|stop| *stop) => return Ok(()),
    };
    ready.send_replace(false);
    is_leader.set(1);
    tracing::info!("leads");
    let ended = tokio::select! {
        ended = act(context.clone(), options, &ready, stop) => ended,
        why = candidate.hold(term) => Err(anyhow::anyhow!("{why}; this process stops acting")),
    };
    is_leader.set(0);
    candidate.release().await;
    ended
}

/// Works on every scope until told to stop, then finishes what is under way.
async fn act(
    context: Arc<Context>,
    options: &Options,
    ready: &watch::Sender<bool>,
    mut stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    context.acting_since.get_or_init(Timestamp::now);
    tokio::select! {
        found = context.served.refresh(&context.client) => {
            found.context("cannot ask which gang schedulers there are")?;
        }
        _ = stop.wait_for(|stop| *stop) => return Ok(()),
    }
    let scopes: Vec<Option<String>> = match options.namespaces.as_slice() {
        [] => vec![None],
        names => names.iter().cloned().map(Some).collect(),
    };
    let (answered, mut all_answered): (Vec<_>, Vec<_>) = scopes.iter().map(|_| watch::channel(false)).unzip();
    let is_one_of_several = scopes.len() > 1;
    let working = scopes.into_iter().zip(answered).map(|(namespace, answered)| {
        let scope = Scope {
            namespace,
            is_one_of_several,
            concurrency: options.concurrency,
        };
        control(context.clone(), scope, answered, stop.clone())
    });
    let announced = async {
        announce(&mut all_answered, ready).await;
        std::future::pending::<()>().await;
    };
    let working = try_join_all(working);
    let drained = async {
        let _ = stop.wait_for(|stop| *stop).await;
        tokio::time::sleep(DRAIN_DEADLINE).await;
    };
    tokio::select! {
        ended = working => ended.map(drop),
        () = announced => Ok(()),
        () = drained => {
            tracing::warn!("reconciles were still under way after {} s", DRAIN_DEADLINE.as_secs());
            Ok(())
        }
    }
}

/// Tells that this process is ready once each scope has its caches, or is late and was told of: one whose namespace is gone would keep
/// the leader from being ready for ever, and with it an upgrade that waits for that.
async fn announce(scopes: &mut [watch::Receiver<bool>], ready: &watch::Sender<bool>) {
    for answered in scopes {
        // A scope that failed ends the process.
        let _ = answered.wait_for(|done| *done).await;
    }
    ready.send_replace(true);
}

/// What every reconcile shares, before any.
pub(crate) fn context(
    client: Client,
    options: &Options,
    metrics: Arc<Metrics>,
    contract: watch::Receiver<Contract>,
) -> Context {
    let reporter = Reporter {
        controller: "ppo-operator".into(),
        instance: Some(options.identity.clone()),
    };
    Context {
        acting_since: OnceLock::new(),
        report_interval: options.report_interval,
        reconcile_deadline: options.reconcile_deadline,
        recorders: Recorders::new(client.clone(), reporter),
        client,
        settings: options.pods.clone(),
        world: Arc::new(World::default()),
        listed: Default::default(),
        jobs: Default::default(),
        expected: Default::default(),
        queued: Default::default(),
        writes: Semaphore::new(CONCURRENT_WRITES),
        reports: Default::default(),
        served: Default::default(),
        flavors: Default::default(),
        unapproved: Default::default(),
        refused: Default::default(),
        unreadable: Default::default(),
        new_kinds: broadcast::channel(NEW_KINDS).0,
        contract,
        metrics,
        backoff: Default::default(),
        minor: Default::default(),
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use kube::Config;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    /// What an operator ends with that is told to stop while it waits for the first answer of an API server that gives none.
    async fn stopped(
        operate: impl AsyncFnOnce(Client, watch::Receiver<bool>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let client = Client::try_from(Config::new(url.parse().unwrap())).unwrap();
        let (stop, is_stopped) = watch::channel(false);
        let asked = async {
            let connection = silent.accept().await.unwrap();
            stop.send_replace(true);
            connection
        };
        let both = async { tokio::join!(operate(client, is_stopped), asked) };
        // Shorter than any deadline of the operator's own.
        let (ended, _connection) = timeout(Duration::from_secs(10), both).await.unwrap();
        ended
    }

    #[tokio::test]
    async fn it_stops_at_once_though_the_api_server_does_not_answer() {
        stopped(async |client, stop| run(client, Options::plain(), stop).await)
            .await
            .unwrap();
        let acting = async |client: Client, stop: watch::Receiver<bool>| {
            let options = Options::plain();
            let metrics = Arc::new(Metrics::new().unwrap());
            let context = context(client, &options, metrics, watch::channel(Contract::Same).1);
            act(Arc::new(context), &options, &watch::channel(false).0, stop).await
        };
        stopped(acting).await.unwrap();
    }

    #[test]
    fn it_is_ready_once_each_scope_has_its_caches_or_was_told_of_as_late() {
        let (ready, is_ready) = watch::channel(false);
        let (synced, first) = watch::channel(false);
        let (late, second) = watch::channel(false);
        let mut scopes = [first, second];
        synced.send_replace(true);
        assert!(announce(&mut scopes, &ready).now_or_never().is_none());
        assert!(!*is_ready.borrow());
        late.send_replace(true);
        assert!(announce(&mut scopes, &ready).now_or_never().is_some());
        assert!(*is_ready.borrow());
    }
}
