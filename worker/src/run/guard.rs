//! Keeps two processes from running in one folder, and decides what a run may do when it finds another run's checkpoints there.

use std::fs::{File, TryLockError};
use std::path::Path;

use anyhow::{Context, Error, Result, anyhow};

use crate::telemetry::RunDir;

/// The folders of a run that no other process may write, for as long as it lives.
#[derive(Debug)]
pub struct Locks {
    _folder: File,
    _checkpoints: File,
}

/// Takes a run's folder and that of its checkpoints for this process.
///
/// # Errors
/// When another process has one of them, and where a file system has no locks: nothing else keeps the records and checkpoints of two
/// processes apart.
pub fn lock(folder: &RunDir, checkpoints: &Path) -> Result<Locks> {
    let run = Place {
        folder: folder.root(),
        taken: "another process runs in",
        other: "--run-dir",
    };
    let saved = Place {
        folder: checkpoints,
        taken: "another process saves its checkpoints in",
        other: "checkpoint.path",
    };
    Ok(Locks {
        _folder: run.take(".lock")?,
        // Two names: both may be one folder.
        _checkpoints: saved.take(".checkpoints.lock")?,
    })
}

/// A folder that one process uses at a time.
struct Place<'a> {
    folder: &'a Path,
    /// What is said, before the folder, where another one has it.
    taken: &'static str,
    /// What gives the run another one.
    other: &'static str,
}

impl Place<'_> {
    fn take(&self, name: &str) -> Result<File> {
        let path = self.folder.join(name);
        let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        file.try_lock().map_err(|error| self.refused(&path, error))?;
        Ok(file)
    }

    fn refused(&self, path: &Path, error: TryLockError) -> Error {
        let Self { folder, taken, other } = self;
        match error {
            TryLockError::WouldBlock => {
                anyhow!("{taken} {}; wait for it, or give another {other}", folder.display())
            }
            TryLockError::Error(error) => Error::new(error).context(format!(
                "cannot lock {}, and without a lock two processes could write there at once: some network and FUSE file systems \
                 have none; give a {other} on another disk",
                path.display()
            )),
        }
    }
}

/// What a run may do where its folder holds the checkpoints of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Afresh<'a> {
    /// On this machine.
    Here,
    /// On this machine, with checkpoints in a place that the manifest names: another folder for the run alone changes nothing.
    HereApart,
    /// In a pod that saves in a folder.
    InPod(&'a Path),
}

impl Afresh<'_> {
    /// In words, after "or".
    pub fn words(self) -> String {
        match self {
            Self::Here => "start anew with --fresh, or give another --run-dir".to_owned(),
            Self::HereApart => {
                "start anew with --fresh, or give another --run-dir and the checkpoints another place in spec.checkpoint".to_owned()
            }
            Self::InPod(folder) => format!(
                "move {} away to start anew; on a claim, a job of another name has a folder of its own",
                folder.display()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_file_system_has_no_locks_the_error_says_so_and_what_helps() {
        let place = Place {
            folder: Path::new("/nfs/run"),
            taken: "another process runs in",
            other: "--run-dir",
        };
        let unsupported = std::io::Error::from(std::io::ErrorKind::Unsupported);
        let error = place.refused(Path::new("/nfs/run/.lock"), TryLockError::Error(unsupported));
        let words = format!("{error:#}");
        for part in [
            "/nfs/run/.lock",
            "FUSE",
            "give a --run-dir on another disk",
            "unsupported",
        ] {
            assert!(words.contains(part), "{words}");
        }
    }
}
