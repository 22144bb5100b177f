//! A rank's connections to the others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use ppo_crds::report::exit_code;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::line::Lines;
use super::meeting::Meeting;
use super::order::Order;
use super::pulse::{JOINING, Pulse, Watch, diagnose, say_lost};
use crate::manifest::Invalid;
use crate::native::collective::{Failure, Group};
use crate::native::store::Store;
use crate::outcome::{self, RankLost};
use crate::stop::{Interrupted, StopFlag};

/// How often a wait looks whether the one it waits for still lives.
const LOOK: Duration = Duration::from_secs(1);
/// For a connection to rank 0's store, once it has answered.
const ANSWER: Duration = Duration::from_secs(10);
/// For one attempt to reach it, between which somebody may ask to stop.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Between two words in the log on who is waited for.
const SAID: Duration = Duration::from_secs(30);
/// Between two attempts to reach rank 0.
const PAUSE: Duration = Duration::from_millis(200);
/// Orders that stay in the store: every rank has read those before.
const ORDERS_KEPT: u64 = 16;

/// How an order failed at a rank.
#[derive(Deserialize, Serialize)]
struct Failed {
    words: String,
    /// The exit code that it would have ended with.
    code: i32,
}

impl Failed {
    /// For rank 0, which ends the run as it ended there: what nobody can run there, nobody can run again, and to be asked to stop is no
    /// failure.
    fn at(&self, name: &str) -> anyhow::Error {
        let words = format!("{name}: {}", self.words);
        match self.code {
            exit_code::BAD_CONFIGURATION => Invalid::new(words).into(),
            exit_code::INTERRUPTED => anyhow::Error::from(Interrupted).context(words),
            _ => anyhow!(words),
        }
    }
}

/// A rank's connections to the others.
#[derive(Debug)]
pub struct Link {
    /// Who they are.
    pub meeting: Meeting,
    /// What they compute together.
    pub group: Arc<Group>,
    /// This rank's signs of life.
    pub pulse: Pulse,
    /// They find nodes that vanish.
    pub lines: Lines,
    /// Number of the next order.
    next: std::sync::atomic::AtomicU64,
    // Last: it ends with rank 0's handle, and the others' signs of life with it.
    store: Arc<Store>,
}

