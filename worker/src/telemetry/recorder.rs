//! Hands what the trainer reports to every sink.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use ppo_crds::run_config::RunConfig;
use ppo_crds::spec::{Profile, TelemetrySpec};
use serde::Serialize;

use super::exposition::Exposition;
use super::jsonl::{self, JsonLines};
use super::live::Live;
use super::progress::{OutputMode, Progress};
use super::run_dir::{RunDir, write_json};
use super::step::{EvaluationReport, EventRecord, SampleRecord, SetReport, StepReport};
use super::tensorboard::EventFile;
use super::time_left::TimeLeft;
use super::{BeforeAfter, Metric, Stage};
use crate::durable::sync_folder;

/// The sinks of a run: metrics.jsonl, evaluation.jsonl, samples.jsonl, events.jsonl, TensorBoard, Prometheus, progress.
pub struct Recorder {
    dir: RunDir,
    profile: Profile,
    telemetry: TelemetrySpec,
    /// Completed steps.
    step: u64,
    total_steps: u64,
    metrics: JsonLines,
    evaluations: JsonLines,
    samples: JsonLines,
    events: JsonLines,
    tensorboard: Option<EventFile>,
    watched: Watched,
    time_left: TimeLeft,
    progress: Progress,
}

/// What is served while the run goes on, and before it begins.
#[derive(Clone)]
pub struct Watched {
    /// `/metrics` and `/readyz`.
    pub exposition: Arc<Exposition>,
    /// `/report`.
    pub live: Arc<Live>,
}

impl Watched {
    /// Nothing yet, of a job and the pod's attempt.
    ///
    /// # Errors
    /// When two metrics have one name, which is a bug.
    pub fn new(job: &str, attempt: u32) -> Result<Self> {
        Ok(Self {
            exposition: Arc::new(Exposition::new(job)?),
            live: Arc::new(Live::new(job, attempt)),
        })
    }
}

#[derive(Serialize)]
struct SampleLine<'a> {
    step: u64,
    #[serde(flatten)]
    sample: &'a SampleRecord,
}

impl Recorder {
    /// Opens the run's folder, making it where needed. `completed_steps` is 0 for a new run, and the step of the
    /// checkpoint for one that resumes: what was written about later steps is dropped, since they run again, and where there are
    /// steps to come, the comparison that an earlier end left.
    ///
    /// # Errors
    /// When a file cannot be written, naming it.
    pub fn open(
        run_dir: &Path,
        config: &RunConfig,
        watched: Watched,
        total_steps: u64,
        completed_steps: u64,
        output: OutputMode,
    ) -> Result<Recorder> {
        let dir = RunDir::new(run_dir);
        dir.create()?;
        write_json(&dir.run_config(), config)?;
        watched.live.begin(completed_steps, total_steps);
        watched.exposition.progress(completed_steps, total_steps)?;
        if completed_steps < total_steps {
            // Of a run that ended, and goes on because it is longer now: it compares with weights that are not the last any more.
            remove_comparison(&dir)?;
        }
        let evaluations = JsonLines::open(&dir.evaluation(), completed_steps)?;
        // The newest of before an interruption is still the last one.
        if let Some(last) = jsonl::read::<EvaluationReport>(&dir.evaluation())?.records.last() {
            watched.live.evaluated(last);
            watched.exposition.evaluation(last)?;
        }
        let tensorboard = match config.telemetry.tensorboard {
            true => Some(EventFile::create(&dir.tensorboard(), completed_steps)?),
            false => None,
        };
        Ok(Recorder {
            profile: config.algorithm.profile,
            telemetry: config.telemetry.clone(),
            step: completed_steps,
            total_steps,
            metrics: JsonLines::open(&dir.metrics(), completed_steps)?,
            evaluations,
            samples: JsonLines::open(&dir.samples(), completed_steps)?,
            events: JsonLines::open(&dir.events(), u64::MAX)?,
            tensorboard,
            watched,
            time_left: TimeLeft::default(),
            progress: Progress::open(output, completed_steps, total_steps),
            dir,
        })
    }

    /// The run's folder.
    pub fn dir(&self) -> &RunDir {
        &self.dir
    }

    /// What is served.
    pub fn watched(&self) -> &Watched {
        &self.watched
    }

    /// A step is done.
    ///
    /// # Errors
    /// When a file cannot be written, naming it.
    pub fn step(&mut self, report: &StepReport) -> Result<()> {
        self.step = report.step;
        self.metrics.append(report)?;
        if let Some(tensorboard) = &mut self.tensorboard {
            tensorboard.scalars(report.step, &tensorboard_tags(report, self.profile))?;
        }
        self.watched.exposition.step(report)?;
        let eta = self.time_left.after(report, Instant::now());
        self.watched.live.step(report, eta);
        self.progress.step(report, eta)
    }

    /// The held-out prompts were answered.
    ///
    /// # Errors
    /// When a file cannot be written, naming it.
    pub fn evaluation(&mut self, report: &EvaluationReport) -> Result<()> {
        self.evaluations.append(report)?;
        if let Some(tensorboard) = &mut self.tensorboard {
            let values = report.values();
            let mut tags: Vec<_> = values.flat_map(|number| tags_of(number, self.profile)).collect();
            for (name, of_set) in &report.sets {
                tags.extend(tags_of_set(name, of_set, report.n_samples_per_prompt, self.profile));
            }
            tensorboard.scalars(report.step, &tags)?;
        }
        self.watched.exposition.evaluation(report)?;
        self.watched.live.evaluated(report);
        self.progress.evaluation(report);
        Ok(())
    }

