//! Deals a step's requests to the engines that are there: a slow one gets fewer, a dead one's go to others with the same
//! seeds and so come back with the same tokens, and an engine that comes late gets the published weights first.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::endpoint::Endpoint;
use super::transfers::{Transfers, deliver};
use super::work::Work;
use super::{CallError, Caller, Members, Pending, Publication};
use crate::engine::{Completion, Request};
use crate::model::MergedWeights;
use crate::stop::StopFlag;
use crate::telemetry::Live;

/// Between two looks for engines that are new or back.
const LOOK: Duration = Duration::from_secs(1);
/// After an engine failed it is left alone for so long, then twice as long, up to [`LONGEST_REST`].
const FIRST_REST: Duration = Duration::from_secs(1);
/// See [`FIRST_REST`].
const LONGEST_REST: Duration = Duration::from_secs(30);
/// To stream weights to one engine.
const UPDATE_DEADLINE: Duration = Duration::from_secs(600);
/// An engine takes at most this part of its even share at once; the rest goes to whoever is done first.
const SHARE: f64 = 0.75;

/// What a dealer needs to know.
pub struct DealerOptions {
    /// Where the engines are.
    pub members: Members,
    /// Below so many engines no request is dealt (`roles.rollout.minReplicas`).
    pub floor: usize,
    /// For `floor` engines to be ready.
    pub floor_deadline: Duration,
    /// Calls them.
    pub caller: Caller,
    /// Where engines get weights from.
    pub publication: Publication,
    /// For engines that take weights by NCCL. None: all get them over HTTP.
    pub transfers: Option<Transfers>,
    /// Whether engines draw while the trained tensors change: what is published is a copy of them then, so that an engine
    /// which starts in that time gets the version that it is to draw with.
    pub copies: bool,
}

/// The engines of a job, behind HTTP.
pub struct Dealer {
    options: Arc<DealerOptions>,
    runtime: tokio::runtime::Handle,
    live: Arc<Live>,
    stop: StopFlag,
    /// What is published, where that is a copy.
    copy: Option<MergedWeights>,
    /// The version that every sample has to be drawn with.
    version: AtomicU64,
    /// Samples whose engine failed before it answered, since they were last asked for.
    drawn_again: Arc<AtomicU64>,
}

impl Dealer {
    /// A dealer of `weights`, version `version`. Nothing is asked of the engines yet.
    ///
    /// # Errors
    /// When memory does not suffice for a copy.
    pub fn new(
        options: DealerOptions,
        weights: MergedWeights,
        version: u64,
        runtime: tokio::runtime::Handle,
        live: Arc<Live>,
        stop: StopFlag,
    ) -> Result<Self> {
        let copy = options.copies.then(|| weights.deep_clone()).transpose()?;
        let published = copy.as_ref().map_or(weights, MergedWeights::shallow_clone);
        options.publication.publish(published, version);
        Ok(Self {
            options: Arc::new(options),
            runtime,
            live,
            stop,
            copy,
            version: AtomicU64::new(version),
            drawn_again: Arc::default(),
        })
    }

    /// Samples for all requests, all drawn by the published version.
    ///
    /// # Errors
    /// When a request is refused, too few engines are ready in time, or not all is done within `deadline`, with the last
    /// failure of each engine; [`Interrupted`](crate::stop::Interrupted).
    pub fn generate(&self, requests: Vec<Request>, deadline: Duration) -> Result<Vec<Vec<Completion>>> {
        let pending = self.start(requests, deadline);
        let generated = pending.collect(&self.stop, Duration::ZERO, &self.live)?;
        Ok(generated.completions)
    }

    /// Asks for what [`generate`](Self::generate) gives and does not wait for it.
    pub fn start(&self, requests: Vec<Request>, deadline: Duration) -> Pending {
        let deal = Deal {
            options: self.options.clone(),
            version: self.version.load(Ordering::Relaxed),
            work: Arc::new(Work::new(requests, self.drawn_again.clone())),
            deadline,
        };
        Pending::start(&self.runtime, |waited_for| deal.run(waited_for))
    }