impl Link {
    /// Meets the others at rank 0's store.
    ///
    /// # Errors
    /// When a rank does not come in time, by its name; [`Interrupted`](crate::stop::Interrupted).
    pub fn join(meeting: Meeting, stop: &StopFlag) -> Result<Self> {
        let mut wait = Wait::until(Instant::now() + meeting.timing.join);
        if meeting.rank == 0 {
            let store = Store::serve(meeting.port, meeting.timing.silence)?;
            await_all(&meeting, &store, &mut wait, stop)?;
            return Self::meet(meeting, store);
        }
        loop {
            let store = reach(&meeting, &mut wait, stop)?;
            match await_all(&meeting, &store, &mut wait, stop) {
                Ok(()) => return Self::meet(meeting, store),
                // Rank 0 may have been asked to stop, too, and be gone for that.
                Err(_) if stop.requested() => return Err(Interrupted.into()),
                Err(error) if wait.is_over() => return Err(error),
                // It may have been an older attempt's, whose pod still had the name.
                Err(error) => tracing::debug!("{error:#}; trying again"),
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// All are there: they begin to show signs of life, and to compute together.
    fn meet(meeting: Meeting, store: Store) -> Result<Self> {
        // Host and port of rank 0 are those that this rank found it at.
        let (host, port) = match meeting.rank {
            0 => ("127.0.0.1", store.port()),
            _ => (meeting.host.as_str(), meeting.port),
        };
        let Meeting {
            rank, count, attempt, ..
        } = meeting;
        let signs = Store::connect(host, port, ANSWER, meeting.timing.silence);
        let signs = signs.with_context(|| first_lost(&meeting, JOINING))?;
        let pulse = Pulse::start(signs, rank, meeting.timing.beat)?;
        let name = format!("attempt-{attempt}");
        let group = Group::join(
            &store,
            &name,
            &meeting.own_host,
            (rank, count),
            meeting.device,
            meeting.timing.collective,
        );
        let group = group.map_err(|error| {
            if !Failure::is_of_others(&error) {
                let name = meeting.name(rank);
                // The others would wait for it; where rank 0 is gone nobody does.
                let _ = say_lost(&store, &format!("{name} failed in {JOINING}: {error:#}"));
                return error.context(format!("{name} has met the others and cannot compute with them"));
            }
            let lost = find_lost(&store, &meeting, JOINING);
            let words = format!("the ranks met, but cannot reach each other: {lost}");
            error.context(RankLost(words))
        });
        let (group, store) = (Arc::new(group?), Arc::new(store));
        let lines = Lines::draw(&meeting, &store, &group).map_err(|error| {
            let name = meeting.name(rank);
            // The others wait for what rank 0 says next.
            let _ = say_lost(&store, &format!("{name} failed in {JOINING}: {error:#}"));
            if rank == 0 {
                leave_time_to_read(&meeting);
            }
            error.context(RankLost("the ranks met, but cannot reach each other".into()))
        })?;
        tracing::info!("{} of {count} has met the others", meeting.name(rank));
        Ok(Self {
            meeting,
            group,
            pulse,
            lines,
            next: 0.into(),
            store,
        })
    }

    /// Rank 0 says what all do next.
    ///
    /// # Errors
    /// When it cannot be said.
    pub fn order(&self, order: &Order) -> Result<()> {
        let number = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.store.set(&order_key(number), &serde_json::to_vec(order)?)?;
        if let Some(old) = number.checked_sub(ORDERS_KEPT) {
            self.store.delete(&order_key(old))?;
        }
        Ok(())
    }

    /// What rank 0 says next.
    ///
    /// # Errors
    /// When rank 0 is lost.
    pub fn next_order(&self) -> Result<Order> {
        let number = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut lead = Watch::new(0);
        // Of one that is lost before the first look below it is known then what it did.
        let _ = lead.silent_for(&self.store);
        loop {
            let lost = |lead: &Watch| RankLost(lead.lost(&self.meeting));
            let order = self.store.wait(&order_key(number), LOOK);
            if let Some(order) = order.with_context(|| lost(&lead))? {
                let wrong = || format!("{} says what this release does not know", self.meeting.name(0));
                return serde_json::from_slice(&order).with_context(wrong);
            }
            let silent = lead.silent_for(&self.store);
            let silent = silent.with_context(|| lost(&lead))?;
            if silent >= self.meeting.timing.silence {
                return Err(lost(&lead).into());
            }
        }
    }

    /// Tells rank 0 how the last order went, and what came of it.
    ///
    /// # Errors
    /// When rank 0 is gone.
    pub fn reply(&self, done: Result<impl Serialize, &anyhow::Error>) -> Result<()> {
        let done = done.map_err(|error| Failed {
            words: format!("{error:#}"),
            code: outcome::code(error),
        });
        let told = self
            .store
            .set(&self.reply_key(self.meeting.rank), &serde_json::to_vec(&done)?);
        told.with_context(|| first_lost(&self.meeting, &self.pulse.stage()))
    }

    /// Waits until all have carried out the last order: what came of it at each, from rank 1.
    ///
    /// # Errors
    /// What failed, by the rank's name; when one is lost or late.
    pub fn replies<T: DeserializeOwned>(&self, deadline: Duration) -> Result<Vec<T>> {
        let ends = Instant::now() + deadline;
        let mut replies = Vec::new();
        for rank in 1..self.meeting.count {
            let name = self.meeting.name(rank);
            let mut watch = Watch::new(rank);
            let reply = loop {
                if let Some(reply) = self.store.wait(&self.reply_key(rank), LOOK)? {
                    break reply;
                }
                let silent = watch.silent_for(&self.store)?;
                if silent >= self.meeting.timing.silence {
                    return Err(RankLost(watch.lost(&self.meeting)).into());
                }
                ensure!(
                    Instant::now() < ends,
                    "{name} is not done with {} within {} s",
                    watch.stage(),
                    deadline.as_secs()
                );
            };
            self.store.delete(&self.reply_key(rank))?;
            let reply: Result<T, Failed> = serde_json::from_slice(&reply)
                .with_context(|| format!("{name} replies what this release does not know"))?;
            match reply {
                Ok(reply) => replies.push(reply),
                Err(failed) => return Err(failed.at(&name)),
            }
        }
        Ok(replies)
    }

    /// Says why this rank is about to end, where nobody is known to be lost.
    ///
    /// # Errors
    /// When rank 0 is gone.
    pub fn leave_word(&self, error: &anyhow::Error) -> Result<()> {
        // Its store would not be heard of for as long as there is patience.
        if self.lines.lost().is_some() {
            return Ok(());
        }
        let name = self.meeting.name(self.meeting.rank);
        let (stage, words) = (self.pulse.stage(), format!("{error:#}"));
        // Most errors begin with it where this rank leads.
        let words = words.strip_prefix(&format!("{stage}: ")).unwrap_or(&words);
        say_lost(&self.store, &format!("{name} failed in {stage}: {words}"))
    }

    fn reply_key(&self, rank: usize) -> String {
        let last = self.next.load(std::sync::atomic::Ordering::Relaxed);
        format!("reply/{last}/{rank}")
    }

    /// A collective's failure, with the name of whoever is lost; the caller knows the stage. What failed in this process is not laid at the
    /// others' door.
    pub fn explain(&self, what: &str, error: anyhow::Error) -> anyhow::Error {
        if !Failure::is_of_others(&error) {
            return error.context(format!("{what} over the ranks failed here"));
        }
        let lost = match self.lines.lost() {
            Some(words) => words.to_owned(),
            None => find_lost(&self.store, &self.meeting, &self.pulse.stage()),
        };
        error.context(RankLost(format!("{what} over the ranks failed: {lost}")))
    }
}

/// That rank 0 does not answer, while this one was in `stage`.
fn first_lost(meeting: &Meeting, stage: &str) -> RankLost {
    RankLost(format!("{stage}: {} is lost, where the ranks meet", meeting.name(0)))
}

/// Who is lost, in words.
fn find_lost(store: &Store, meeting: &Meeting, stage: &str) -> String {
    let lost = diagnose(store, meeting, stage);
    if meeting.rank == 0 {
        leave_time_to_read(meeting);
    }
    lost
}

/// Others still read in rank 0's store who is lost.
fn leave_time_to_read(meeting: &Meeting) {
    std::thread::sleep(meeting.timing.beat * 4);
}

fn order_key(number: u64) -> String {
    format!("order/{number}")
}

fn arrival(attempt: u32, rank: usize) -> String {
    format!("attempt-{attempt}/arrived/{rank}")
}

/// A wait for others to come, of which the log says now and then for whom.
struct Wait {
    ends: Instant,
    says: Instant,
}

impl Wait {
    fn until(ends: Instant) -> Self {
        let says = Instant::now() + SAID;
        Self { ends, says }
    }

    fn left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }

    fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// `whom` has not come yet.
    fn goes_on(&mut self, whom: &str) {
        if Instant::now() >= self.says {
            tracing::info!("waits for {whom} to join, for {} s at most", self.left().as_secs());
            self.says = Instant::now() + SAID;
        }
    }
}

/// Rank 0's store; its pod may not even have an address yet.
fn reach(meeting: &Meeting, wait: &mut Wait, stop: &StopFlag) -> Result<Store> {
    loop {
        stop.check()?;
        let deadline = ATTEMPT.min(wait.left());
        match Store::connect(&meeting.host, meeting.port, deadline, meeting.timing.silence) {
            Ok(store) => return Ok(store),
            Err(error) if wait.is_over() => {
                return Err(error.context(format!(
                    "{} never came: nobody answered at {}:{} within {} s",
                    meeting.name(0),
                    meeting.host,
                    meeting.port,
                    meeting.timing.join.as_secs()
                )));
            }
            Err(error) => tracing::debug!("{error:#}"),
        }
        wait.goes_on(&format!("{} at {}:{}", meeting.name(0), meeting.host, meeting.port));
        std::thread::sleep(PAUSE);
    }
}

/// Says that this rank is there, and waits until all are.
fn await_all(meeting: &Meeting, store: &Store, wait: &mut Wait, stop: &StopFlag) -> Result<()> {
    store.set(&arrival(meeting.attempt, meeting.rank), meeting.own_host.as_bytes())?;
    (0..meeting.count).try_for_each(|other| await_arrival(meeting, store, other, wait, stop))
}

fn await_arrival(meeting: &Meeting, store: &Store, other: usize, wait: &mut Wait, stop: &StopFlag) -> Result<()> {
    loop {
        stop.check()?;
        let came = store.wait(&arrival(meeting.attempt, other), LOOK.min(meeting.timing.join));
        let came = came.with_context(|| format!("{} is gone, where the ranks meet", meeting.name(0)))?;
        if came.is_some() {
            return Ok(());
        }
        wait.goes_on(&meeting.name(other));
        ensure!(
            !wait.is_over(),
            "{} never joined: {} waited {} s for it; the log of its pod says why, or `kubectl describe pod` where it has none",
            meeting.name(other),
            meeting.name(meeting.rank),
            meeting.timing.join.as_secs()
        );
    }
}
