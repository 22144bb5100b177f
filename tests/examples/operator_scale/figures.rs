//! What was measured, kept in a file after each cell.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::machine;
use crate::options::Options;
use crate::process::Usage;
use crate::requests::Counts;
use crate::setting::Setting;
use crate::systems::System;

/// All cells of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Processor, cores, memory.
    pub machine: String,
    /// When the first cell was measured.
    pub date: String,
    /// In the order of measuring.
    pub cells: Vec<Cell>,
    #[serde(skip)]
    path: PathBuf,
}

/// One system at one setting.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// The system's name.
    pub system: String,
    /// Jobs and pods of each as asked for.
    pub setting: String,
    /// Jobs.
    pub jobs: usize,
    /// The machine's load average before: what others did to it.
    pub load_before: f64,
    /// What came of it.
    pub outcome: Outcome,
}

/// Figures, or why there are none.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// Figures.
    Measured(Box<Measured>),
    /// Why there are none.
    Failed(String),
}

/// The figures of a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Pods of all jobs.
    pub pods: usize,
    /// Seconds from the first job's creation until all pods exist.
    pub pods_exist: f64,
    /// Seconds from the first job's creation until all jobs are reported as running.
    pub all_run: f64,
    /// After one job has come and gone.
    pub base: Usage,
    /// When all jobs are reported as running.
    pub busy: Usage,
    /// The system's requests until it has come to rest, by verb and resource.
    pub requests: Counts,
    /// Everybody's in that time, by user agent and verb.
    pub by_agent: BTreeMap<String, Counts>,
    /// The system's requests at rest in 60 s, leases and renewed watches left out; none: not measured at this setting.
    pub at_rest: Option<usize>,
    /// After an annotation of a job was changed.
    pub after_touch: usize,
    /// After a job was deleted.
    pub after_deletion: usize,
}

impl Figures {
    /// Those of an earlier run when cells are to be added to it; else none.
    ///
    /// # Errors
    /// When the folder cannot be written, or the earlier figures are not ours.
    pub fn open(options: &Options) -> Result<Self> {
        let folder = &options.out;
        std::fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
        let path = folder.join("figures.json");
        if options.add && path.exists() {
            let text = std::fs::read_to_string(&path)?;
            let read: Self = serde_json::from_str(&text)
                .with_context(|| format!("{} is of another version: measure without --add", path.display()))?;
            return Ok(Self { path, ..read });
        }
        Ok(Self {
            machine: machine::name()?,
            date: machine::date(),
            cells: Vec::new(),
            path,
        })
    }

    /// Whether there are figures of a cell; a failure is tried again.
    pub fn has(&self, system: System, setting: Setting) -> bool {
        let cell = self.cell(system.name(), &setting.to_string());
        cell.is_some_and(|cell| matches!(cell.outcome, Outcome::Measured(_)))
    }

    /// A cell.
    pub fn cell(&self, system: &str, setting: &str) -> Option<&Cell> {
        self.cells
            .iter()
            .find(|cell| cell.system == system && cell.setting == setting)
    }

    /// Takes a cell in, in place of an earlier try, and writes the file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add(&mut self, cell: Cell) -> Result<()> {
        self.cells
            .retain(|other| other.system != cell.system || other.setting != cell.setting);
        self.cells.push(cell);
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(&self.path, text).with_context(|| format!("{} cannot be written", self.path.display()))
    }
}

impl Cell {
    /// A cell with what came of it.
    pub fn new(system: System, setting: Setting, load_before: f64, outcome: Result<Measured>) -> Self {
        Self {
            system: system.name().to_owned(),
            setting: setting.to_string(),
            jobs: setting.jobs,
            load_before,
            outcome: match outcome {
                Ok(measured) => Outcome::Measured(Box::new(measured)),
                Err(error) => Outcome::Failed(format!("{error:#}")),
            },
        }
    }
}

impl Measured {
    /// Pods per second until all exist.
    pub fn rate(&self) -> f64 {
        self.pods as f64 / self.pods_exist
    }

    /// Kibibytes that the processes have grown by, per pod.
    pub fn kibibytes_per_pod(&self) -> f64 {
        (self.busy.kibibytes - self.base.kibibytes) / self.pods as f64
    }

    /// Milliseconds of CPU per pod.
    pub fn milliseconds_per_pod(&self) -> f64 {
        (self.busy.cpu - self.base.cpu) * 1000.0 / self.pods as f64
    }
}
