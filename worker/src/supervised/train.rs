//! The supervised training loop.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use super::config::{Data, Training};
use super::progress::Progress;
use crate::actor::learner::Learner;
use crate::data::PromptOrder;
use crate::model::{self, ModelConfig};
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
    let tokenizer = Tokenizer::load(&folder)?;
    let start = ModelConfig::read(&folder)?;
    let read = |path: &Path| config.data.read(path, &tokenizer, &start).context(BadData);
    let data = read(config.data.path())?;
    let held_out = config.evaluation.as_ref().map(|held_out| read(&held_out.path));
    let held_out = held_out.transpose()?.unwrap_or_default();
    let mut student = S::new(config, &folder, has_weights)?;
    let bytes = student.learner().parameters.weights();
    let bytes = bytes.0.values().map(|weight| byte_length(weight) as u64).sum();
    model::replace::probe(&config.output, bytes).context("output")?;
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
            last = Some(student.evaluate(&held_out)?);
        }
        made = step;
        let ends = step == config.steps || is_enough(last, config.stop_at());
        progress.step(step, loss, last, ends)?;
        if ends {
            break;
        }
    }
    let (model, weights) = (student.config(&tokenizer), student.learner().parameters.weights());
    model::save(&config.output, &folder, &model, &weights, model::save::SHARD_BYTES)?;
    let held_out = last.map(|last| {
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
    ))
}

/// Whether as many held-out examples are right as training is to end at.
fn is_enough(last: Option<HeldOut>, wanted: Option<f64>) -> bool {
    matches!((last, wanted), (Some(last), Some(wanted)) if last.right >= wanted)
}
