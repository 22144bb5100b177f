//! Where everything a run leaves behind lies.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Serialize;

/// The run's folder.
#[derive(Clone, Debug)]
pub struct RunDir {
    root: PathBuf,
}

impl RunDir {
    /// The folder at `root`, which need not exist.
    pub fn new(root: impl Into<PathBuf>) -> RunDir {
        RunDir { root: root.into() }
    }

    /// Makes the folder and the ones above it.
    ///
    /// # Errors
    /// When the folder cannot be made, naming it.
    pub fn create(&self) -> Result<()> {
        std::fs::create_dir_all(&self.root)
            .with_context(|| format!("cannot make the run folder {}", self.root.display()))
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// One line per step.
    pub fn metrics(&self) -> PathBuf {
        self.root.join("metrics.jsonl")
    }

    /// One line per decoded sample.
    pub fn samples(&self) -> PathBuf {
        self.root.join("samples.jsonl")
    }

    /// One line per thing that happened.
    pub fn events(&self) -> PathBuf {
        self.root.join("events.jsonl")
    }

    /// One line per evaluation on the held-out prompts.
    pub fn evaluation(&self) -> PathBuf {
        self.root.join("evaluation.jsonl")
    }

    /// Checkpoints, where the manifest names no other place for them.
    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    /// TensorBoard's log folder.
    pub fn tensorboard(&self) -> PathBuf {
        self.root.join("tensorboard")
    }

    /// The [`RunConfig`](ppo_crds::run_config::RunConfig) that ran.
    pub fn run_config(&self) -> PathBuf {
        self.root.join("run_config.json")
    }

    /// The manifest as the user wrote it.
    pub fn manifest(&self) -> PathBuf {
        self.root.join("manifest.yaml")
    }

    /// Held-out prompts before and after training.
    pub fn before_after(&self) -> PathBuf {
        self.root.join("before_after.json")
    }

    /// The policy's answers to held-out prompts at step 0, for a run that resumes.
    pub fn before(&self) -> PathBuf {
        self.root.join("before.json")
    }

    /// The HTML report.
    pub fn report(&self) -> PathBuf {
        self.root.join("report.html")
    }

    /// The trained model.
    pub fn model(&self) -> PathBuf {
        self.root.join("model")
    }

    /// The trained adapter, where one is trained.
    pub fn adapter(&self) -> PathBuf {
        self.root.join("adapter")
    }

    /// What a run that starts anew has to find gone, or its results would mix with an earlier run's. Its checkpoints are no part of it: they may
    /// lie elsewhere. Nor are manifest and configuration, which it writes over before anything else: the one may be what it was started with.
    pub fn results(&self) -> [PathBuf; 10] {
        [
            self.metrics(),
            self.samples(),
            self.events(),
            self.evaluation(),
            self.tensorboard(),
            self.before(),
            self.before_after(),
            self.report(),
            self.model(),
            self.adapter(),
        ]
    }

    /// Deletes the [`results`](Self::results). A pipe or a device among them stays: it holds nothing.
    ///
    /// # Errors
    /// When the disk refuses, naming what cannot be deleted.
    pub fn clear(&self) -> Result<()> {
        self.results().iter().try_for_each(|path| {
            let removed = match path.metadata() {
                Ok(metadata) if metadata.is_dir() => std::fs::remove_dir_all(path),
                Ok(metadata) if metadata.is_file() => std::fs::remove_file(path),
                _ => Ok(()),
            };
            removed.with_context(|| format!("cannot delete {}", path.display()))
        })
    }
}

/// Writes a file aside and renames it, so that a reader sees the old or the new contents and nothing between.
///
/// # Errors
/// When the disk refuses, naming the file.
pub fn write_whole(path: &Path, contents: &[u8]) -> Result<()> {
    write_whole_by(path, |file| file.write_all(contents))
}

/// As [`write_whole`], by parts.
///
/// # Errors
/// When the disk refuses, naming the file.
pub(super) fn write_whole_by(path: &Path, parts: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<()> {
    let aside = path.with_added_extension("partial");
    // A pipe or a device is written to as it is: a file in its place would be another thing.
    let is_special = path.metadata().is_ok_and(|metadata| !metadata.is_file());
    let write = || {
        if is_special {
            let mut file = BufWriter::new(File::options().write(true).open(path)?);
            parts(&mut file)?;
            return file.flush();
        }
        let mut file = BufWriter::new(File::create(&aside)?);
        parts(&mut file)?;
        file.into_inner()?.sync_all()?;
        std::fs::rename(&aside, path)
    };
    let written = write();
    if written.is_err() && !is_special {
        // Where the disk is full, what is told of that needs the room.
        let _ = std::fs::remove_file(&aside);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Makes what was written to a file survive a loss of power. A pipe or a device keeps nothing.
///
/// # Errors
/// When the disk refuses, naming the file.
pub(super) fn settle(file: &File, path: &Path) -> Result<()> {
    let settled = match file.metadata() {
        Ok(metadata) if metadata.is_file() => file.sync_all(),
        looked => looked.map(drop),
    };
    settled.with_context(|| format!("cannot make {} durable", path.display()))
}

/// Writes a value as indented JSON, whole or not at all.
///
/// # Errors
/// When the disk refuses, naming the file.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(value).with_context(|| format!("cannot encode {}", path.display()))?;
    text.push(b'\n');
    write_whole(path, &text)
}
