//! A pod with several GPUs runs a process for each: the pod's own process starts the others, and they end with it.

use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use ppo_crds::pod::env;
use ppo_crds::report::{Outcome, Reason};

use crate::native::process;
use crate::outcome::leave_word;
use crate::place::Place;

/// Between two looks whether one has ended.
const LOOK: Duration = Duration::from_secs(1);
/// For the ranks that have met to find that one is lost, and to say what it did: they know more.
const FOUND_BY_OTHERS: Duration = Duration::from_secs(60);

/// The other processes of this pod.
#[derive(Debug)]
pub struct Siblings(Arc<Children>);

/// By their places in the pod, from 1.
type Children = Mutex<Vec<Child>>;

impl Siblings {
    /// Starts the others, as this process was started. One of them starts nobody. Where one fails before the ranks have met, which
    /// nobody else would hear of before the last deadline, this process ends with its exit code.
    ///
    /// # Errors
    /// When a process cannot be started.
    pub fn start(place: &Place) -> Result<Self> {
        let siblings = Self(Arc::default());
        if place.ranks.local > 0 {
            return Ok(siblings);
        }
        for local in 1..place.ranks.per_pod.min(place.ranks.count) {
            let program = std::env::current_exe().context("cannot find the program of this process")?;
            let child = Command::new(program)
                .args(std::env::args_os().skip(1))
                .env(env::LOCAL_RANK, local.to_string())
                .spawn();
            let child = child.with_context(|| format!("cannot start process {local} of this pod"))?;
            siblings.0.lock().push(child);
        }
        let children = Arc::downgrade(&siblings.0);
        let watched = std::thread::Builder::new().name("siblings".into());
        watched
            .spawn(move || watch(&children))
            .context("cannot start a thread")?;
        Ok(siblings)
    }

    /// Whether this process is one that another process of its pod started.
    pub fn is_one() -> bool {
        std::env::var(env::LOCAL_RANK).is_ok_and(|local| local != "0")
    }
}

/// Until this process ends, or one of the others has failed and it has not.
fn watch(children: &Weak<Children>) {
    let (local, status) = loop {
        std::thread::sleep(LOOK);
        let Some(children) = children.upgrade() else { return };
        if let Some(failed) = failed(&mut children.lock()) {
            break failed;
        }
    };
    std::thread::sleep(FOUND_BY_OTHERS);
    if children.upgrade().is_none() {
        return;
    }
    let message = format!("process {local} of this pod ended with {status}; the log of this pod says why");
    tracing::error!("{message}");
    leave_word(&Outcome {
        reason: Reason::InternalError,
        message,
        progress: None,
    });
    process::end(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// The first one that has failed.
fn failed(children: &mut [Child]) -> Option<(usize, ExitStatus)> {
    let mut ended = children.iter_mut().zip(1..);
    ended.find_map(|(child, local)| {
        let status = child.try_wait().ok().flatten()?;
        (!status.success()).then_some((local, status))
    })
}

impl Drop for Siblings {
    fn drop(&mut self) {
        // They heard of the end as every rank does. One that is still there hangs, and would outlive the pod's process.
        let mut children = self.0.lock();
        for _ in 0..50 {
            children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
            if children.is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        for child in children.iter_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