    /// Gives the weights to every engine that is there, all at once. One that fails gets them before it is next asked.
    ///
    /// # Errors
    /// When the weights are not those of the model; engines that fail are logged.
    pub fn publish(&self, weights: MergedWeights, version: u64, deadline: Duration) -> Result<()> {
        let publication = &self.options.publication;
        let weights = match &self.copy {
            None => weights,
            Some(copy) => {
                publication.withdraw();
                copy.overwrite(&weights)?;
                copy.shallow_clone()
            }
        };
        publication.publish(weights, version);
        self.version.store(version, Ordering::Relaxed);
        self.runtime.block_on(async {
            let mut updates = JoinSet::new();
            for member in self.options.members.present().await {
                let endpoint = Endpoint::new(member, self.options.caller.clone());
                let options = self.options.clone();
                updates.spawn(async move {
                    let (transfers, publication) = (options.transfers.as_ref(), &options.publication);
                    deliver(transfers, &endpoint, publication, version, deadline).await
                });
            }
            while let Some(updated) = updates.join_next().await {
                match updated {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::warn!("{error}; it gets version {version} before it is asked again"),
                    Err(error) => tracing::warn!("publishing version {version}: {error}"),
                }
            }
        });
        Ok(())
    }

    /// Samples whose engine failed before it answered, so that another one drew them, since this was last asked for.
    pub fn take_drawn_again(&self) -> u64 {
        self.drawn_again.swap(0, Ordering::Relaxed)
    }

    /// The trained tensors are about to change: engines read them no more. Of a copy they go on reading.
    pub fn withdraw(&self) {
        if self.copy.is_none() {
            self.options.publication.withdraw();
        }
    }
}

/// Requests on their way through the engines, all to be drawn by one version.
struct Deal {
    options: Arc<DealerOptions>,
    version: u64,
    work: Arc<Work>,
    deadline: Duration,
}

impl Deal {
    async fn run(self, waited_for: watch::Sender<String>) -> Result<Vec<Vec<Completion>>> {
        let began = Instant::now();
        let work = &self.work;
        let mut changed = work.watch();
        let mut engines = Engines::new(self.options.floor);
        loop {
            if let Some(answers) = work.answers() {
                return Ok(answers);
            }
            if let Some(refusal) = work.refusal() {
                return Err(anyhow!(refusal).context("a request was refused"));
            }
            self.check_time(began, &engines, *changed.borrow())?;
            for member in self.options.members.present().await {
                if engines.may_start(&member.name) {
                    let endpoint = Endpoint::new(member, self.options.caller.clone());
                    let published = (self.options.publication.clone(), self.version);
                    engines.start(endpoint, published, work.clone());
                }
            }
            let whom = engines.waited_for(&self.options.members);
            waited_for.send_if_modified(|told| std::mem::replace(told, whom) != *told);
            tokio::select! {
                Some(ended) = engines.tasks.join_next() => engines.ended(ended),
                // The sender lives as long as the work.
                _ = changed.changed() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    fn check_time(&self, began: Instant, engines: &Engines, left: usize) -> Result<()> {
        let (ready, floor) = (*engines.ready.borrow(), self.options.floor);
        let late = |limit: Duration, what: String| -> Result<()> {
            bail!(
                "{what} within {} s; {}",
                limit.as_secs(),
                engines.failures(&self.options.members)
            )
        };
        if ready < floor && began.elapsed() > self.options.floor_deadline {
            return late(
                self.options.floor_deadline,
                format!("only {ready} engines were ready, and roles.rollout.minReplicas is {floor},"),
            );
        }
        if began.elapsed() > self.deadline {
            return late(self.deadline, format!("{left} requests were not answered"));
        }
        Ok(())
    }
}

/// The engines at work in one step.
struct Engines {
    tasks: JoinSet<(String, Result<(), CallError>)>,
    /// By name: None while at work, else when it failed, how often, and why.
    known: HashMap<String, Option<Failed>>,
    floor: usize,
    ready: watch::Sender<usize>,
}

struct Failed {
    at: Instant,
    times: u32,
    error: String,
}

impl Engines {
    fn new(floor: usize) -> Self {
        Self {
            tasks: JoinSet::new(),
            known: HashMap::new(),
            floor,
            ready: watch::Sender::new(0),
        }
    }

    fn may_start(&self, name: &str) -> bool {
        match self.known.get(name) {
            None => true,
            Some(None) => false,
            Some(Some(failed)) => {
                let rest = FIRST_REST.saturating_mul(1 << failed.times.saturating_sub(1).min(8));
                failed.at.elapsed() >= rest.min(LONGEST_REST)
            }
        }
    }

    fn start(&mut self, endpoint: Endpoint, published: (Publication, u64), work: Arc<Work>) {
        let name = endpoint.name().to_owned();
        // An engine whose work is over is started again when requests come back.
        self.known.insert(name.clone(), None);
        let (ready, floor) = (self.ready.clone(), self.floor);
        self.tasks.spawn(async move {
            let ended = work_off(&endpoint, published, &work, &ready, floor).await;
            (name, ended)
        });
    }

    fn ended(&mut self, ended: Result<(String, Result<(), CallError>), tokio::task::JoinError>) {
        let (name, error) = match ended {
            Ok((_, Ok(()))) => return,
            Ok((name, Err(error))) => (name, error),
            Err(error) => {
                tracing::error!("an engine's task: {error}");
                return;
            }
        };
        let entry = self.known.entry(name).or_default();
        let times = entry.as_ref().map_or(0, |failed| failed.times) + 1;
        // While it starts it refuses connections: that is no news.
        tracing::debug!("{error}");
        *entry = Some(Failed {
            at: Instant::now(),
            times,
            error: error.to_string(),
        });
    }

    fn waited_for(&self, members: &Members) -> String {
        let at_work = self.known.iter().filter(|(_, failed)| failed.is_none());
        let mut names: Vec<&str> = at_work.map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        match names.is_empty() {
            true => members.words(),
            false => names.join(", "),
        }
    }

    fn failures(&self, members: &Members) -> String {
        let mut failures: Vec<&str> = self
            .known
            .values()
            .flatten()
            .map(|failed| failed.error.as_str())
            .collect();
        failures.sort_unstable();
        match failures.is_empty() {
            true => format!("waited for {}", self.waited_for(members)),
            false => failures.join("; "),
        }
    }
}

/// Counts an engine as ready for as long as it lives.
struct Ready<'a>(&'a watch::Sender<usize>);

impl<'a> Ready<'a> {
    fn count(ready: &'a watch::Sender<usize>) -> Self {
        ready.send_modify(|ready| *ready += 1);
        Self(ready)
    }
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|ready| *ready -= 1);
    }
}

