//! Keeps two processes from running in one folder, and decides what a run may do when it finds another run's checkpoints there.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, bail};

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
/// When another process has one of them.
pub fn lock(folder: &RunDir, checkpoints: &Path) -> Result<Locks> {
    let checkpoints_words = || {
        format!(
            "another process saves its checkpoints in {}; wait for it, or give another checkpoint.path",
            checkpoints.display()
        )
    };
    let folder_words = || {
        format!(
            "another process runs in {}; wait for it, or give another --run-dir",
            folder.root().display()
        )
    };
    Ok(Locks {
        _folder: take(&folder.root().join(".lock"), folder_words)?,
        // Two names: both may be one folder.
        _checkpoints: take(&checkpoints.join(".checkpoints.lock"), checkpoints_words)?,
    })
}

fn take(path: &Path, taken: impl FnOnce() -> String) -> Result<File> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => bail!(taken()),
        Err(std::fs::TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

/// What a run may do where its folder holds the checkpoints of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Afresh<'a> {
    /// On this machine.
    Here,
    /// In a pod that saves in a folder.
    InPod(&'a Path),
}

impl Afresh<'_> {
    /// In words, after "or".
    pub fn words(self) -> String {
        match self {
            Self::Here => "start anew with --fresh, or give another --run-dir".to_owned(),
            Self::InPod(folder) => format!(
                "move {} away to start anew; on a claim, a job of another name has a folder of its own",
                folder.display()
            ),
        }
    }
}
