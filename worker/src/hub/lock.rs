//! One process at a time downloads a model into a cache: pods that share it start together.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::stop::StopFlag;

/// For the process that downloads into the same cache to bring anything more: it may check a large file's hash in this time. One that
/// stalls is given up before twice as long has passed.
pub(super) const ANOTHERS_DOWNLOAD: Duration = Duration::from_secs(3600);
/// Between two looks whether it has ended.
const LOOK: Duration = Duration::from_millis(200);

/// Takes a model's folder for one download, while the file lives. Another process that has it is waited for as long as it brings
/// something within `patience`.
///
/// # Errors
/// When the folder cannot be written, or whoever has it brings nothing more and does not end; [`Interrupted`](crate::stop::Interrupted).
pub(super) fn alone(folder: &Path, patience: Duration, stop: &StopFlag) -> Result<File> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let path = folder.join(".download.lock");
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut other = Other::downloads_into(folder.join("blobs"));
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if other.goes_on(Instant::now(), patience) => {
                stop.check()?;
                tracing::debug!("another process downloads into {}", folder.display());
                std::thread::sleep(LOOK);
            }
            Err(TryLockError::WouldBlock) => bail!(
                "another process holds {} and has brought nothing more into {} for {} s; end it, or give this one a cache of its own by \
                 HF_HOME",
                path.display(),
                other.blobs.display(),
                patience.as_secs()
            ),
            // A file system without locks: as if there were no other.
            Err(TryLockError::Error(error)) => {
                tracing::debug!("{} cannot be locked: {error}", path.display());
                return Ok(file);
            }
        }
    }
}

/// The process that downloads, as far as its files tell.
struct Other {
    blobs: PathBuf,
    /// Bytes that were there at the last look.
    bytes: u64,
    since: Instant,
}

impl Other {
    fn downloads_into(blobs: PathBuf) -> Self {
        Self {
            bytes: bytes_in(&blobs),
            blobs,
            since: Instant::now(),
        }
    }

    /// Whether its time is not over, or it has brought something in it: then it has as long again. Its files are looked at no more often
    /// than that: many may wait, at one file server.
    fn goes_on(&mut self, now: Instant, patience: Duration) -> bool {
        if now.duration_since(self.since) < patience {
            return true;
        }
        let before = std::mem::replace(&mut self.bytes, bytes_in(&self.blobs));
        self.since = now;
        // Fewer than before is news as well: a file may begin again.
        self.bytes != before
    }
}

/// Of all files in a folder; 0 for one that is not there yet.
fn bytes_in(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let lengths = files.filter_map(|file| file.metadata().ok()).map(|file| file.len());
    lengths.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_download_is_waited_for_as_long_as_its_files_grow() {
        let patience = Duration::from_secs(60);
        let folder = tempfile::tempdir().unwrap();
        let mut other = Other::downloads_into(folder.path().join("blobs"));
        let began = other.since;
        let mut goes_on = |seconds: u64| other.goes_on(began + Duration::from_secs(seconds), patience);
        std::fs::create_dir(folder.path().join("blobs")).unwrap();
        let part = folder.path().join("blobs/part");
        let write = |bytes: usize| std::fs::write(&part, vec![7u8; bytes]).unwrap();
        write(10);
        assert!(goes_on(60));
        write(20);
        assert!(goes_on(120));
        assert!(goes_on(179), "its time is not over");
        assert!(!goes_on(180), "nothing came");
    }

    #[test]
    fn one_that_brings_nothing_is_given_up_and_the_error_names_its_lock() {
        let folder = tempfile::tempdir().unwrap();
        let alone = || alone(folder.path(), Duration::ZERO, &StopFlag::default());
        let _held = alone().unwrap();
        let words = alone().unwrap_err().to_string();
        let lock = folder.path().join(".download.lock").display().to_string();
        assert!(
            words.contains(&lock) && words.contains("nothing more") && words.contains("HF_HOME"),
            "{words}"
        );
    }
}