/// One engine takes requests until none is left.
async fn work_off(
    endpoint: &Endpoint,
    (publication, version): (Publication, u64),
    work: &Work,
    ready: &watch::Sender<usize>,
    floor: usize,
) -> Result<(), CallError> {
    if endpoint.version().await? != version {
        endpoint.update_weights(&publication, version, UPDATE_DEADLINE).await?;
    }
    let _ready = Ready::count(ready);
    let mut enough = ready.subscribe();
    let mut changed = work.watch();
    tokio::select! {
        // The sender lives as long as the step.
        _ = enough.wait_for(|ready| *ready >= floor) => {}
        gone = endpoint.gone() => return Err(gone),
    }
    let mut calls = FuturesUnordered::new();
    let mut held = Held {
        work,
        numbers: Vec::new(),
    };
    let mut gone = std::pin::pin!(endpoint.gone());
    loop {
        let engines = (*ready.borrow()).max(1);
        let share = (work.count() as f64 / engines as f64 * SHARE).ceil().max(1.0) as usize;
        while calls.len() < share
            && let Some(number) = work.take()
        {
            held.numbers.push(number);
            calls.push(ask(endpoint, work, number, version));
        }
        if calls.is_empty() && *changed.borrow_and_update() == 0 {
            return Ok(());
        }
        tokio::select! {
            Some((number, answer)) = calls.next() => {
                match answer {
                    Ok(completions) => {
                        held.numbers.retain(|held| *held != number);
                        work.answer(number, completions);
                    }
                    Err(error) if error.may_pass => return Err(error),
                    Err(error) => {
                        work.refuse(error.clone());
                        return Err(error);
                    }
                }
            }
            // Another engine may have handed requests back, or answered the last one.
            _ = changed.changed(), if calls.len() < share => {}
            error = &mut gone => return Err(error),
        }
    }
}

/// Requests that an engine has; what it does not answer goes back, however its work ends.
struct Held<'a> {
    work: &'a Work,
    numbers: Vec<usize>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.numbers.iter().for_each(|number| self.work.put_back(*number));
    }
}

/// For one request; the step's own deadline is shorter where it matters.
const ONE_REQUEST: Duration = Duration::from_secs(3600);

async fn ask(
    endpoint: &Endpoint,
    work: &Work,
    number: usize,
    version: u64,
) -> (usize, Result<Vec<Completion>, CallError>) {
    let name = format!("v{version}-{number}");
    let answer = endpoint.generate(&name, work.request(number), ONE_REQUEST).await;
    // The fence: nothing that another version drew is used.
    let answer = answer.and_then(|completions| {
        let stale = completions
            .iter()
            .flat_map(|completion| &completion.versions)
            .find(|drawn| **drawn != version);
        match stale {
            None => Ok(completions),
            Some(drawn) => Err(endpoint.stale(*drawn, version)),
        }
    });
    (number, answer)
}

#[cfg(test)]
mod tests;