    /// Whether the evaluation after a step is written already.
    ///
    /// # Errors
    /// When the file cannot be read, naming it.
    pub fn has_evaluation(&self, step: u64) -> Result<bool> {
        let known = jsonl::read::<EvaluationReport>(&self.dir.evaluation())?;
        Ok(known.records.iter().any(|known| known.step == step))
    }

    /// Whether the step's samples should be decoded and handed to [`Recorder::samples`]: the first step, the last, and
    /// every `telemetry.samplesEverySteps`-th between.
    pub fn wants_samples(&self, step: u64) -> bool {
        let every = self.telemetry.samples_every_steps;
        every > 0 && (step == 1 || step == self.total_steps || step.is_multiple_of(every))
    }

    /// How many samples of such a step to decode.
    pub fn samples_wanted(&self) -> usize {
        self.telemetry.samples as usize
    }

    /// Decoded samples of a step.
    ///
    /// # Errors
    /// When the file cannot be written, naming it.
    pub fn samples(&mut self, step: u64, samples: &[SampleRecord]) -> Result<()> {
        let lines: Vec<_> = samples.iter().map(|sample| SampleLine { step, sample }).collect();
        self.samples.append_all(&lines)
    }

    /// Makes the records survive a loss of power: before a checkpoint does, for the run that goes on from it can not make up for what they lack.
    ///
    /// # Errors
    /// When the disk refuses, naming the file.
    pub fn settle(&self) -> Result<()> {
        let files = [&self.metrics, &self.evaluations, &self.samples, &self.events];
        files.into_iter().try_for_each(JsonLines::settle)?;
        if let Some(tensorboard) = &self.tensorboard {
            tensorboard.settle()?;
            sync_folder(&self.dir.tensorboard())?;
        }
        sync_folder(self.dir.root())
    }

    /// Something happened: one word and a sentence. It goes to events.jsonl and to the log.
    ///
    /// # Errors
    /// When the file cannot be written, naming it.
    pub fn event(&mut self, kind: &str, message: &str) -> Result<()> {
        self.ended(kind, message, &[])
    }

    /// The run ends here, in whichever way: an event, with those of `stages` that came after the last step's report.
    ///
    /// # Errors
    /// When the file cannot be written, naming it.
    pub fn ended(&mut self, kind: &str, message: &str, stages: &[(Stage, Duration)]) -> Result<()> {
        match kind {
            "failed" | "diverged" => tracing::error!(step = self.step, kind, "{message}"),
            _ => tracing::info!(step = self.step, kind, "{message}"),
        }
        let time = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();
        let mut seconds = BTreeMap::new();
        for (stage, took) in stages.iter().filter(|(stage, _)| stage.is_between_steps()) {
            *seconds.entry(stage.name().to_owned()).or_insert(0.0) += took.as_secs_f64();
        }
        self.events.append(&EventRecord {
            time,
            step: self.step,
            kind: kind.into(),
            message: message.into(),
            stages: seconds,
        })
    }

    /// Keeps the comparison of held-out prompts for the report. None: there is none, and one of an earlier run goes.
    ///
    /// # Errors
    /// When the file cannot be written, naming it.
    pub fn before_after(&self, comparison: Option<&BeforeAfter>) -> Result<()> {
        match comparison {
            Some(comparison) => write_json(&self.dir.before_after(), comparison),
            None => remove_comparison(&self.dir),
        }
    }

    /// Ends the progress display and prints the last words of the run (also under `--quiet`; to stderr under `--json`).
    pub fn finish(mut self, summary: &str) {
        self.progress.finish(summary);
    }
}

fn remove_comparison(dir: &RunDir) -> Result<()> {
    let file = dir.before_after();
    match std::fs::remove_file(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", file.display()))
        }
        _ => Ok(()),
    }
}

/// Tags of a metric's value: ours as `ppo/<name>`, then the names of the profile's framework.
fn tags_of((metric, value): (Metric, f64), profile: Profile) -> impl Iterator<Item = (String, f64)> {
    let aliases = metric.aliases(profile).iter().map(|alias| (*alias).to_owned());
    let names = std::iter::once(format!("ppo/{}", metric.name())).chain(aliases);
    names.map(move |name| (name, value))
}

/// Tags of the figures of a test set: ours as `ppo/<name>/<set>`, and what the profile's framework calls the mean score of `n` samples, as
/// in verl's `_val_metrics_update` (trainer/ppo/ray_trainer.py) and OpenRLHF's `compute_eval_metrics` (trainer/ppo_trainer.py).
fn tags_of_set(set: &str, report: &SetReport, n: u64, profile: Profile) -> Vec<(String, f64)> {
    let alias = match profile {
        Profile::Verl => Some(format!("val-core/{set}/reward/mean@{n}")),
        Profile::Openrlhf => Some(format!("eval/eval_{set}_pass1")),
        Profile::Default | Profile::Trl | Profile::Alpacafarm => None,
    };
    let ours = report
        .values()
        .map(|(metric, value)| (format!("ppo/{}/{set}", metric.name()), value));
    ours.chain(alias.map(|name| (name, report.score))).collect()
}

/// Tag and value of everything a step says.
fn tensorboard_tags(report: &StepReport, profile: Profile) -> Vec<(String, f64)> {
    let mut tags: Vec<_> = report.values().flat_map(|number| tags_of(number, profile)).collect();
    tags.extend(
        report
            .extra
            .iter()
            .map(|(name, value)| (format!("extra/{name}"), *value)),
    );
    for (stage, seconds) in report.stage_seconds() {
        tags.push((format!("stage_seconds/{}", stage.name()), seconds));
        tags.extend(stage.alias(profile).map(|alias| (alias.to_string(), seconds)));
    }
    tags
}

#[cfg(test)]
mod tests;
