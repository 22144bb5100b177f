//! Only one attempt at a time writes a run's checkpoints. A process of an older attempt, cut off from its node for a while and taken
//! for dead, finds that the fence has moved and ends: before it writes, and [while it works](Fence::watch).

mod alone;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, ensure};

pub use self::alone::Alone;
use crate::durable::write_durably_by;
use crate::place::Owner;
use crate::stop::StopFlag;

const FILE: &str = "attempt.json";

/// Between two looks of one that works.
const LOOK: Duration = Duration::from_secs(10);

/// The fence of one attempt.
#[derive(Clone, Debug)]
pub struct Fence {
    file: PathBuf,
    owner: Owner,
    /// This process took it, and no rank that joined.
    is_taker: bool,
    /// Another process has kept the lock for too long, and is not waited for again while it does.
    without_lock: Arc<AtomicBool>,
}

/// A newer attempt has taken over, or another job of the same folder.
#[derive(Debug, thiserror::Error)]
#[error("{who} has taken over {}; attempt {mine} writes nothing more", folder.display())]
pub struct Superseded {
    who: String,
    folder: PathBuf,
    mine: u32,
}

impl Fence {
    /// Takes the checkpoints of `folder` for `owner`, once an older attempt is [through](Self::alone) with what it does to them.
    ///
    /// # Errors
    /// [`Superseded`] when a newer attempt of the same run was there; when the file cannot be written.
    pub fn take(folder: &Path, owner: Owner) -> anyhow::Result<Self> {
        let fence = Self {
            file: folder.join(FILE),
            owner,
            is_taker: true,
            without_lock: Arc::default(),
        };
        let _alone = fence.alone();
        match fence.holder()? {
            Some(newer) if newer.run == fence.owner.run && newer.attempt > fence.owner.attempt => {
                Err(fence.superseded(&newer).into())
            }
            _ => {
                fence.claim()?;
                Ok(fence)
            }
        }
    }

    /// Joins the attempt for which rank 0 has taken `folder`.
    ///
    /// # Errors
    /// [`Superseded`]; when the folder that this process sees is not the one of rank 0.
    pub fn join(folder: &Path, owner: Owner) -> anyhow::Result<Self> {
        let fence = Self {
            file: folder.join(FILE),
            owner,
            is_taker: false,
            without_lock: Arc::default(),
        };
        let held = fence.holder()?.is_some();
        ensure!(
            held,
            "{} is not the folder in which rank 0 saves: several actor pods need one that all of them mount \
             (spec.checkpoint.pvc or volumeClaim, ReadWriteMany)",
            folder.display()
        );
        fence.check()?;
        Ok(fence)
    }

    /// No other attempt begins while what this gives lives, as far as the file system has locks. Whether one has begun is to be
    /// [looked at](Self::check) after it.
    pub fn alone(&self) -> Alone {
        let patience = match self.without_lock.load(Ordering::Relaxed) {
            true => Duration::ZERO,
            false => alone::PATIENCE,
        };
        let alone = Alone::within(patience, self.file.parent().unwrap_or(&self.file));
        self.without_lock.store(!alone.is_locked(), Ordering::Relaxed);
        alone
    }

    /// Whether this attempt may still write.
    ///
    /// # Errors
    /// [`Superseded`]; when the file cannot be read.
    pub fn check(&self) -> anyhow::Result<()> {
        match self.holder()? {
            None => Ok(()),
            Some(holder) if holder == self.owner => Ok(()),
            // One that was cut off while it took the fence, and came to its end only now.
            Some(older) if older.run == self.owner.run && older.attempt < self.owner.attempt => match self.is_taker {
                true => self.claim(),
                false => Ok(()),
            },
            Some(newer) => Err(self.superseded(&newer).into()),
        }
    }

    /// By way of a file of its own: another attempt may be at the same.
    fn claim(&self) -> anyhow::Result<()> {
        let Owner { run, attempt } = &self.owner;
        let aside = self.file.with_extension(format!("{run}-{attempt}.writing"));
        write_durably_by(&aside, &self.file, &serde_json::to_vec(&self.owner)?)
    }

    /// Looks every ten seconds, from a thread of its own, whether this attempt may still write, and asks the run to stop once it may not. Of
    /// a file that cannot be read nobody is told here: nobody waits for a look at it, and who writes finds out.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn watch(&self, stop: StopFlag) -> anyhow::Result<Watch> {
        self.watch_every(LOOK, stop)
    }

    fn watch_every(&self, look: Duration, stop: StopFlag) -> anyhow::Result<Watch> {
        let fence = self.clone();
        let (alive, over) = mpsc::channel();
        let looks = move || {
            while over.recv_timeout(look) == Err(RecvTimeoutError::Timeout) {
                match fence.check() {
                    Err(error) if error.is::<Superseded>() => {
                        tracing::error!("{error:#}");
                        return stop.request();
                    }
                    Err(error) => tracing::debug!("{error:#}"),
                    Ok(()) => {}
                }
            }
        };
        let thread = std::thread::Builder::new().name("fence".into());
        thread.spawn(looks).context("cannot start a thread")?;
        Ok(Watch { _alive: alive })
    }

    fn superseded(&self, newer: &Owner) -> Superseded {
        Superseded {
            who: match newer.run == self.owner.run {
                true => format!("attempt {} of this run", newer.attempt),
                false => format!("attempt {} of another job", newer.attempt),
            },
            folder: self.file.parent().unwrap_or(&self.file).to_owned(),
            mine: self.owner.attempt,
        }
    }

    fn holder(&self) -> anyhow::Result<Option<Owner>> {
        let text = match fs::read(&self.file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", self.file.display())),
        };
        serde_json::from_slice(&text)
            .map(Some)
            .with_context(|| format!("{} is damaged; delete it", self.file.display()))
    }
}

