//! While an attempt changes which checkpoints there are no newer one begins: it has begun before, and is seen, or waits. Not every file system
//! has locks, and that of a client which is lost may outlive it: then nobody waits, and [looks afterwards](super::Fence::check) have to do.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::sync::Once;
use std::time::{Duration, Instant};

/// Not `attempt.json` itself, which is replaced as a whole: a lock on the file that was there holds nobody off who opens the next one.
const FILE: &str = "attempt.lock";

/// For whoever has it: to rename a few folders and delete what is left of others.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks whether it has ended.
const LOOK: Duration = Duration::from_millis(50);

/// That there are no locks is told once.
static TOLD: Once = Once::new();

/// Holds other attempts off while it lives.
#[derive(Debug)]
pub struct Alone {
    /// None: without a lock.
    file: Option<File>,
}

impl Alone {
    /// Takes the lock of the checkpoints in `folder`, and goes on without it where there is none or another process keeps it for longer than
    /// `patience`: one that hangs may not hold up the run for good.
    pub(super) fn within(patience: Duration, folder: &Path) -> Self {
        let path = folder.join(FILE);
        let locked = lock(&path, patience);
        if let Err(error) = &locked {
            TOLD.call_once(|| tracing::warn!("{} cannot be locked: {error}; going on without", path.display()));
        }
        Self {
            file: locked.ok().flatten(),
        }
    }

    /// Whether it has the lock.
    pub(super) fn is_locked(&self) -> bool {
        self.file.is_some()
    }
}

/// None: another process has kept it for too long.
fn lock(path: &Path, patience: Duration) -> io::Result<Option<File>> {
    // On NFS only a file that is open for writing can be locked for one alone.
    let file = File::options().write(true).create(true).truncate(false).open(path)?;
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if began.elapsed() < patience => std::thread::sleep(LOOK),
            // Told before.
            Err(TryLockError::WouldBlock) if patience.is_zero() => return Ok(None),
            Err(TryLockError::WouldBlock) => {
                tracing::warn!(
                    "another process has held {} for {} s, most likely an older attempt that hangs; going on without the lock. End it if it \
                     still runs",
                    path.display(),
                    patience.as_secs()
                );
                return Ok(None);
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_keeps_the_lock_for_too_long_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let held = Alone::within(PATIENCE, folder.path());
        assert!(held.is_locked() && !Alone::within(2 * LOOK, folder.path()).is_locked());
        drop(held);
        assert!(Alone::within(Duration::ZERO, folder.path()).is_locked());
    }

    #[test]
    fn without_a_lock_it_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        // Nobody can open that for writing.
        std::fs::create_dir(folder.path().join(FILE)).unwrap();
        assert!(!Alone::within(PATIENCE, folder.path()).is_locked());
    }
}
