//! The supervised training loop.

use std::io;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use super::config::{Data, Training};
use super::progress::Progress;
use crate::actor::learner::Learner;
use crate::data::PromptOrder;
use crate::manifest::Invalid;
use crate::model::replace::probe;
use crate::model::{self, ModelConfig, named};
use crate::native::bytes::byte_length;
use crate::outcome::BadData;
use crate::telemetry::OutputMode;
use crate::tokenizer::Tokenizer;

/// A model that learns from examples.
pub trait Student: Sized {
    /// Where the examples lie and what they are made of.
    type Data: Data;

    /// What [`HeldOut::right`] is a share of.
    const MEASURE: Measure;

    /// The model of `folder`, with its weights or random ones.
    ///
    /// # Errors
    /// When it cannot be had.
    fn new(config: &Training<Self::Data>, folder: &Path, has_weights: bool) -> Result<Self>;

    /// One update; the mean loss of `batch`.
    ///
    /// # Errors
    /// When libtorch fails.
    fn update(&mut self, batch: &[&<Self::Data as Data>::Example]) -> Result<f64>;

    /// How held-out examples are judged.
    ///
    /// # Errors
    /// When libtorch fails.
    fn evaluate(&self, held_out: &[<Self::Data as Data>::Example]) -> Result<HeldOut>;

    /// The configuration that is saved beside the weights.
    fn config(&self, tokenizer: &Tokenizer) -> ModelConfig;

    /// What has learnt.
    fn learner(&self) -> &Learner;
}

/// How held-out examples are judged.
#[derive(Clone, Copy, Debug)]
pub struct HeldOut {
    /// Mean loss, nats.
    pub loss: f64,
    /// Share that is right.
    pub right: f64,
}

/// What a share of right ones is called.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// On the progress line.
    pub short: &'static str,
    /// In the summary.
    pub long: &'static str,
    /// In JSON.
    pub key: &'static str,
}

/// Trains and writes the model.
///
/// # Errors
/// When a file cannot be read or written, or the loss is not finite.
pub fn train<S: Student>(config: &Training<S::Data>, output: OutputMode) -> Result<()> {
    let (folder, has_weights) = config.model.folder()?;
    let tokenizer = named::found("model", Tokenizer::load(&folder))?;
    let start = named::described("model", ModelConfig::read(&folder))?;
    let read = |path: &Path| config.data.read(path, &tokenizer, &start).context(BadData);
    let data = read(config.data.path())?;
    let held_out = config.evaluation.as_ref().map(|held_out| read(&held_out.path));
    let held_out = held_out.transpose()?.unwrap_or_default();
    let mut student = S::new(config, &folder, has_weights)?;
    let bytes = student.learner().parameters.weights();
    let bytes = bytes.0.values().map(|weight| byte_length(weight) as u64).sum();
    check_output(&config.output, bytes)?;
    let order = PromptOrder {
        seed: config.seed,
        prompts: data.len(),
        batch: config.batch_size,
        shuffle: true,
    };
    let mut progress = Progress::open(output, config.steps, S::MEASURE);
    let began = Instant::now();
    let (mut last, mut made) = (None, 0);
    for step in 1..=config.steps {
        let chosen = order.batch(step - 1);
        let batch: Vec<_> = chosen.into_iter().map(|index| &data[index]).collect();
        let loss = student.update(&batch).with_context(|| format!("step {step}"))?;
        let every = config.evaluation.as_ref().map_or(0, |held_out| held_out.every_steps);
        if !held_out.is_empty() && (step == config.steps || (every > 0 && step.is_multiple_of(every))) {
            last = Some((step, student.evaluate(&held_out)?));
        }
        made = step;
        let ends = step == config.steps || is_enough(last.map(|(_, held_out)| held_out), config.stop_at());
        progress.step(step, loss, last, ends);
        if ends {
            break;
        }
    }
    let (model, weights) = (student.config(&tokenizer), student.learner().parameters.weights());
    model::save(&config.output, &folder, &model, &weights, model::save::SHARD_BYTES)?;
    let held_out = last.map(|(_, last)| {
        format!(
            ", held-out loss {:.3}, {} {:.0} %",
            last.loss,
            S::MEASURE.long,
            100.0 * last.right
        )
    });
    progress.finish(&format!(
        "{made} steps in {:.0} s{}, model in {}",
        began.elapsed().as_secs_f64(),
        held_out.unwrap_or_default(),
        config.output.display()
    ));
    Ok(())
}

/// Looks whether a model of `bytes` can be written to `output`.
///
/// # Errors
/// [`Invalid`] where that is no place for a model; a disk that is full, or does not answer, may take it another time.
fn check_output(output: &Path, bytes: u64) -> Result<()> {
    use io::ErrorKind::{AlreadyExists, NotADirectory};
    // Whatever disk there is has room for nothing.
    probe(output, 0).map_err(|error| {
        let mut failures = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
        // What it should be in is a file.
        match failures.all(|failure| matches!(failure.kind(), NotADirectory | AlreadyExists)) {
            true => Invalid::new(format!("output: {error:#}")).into(),
            false => error.context("output"),
        }
    })?;
    probe(output, bytes).context("output")
}

/// Whether as many held-out examples are right as training is to end at.
fn is_enough(last: Option<HeldOut>, wanted: Option<f64>) -> bool {
    matches!((last, wanted), (Some(last), Some(wanted)) if last.right >= wanted)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ppo_crds::report::exit_code;

    use super::*;
    use crate::outcome;

    #[test]
    fn an_output_that_no_model_may_replace_is_the_files_fault_and_a_full_disk_is_not() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let refused = |name: &str, bytes| {
            let error = check_output(&folder.path().join(name), bytes).unwrap_err();
            let words = format!("{error:#}");
            assert!(words.starts_with("output: "), "{words}");
            outcome::code(&error)
        };
        for name in ["file", "file/model", "file/deep/model", ".", ".."] {
            assert_eq!(refused(name, 1), exit_code::BAD_CONFIGURATION, "{name}");
        }
        assert_eq!(refused("new", u64::MAX / 2), 1);
        check_output(&folder.path().join("new"), 1).unwrap();
    }
}
