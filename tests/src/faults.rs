//! Faults between an operator and its API server: a service around a client's own that kills, refuses, loses answers, and
//! shows the past. The perturbations are those of Sieve (OSDI'22): intermediate, unobserved and stale states.
//!
//! The writes of all processes of one [`Faults`] are counted together, so that "the k-th write of a life" has a meaning
//! across restarts. Events and leases are not counted and never disturbed.

mod answer;
mod chance;
mod past;
mod process;
mod stream;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub use process::Process;

use chance::Chance;
use past::Past;
use stream::Disturbance;

use crate::{PATIENCE, wait_for};

/// So long without a write means that there is nothing left to write: longer than the pauses between two faults.
const QUIET: Duration = Duration::from_millis(3500);

/// So many events of one watch of a process are lost at the most. After each a watch waits twice as long before it lists again, and forgets that
/// only after two quiet minutes (kube's `DefaultBackoff`): with more of them a life would stand still for longer than tests wait.
const MOST_LOSSES: usize = 2;

/// When a process dies: around one of its writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The write is not sent.
    Before,
    /// The write is done and its answer is not seen.
    After,
}

/// What befalls a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process ends: no request of it is sent any more, no answer arrives.
    Kill(Moment),
    /// The API server refuses with this HTTP status and does nothing.
    Refuse(u16),
    /// The API server does it, and the connection breaks before the answer.
    LoseAnswer,
    /// The API server does it, and no answer ever comes: its machine was lost, and nobody closed the connection.
    SwallowAnswer,
}

/// Which faults there are, and what was written.
#[derive(Clone)]
pub struct Faults(Arc<Mutex<State>>);

struct State {
    script: Script,
    writes: Vec<String>,
    struck: usize,
    processes: usize,
    past: Past,
    stale_restarts: bool,
    losses: BTreeMap<Watch, usize>,
}

/// The number of a process and the path that it watches.
type Watch = (usize, String);

enum Script {
    None,
    Once(usize, Fault),
    Random(Box<Chance>),
}

impl Faults {
    /// No faults: writes are counted.
    pub fn none() -> Self {
        Self::scripted(Script::None)
    }

    /// One fault at the `write`-th write, counted from 1.
    pub fn at(write: usize, fault: Fault) -> Self {
        Self::scripted(Script::Once(write, fault))
    }

    /// Faults of all sorts, drawn from a generator with this seed, until [`stop`](Self::stop).
    pub fn random(seed: u64) -> Self {
        let faults = Self::scripted(Script::Random(Box::new(Chance::new(seed))));
        faults.0.lock().stale_restarts = true;
        faults
    }

    fn scripted(script: Script) -> Self {
        Self(Arc::new(Mutex::new(State {
            script,
            writes: Vec::new(),
            struck: 0,
            processes: 0,
            past: Past::default(),
            stale_restarts: false,
            losses: BTreeMap::new(),
        })))
    }

    /// A process that follows another first sees what [`remember`](Self::remember) saw last, as one that lists from an API
    /// server whose cache lags; its watches catch up a little later, each at its own time.
    pub fn with_stale_restarts(self) -> Self {
        self.0.lock().stale_restarts = true;
        self
    }

    /// No faults from now on.
    pub fn stop(&self) {
        let mut state = self.0.lock();
        state.script = Script::None;
        state.stale_restarts = false;
    }

    /// The writes so far, each as method and path.
    pub fn writes(&self) -> Vec<String> {
        self.0.lock().writes.clone()
    }

    /// Waits until nothing is written for a while.
    ///
    /// # Errors
    /// At the deadline: what was written last.
    pub async fn settled(&self) -> anyhow::Result<()> {
        wait_for("the operator to have nothing left to write", PATIENCE, async || {
            let before = self.writes().len();
            tokio::time::sleep(QUIET).await;
            let after = self.writes();
            anyhow::ensure!(after.len() == before, "{:#?}", &after[before..]);
            Ok(())
        })
        .await
    }

    /// How many faults befell a write.
    pub fn struck(&self) -> usize {
        self.0.lock().struck
    }

    /// Lists again what the processes list, for the one that starts next. Does nothing unless restarts are stale.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn remember(&self, client: &kube::Client) -> anyhow::Result<()> {
        if !self.0.lock().stale_restarts {
            return Ok(());
        }
        let lists = self.0.lock().past.lists();
        for list in lists {
            let answer = list.ask(client).await?;
            self.0.lock().past.keep(&list, answer);
        }
        Ok(())
    }

    /// Counts a write and says what befalls it.
    fn befalls(&self, write: String) -> Option<Fault> {
        let mut state = self.0.lock();
        state.writes.push(write);
        let count = state.writes.len();
        let fault = match &mut state.script {
            Script::None => None,
            Script::Once(at, fault) => (*at == count).then_some(*fault),
            Script::Random(chance) => chance.of_write(),
        };
        state.struck += usize::from(fault.is_some());
        fault
    }

    /// What befalls the next event of a watch.
    fn befalls_event(&self, watch: &Watch) -> Option<Disturbance> {
        let mut state = self.0.lock();
        let disturbance = match &mut state.script {
            Script::Random(chance) => chance.of_event()?,
            Script::None | Script::Once(..) => return None,
        };
        if matches!(disturbance, Disturbance::Lose(_)) {
            let losses = state.losses.entry(watch.clone()).or_default();
            *losses += 1;
            return (*losses <= MOST_LOSSES).then_some(disturbance);
        }
        Some(disturbance)
    }

    /// How much later than the list a process's watch begins.
    fn lag(&self, process: usize) -> Duration {
        let mut state = self.0.lock();
        if !state.stale_restarts || process == 1 {
            return Duration::ZERO;
        }
        // Different for every watch, so that the caches disagree with one another.
        state.past.next_lag()
    }
}
