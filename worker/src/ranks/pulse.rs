//! Signs of life: each rank keeps writing what it does into the store, from a thread and a connection of its own, so that a rank that
//! waits in vain can say which one it waited for.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use parking_lot::{Condvar, Mutex};

use super::meeting::Meeting;
use crate::native::store::Store;

/// Set by one that is about to end, or by the first who finds out who is lost, for those that find rank 0 gone after it.
const LOST: &str = "lost";

/// What a rank does first.
pub const JOINING: &str = "joining";

/// This rank's signs of life.
#[derive(Debug)]
pub struct Pulse {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    now: Mutex<Now>,
    changed: Condvar,
}

#[derive(Debug)]
struct Now {
    stage: String,
    over: bool,
}

fn key(rank: usize) -> String {
    format!("pulse/{rank}")
}

impl Pulse {
    /// Begins to show them in `store`, a connection for this alone.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(store: Store, rank: usize, beat: Duration) -> Result<Self> {
        let now = Now {
            stage: JOINING.into(),
            over: false,
        };
        let shared = Arc::new(Shared {
            now: Mutex::new(now),
            changed: Condvar::new(),
        });
        let its = shared.clone();
        let thread = std::thread::Builder::new().name("pulse".into()).spawn(move || {
            let mut count = 0u64;
            loop {
                let now = its.now.lock();
                if now.over {
                    return;
                }
                let sign = format!("{count} {}", now.stage);
                drop(now);
                // A store that is gone shows in the next collective; here there is nobody to tell.
                if store.set(&key(rank), sign.as_bytes()).is_err() {
                    return;
                }
                count += 1;
                let mut now = its.now.lock();
                its.changed.wait_while_for(&mut now, |now| !now.over, beat);
            }
        });
        Ok(Self {
            shared,
            thread: Some(thread.context("cannot start a thread")?),
        })
    }

    /// Says what this rank does now.
    pub fn enter(&self, stage: String) {
        self.shared.now.lock().stage = stage;
    }

    /// What this rank does now.
    pub fn stage(&self) -> String {
        self.shared.now.lock().stage.clone()
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.shared.now.lock().over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads the signs of a rank and tells when they end.
#[derive(Debug)]
pub struct Watch {
    rank: usize,
    last: Option<Vec<u8>>,
    since: Instant,
}

impl Watch {
    /// Of one rank, from now on.
    pub fn new(rank: usize) -> Self {
        Self {
            rank,
            last: None,
            since: Instant::now(),
        }
    }

    /// For how long there was no new sign.
    ///
    /// # Errors
    /// When the store is gone.
    pub fn silent_for(&mut self, store: &Store) -> Result<Duration> {
        let sign = store.get(&key(self.rank))?;
        if sign != self.last {
            self.last = sign;
            self.since = Instant::now();
        }
        Ok(self.since.elapsed())
    }

    /// What the rank last said it does.
    pub fn stage(&self) -> String {
        let sign = self.last.as_deref().map(String::from_utf8_lossy);
        let stage = sign
            .as_deref()
            .and_then(|sign| Some(sign.split_once(' ')?.1.to_owned()));
        stage.unwrap_or_else(|| "starting".into())
    }

    /// What is said of the rank when it shows no more signs.
    pub fn lost(&self, meeting: &Meeting) -> String {
        format!("{} is lost; it was last in {}", meeting.name(self.rank), self.stage())
    }
}

/// Says who is lost, unless somebody did.
///
/// # Errors
/// When the store is gone.
pub fn say_lost(store: &Store, words: &str) -> Result<()> {
    match store.get(LOST)? {
        Some(_) => Ok(()),
        None => store.set(LOST, words.as_bytes()),
    }
}

/// Who of the other ranks is lost, in words. It takes three beats to tell.
pub fn diagnose(store: &Store, meeting: &Meeting, mine: &str) -> String {
    let found = (|| -> Result<String> {
        let others = (0..meeting.count).filter(|rank| *rank != meeting.rank);
        let mut watches: Vec<Watch> = others.map(Watch::new).collect();
        for watch in &mut watches {
            watch.silent_for(store)?;
        }
        let window = meeting.timing.beat * 3;
        if let Some(lost) = store.wait(LOST, window)? {
            return Ok(String::from_utf8_lossy(&lost).into_owned());
        }
        let mut lost = Vec::new();
        let mut elsewhere = Vec::new();
        for watch in &mut watches {
            let silent = watch.silent_for(store)? >= window;
            match watch.stage() {
                _ if silent => lost.push(watch.lost(meeting)),
                stage if stage != mine => elsewhere.push(format!("{} is in {stage}", meeting.name(watch.rank))),
                _ => {}
            }
        }
        if !lost.is_empty() {
            let words = lost.join("; ");
            store.set(LOST, words.as_bytes())?;
            return Ok(words);
        }
        elsewhere.insert(0, "no rank is lost".to_owned());
        Ok(elsewhere.join("; "))
    })();
    found.unwrap_or_else(|_| format!("{} is lost, where the ranks meet", meeting.name(0)))
}
