//! What a run's folder says. Everything but the folder itself may be missing or torn.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::samples;
use crate::telemetry::{
    BeforeAfter, EvaluationReport, EventRecord, Metric, RunDir, SampleRecord, Stage, StepReport, read_lines,
};

/// Everything the report is made of.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// The folder's name, or the run's own where the configuration is there.
    pub name: String,
    /// run_config.json; null where it is missing.
    pub config: Value,
    /// In order, one per step.
    pub steps: Vec<StepReport>,
    pub evaluations: Vec<EvaluationReport>,
    /// By step, as many as a page holds.
    pub samples: BTreeMap<u64, Vec<SampleRecord>>,
    pub events: Vec<EventRecord>,
    pub before_after: Option<BeforeAfter>,
    /// Lines that could not be read, per file.
    pub unreadable: Vec<(&'static str, usize)>,
}

impl Run {
    /// Reads the folder.
    pub fn read(folder: &Path) -> Result<Run> {
        let dir = RunDir::new(folder);
        if !folder.is_dir() {
            bail!("{} is not a folder; give the folder of a run", folder.display());
        }
        if !dir.metrics().exists() && !dir.run_config().exists() {
            bail!(
                "{} holds neither metrics.jsonl nor run_config.json; give the folder that a run wrote",
                folder.display()
            );
        }
        let mut run = Run {
            config: read_json(&dir.run_config()).unwrap_or(Value::Null),
            ..Run::default()
        };
        run.name = match run.config.get("name").and_then(Value::as_str) {
            Some(name) => name.to_owned(),
            None => folder
                .file_name()
                .unwrap_or(folder.as_os_str())
                .to_string_lossy()
                .into_owned(),
        };
        run.steps = run.lines("metrics.jsonl", &dir.metrics())?;
        run.steps.sort_by_key(|report| report.step);
        run.evaluations = run.lines("evaluation.jsonl", &dir.evaluation())?;
        run.evaluations.sort_by_key(|report| report.step);
        run.events = run.lines("events.jsonl", &dir.events())?;
        run.take_stages_of_ends();
        let (samples, unreadable) = samples::read(&dir.samples())?;
        run.samples = samples;
        run.note_unreadable("samples.jsonl", unreadable);
        run.before_after = read_json(&dir.before_after());
        Ok(run)
    }

    /// What came after the last step before an end counts as that step's, and what came before the first step as the first one's.
    fn take_stages_of_ends(&mut self) {
        for event in self.events.iter().filter(|event| !event.stages.is_empty()) {
            let step = event.step.max(1);
            let Some(report) = self.steps.iter_mut().find(|report| report.step == step) else {
                continue;
            };
            let stages = event.stages.iter().filter_map(|(name, seconds)| {
                let took = Duration::try_from_secs_f64(*seconds).ok()?;
                Some((Stage::from_name(name)?, took))
            });
            report.stages.extend(stages);
        }
    }

    fn lines<T: DeserializeOwned>(&mut self, name: &'static str, path: &Path) -> Result<Vec<T>> {
        let lines = read_lines(path)?;
        self.note_unreadable(name, lines.unreadable);
        Ok(lines.records)
    }

    fn note_unreadable(&mut self, name: &'static str, lines: usize) {
        if lines > 0 {
            self.unreadable.push((name, lines));
        }
    }

    /// (step, value) where the metric was reported; the value may be NaN.
    pub fn metric(&self, metric: Metric) -> Vec<(f64, f64)> {
        self.steps
            .iter()
            .filter_map(|report| Some((report.step as f64, report.get(metric)?)))
            .collect()
    }

    /// (step, value) of a number outside the catalogue.
    pub fn extra(&self, name: &str) -> Vec<(f64, f64)> {
        self.steps
            .iter()
            .filter_map(|report| Some((report.step as f64, *report.extra.get(name)?)))
            .collect()
    }

    /// A value of the configuration by its path, as in `algorithm/kl/coef`.
    pub fn setting(&self, path: &str) -> Option<&Value> {
        self.config
            .pointer(&format!("/{path}"))
            .filter(|value| !value.is_null())
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}