/// Looks at a fence for as long as it lives.
#[derive(Debug)]
pub struct Watch {
    _alive: mpsc::Sender<()>,
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn owner(run: &str, attempt: u32) -> Owner {
        Owner {
            run: run.into(),
            attempt,
        }
    }

    #[test]
    fn an_older_attempt_may_not_write_once_a_newer_one_has_begun() {
        let folder = tempfile::tempdir().unwrap();
        let first = Fence::take(folder.path(), owner("a", 1)).unwrap();
        first.check().unwrap();
        let second = Fence::take(folder.path(), owner("a", 2)).unwrap();
        assert!(first.check().unwrap_err().to_string().contains("attempt 2"));
        assert!(
            Fence::take(folder.path(), owner("a", 1))
                .unwrap_err()
                .is::<Superseded>()
        );
        second.check().unwrap();
    }

    #[test]
    fn an_older_attempt_that_was_cut_off_while_it_took_the_fence_does_not_keep_it() {
        let folder = tempfile::tempdir().unwrap();
        let first = Fence::take(folder.path(), owner("a", 1)).unwrap();
        let second = Fence::take(folder.path(), owner("a", 2)).unwrap();
        let follower = Fence::join(folder.path(), owner("a", 2)).unwrap();
        // What it wrote before the other came is in place only now.
        first.claim().unwrap();
        follower.check().unwrap();
        second.check().unwrap();
        assert!(first.check().unwrap_err().is::<Superseded>());
    }

    #[test]
    fn a_newer_attempt_begins_once_the_older_one_is_through_with_what_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let first = Fence::take(folder.path(), owner("a", 1)).unwrap();
        let alone = first.alone();
        let path = folder.path().to_owned();
        let newer = std::thread::spawn(move || Fence::take(&path, owner("a", 2)));
        std::thread::sleep(Duration::from_millis(300));
        first.check().unwrap();
        drop(alone);
        newer.join().unwrap().unwrap();
        assert!(first.check().unwrap_err().is::<Superseded>());
    }

    #[test]
    fn one_that_works_is_asked_to_stop_once_a_newer_attempt_has_begun_and_not_before() {
        const LOOK: Duration = Duration::from_millis(10);
        let folder = tempfile::tempdir().unwrap();
        let first = Fence::take(folder.path(), owner("a", 1)).unwrap();
        let (stop, other) = (StopFlag::default(), StopFlag::default());
        let _watch = first.watch_every(LOOK, stop.clone()).unwrap();
        drop(first.watch_every(LOOK, other.clone()).unwrap());
        std::thread::sleep(50 * LOOK);
        assert!(!stop.requested());
        Fence::take(folder.path(), owner("a", 2)).unwrap();
        let ends = Instant::now() + Duration::from_secs(60);
        while !stop.requested() {
            assert!(Instant::now() < ends, "it was not asked to stop");
            std::thread::sleep(LOOK);
        }
        // As many looks as the other could have had.
        std::thread::sleep(50 * LOOK);
        assert!(!other.requested(), "its run is over, and nobody looks for it any more");
    }

    #[test]
    fn a_follower_joins_in_the_folder_that_rank_0_has_taken_for_its_attempt_and_in_no_other() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        Fence::take(folder.path(), owner("a", 2)).unwrap();
        Fence::join(folder.path(), owner("a", 2)).unwrap().check().unwrap();
        assert!(
            Fence::join(folder.path(), owner("a", 1))
                .unwrap_err()
                .is::<Superseded>()
        );
        let lost = Fence::join(elsewhere.path(), owner("a", 2)).unwrap_err().to_string();
        assert!(lost.contains("ReadWriteMany"), "{lost}");
    }

    #[test]
    fn a_new_job_on_an_old_claim_takes_over_at_its_first_attempt() {
        let folder = tempfile::tempdir().unwrap();
        let old = Fence::take(folder.path(), owner("a", 7)).unwrap();
        Fence::take(folder.path(), owner("b", 1)).unwrap().check().unwrap();
        let taken = old.check().unwrap_err().to_string();
        assert!(taken.starts_with("attempt 1 of another job has taken over"), "{taken}");
    }
}
