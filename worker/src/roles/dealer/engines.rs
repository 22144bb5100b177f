//! The engines of one step: who is at work, who failed and rests.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::shift::work_off;
use crate::roles::endpoint::Endpoint;
use crate::roles::work::Work;
use crate::roles::{CallError, Members, Publication};

/// After an engine failed it is left alone for so long, then twice as long, up to [`LONGEST_REST`].
const FIRST_REST: Duration = Duration::from_secs(1);
/// See [`FIRST_REST`].
const LONGEST_REST: Duration = Duration::from_secs(30);

/// The engines at work in one step.
pub(super) struct Engines {
    pub(super) tasks: JoinSet<(String, Result<(), CallError>)>,
    /// By name: None while at work, else when it failed, how often, and why.
    known: HashMap<String, Option<Failed>>,
    floor: usize,
    pub(super) ready: watch::Sender<usize>,
}

struct Failed {
    at: Instant,
    times: u32,
    error: String,
}

impl Engines {
    pub(super) fn new(floor: usize) -> Self {
        Self {
            tasks: JoinSet::new(),
            known: HashMap::new(),
            floor,
            ready: watch::Sender::new(0),
        }
    }

    pub(super) fn may_start(&self, name: &str) -> bool {
        match self.known.get(name) {
            None => true,
            Some(None) => false,
            Some(Some(failed)) => {
                let rest = FIRST_REST.saturating_mul(1 << failed.times.saturating_sub(1).min(8));
                failed.at.elapsed() >= rest.min(LONGEST_REST)
            }
        }
    }

    pub(super) fn start(&mut self, endpoint: Endpoint, published: (Publication, u64), work: Arc<Work>) {
        let name = endpoint.name().to_owned();
        // An engine whose work is over is started again when requests come back.
        self.known.insert(name.clone(), None);
        let (ready, floor) = (self.ready.clone(), self.floor);
        self.tasks.spawn(async move {
            let ended = work_off(&endpoint, published, &work, &ready, floor).await;
            (name, ended)
        });
    }

    pub(super) fn ended(&mut self, ended: Result<(String, Result<(), CallError>), tokio::task::JoinError>) {
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

    pub(super) fn waited_for(&self, members: &Members) -> String {
        let at_work = self.known.iter().filter(|(_, failed)| failed.is_none());
        let mut names: Vec<&str> = at_work.map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        match names.is_empty() {
            true => members.words(),
            false => names.join(", "),
        }
    }

    pub(super) fn failures(&self, members: &Members) -> String {
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
