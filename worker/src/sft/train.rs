//! The supervised training loop.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use tch::{Kind, Tensor};

use super::config::SftConfig;
use super::examples;
use super::progress::Progress;
use crate::actor::learner::Learner;
use crate::actor::rows::Rows;
use crate::data::PromptOrder;
use crate::local::kind;
use crate::model::{self, Decoder, ModelConfig, Weights};
use crate::stages::Sample;
use crate::telemetry::OutputMode;
use crate::tokenizer::Tokenizer;

/// Trains and writes the model.
///
/// # Errors
/// When a file cannot be read or written, or the loss is not finite.
pub fn train(config: &SftConfig, output: OutputMode) -> Result<()> {
    let (folder, has_weights) = config.model.folder()?;
    let tokenizer = Tokenizer::load(folder)?;
    let data = examples::read(&config.data.path, &config.data, &tokenizer)?;
    let held_out = config
        .evaluation
        .as_ref()
        .map(|held_out| examples::read(&held_out.path, &config.data, &tokenizer));
    let held_out = held_out.transpose()?.unwrap_or_default();
    let mut student = Student::new(config, folder, has_weights)?;
    let mut progress = Progress::open(output, config.steps);
    let began = Instant::now();
    let mut last = None;
    for step in 1..=config.steps {
        let chosen = student.order(data.len()).batch(step - 1);
        let batch: Vec<&Sample> = chosen.into_iter().map(|index| &data[index]).collect();
        let loss = student.update(&batch)?;
        ensure!(
            loss.is_finite(),
            "the loss of step {step} is {loss}; lower learningRate"
        );
        let every = config.evaluation.as_ref().map_or(0, |held_out| held_out.every_steps);
        if !held_out.is_empty() && (step == config.steps || (every > 0 && step.is_multiple_of(every))) {
            last = Some(student.evaluate(&held_out)?);
        }
        progress.step(step, loss, last)?;
    }
    let weights = student.learner.parameters.weights();
    model::save(
        &config.output,
        folder,
        student.decoder.config(),
        &weights,
        model::save::SHARD_BYTES,
    )?;
    let held_out = last.map(|last| {
        format!(
            ", held-out loss {:.3}, exact match {:.0} %",
            last.loss,
            100.0 * last.exact
        )
    });
    progress.finish(&format!(
        "{} steps in {:.0} s{}, model in {}",
        config.steps,
        began.elapsed().as_secs_f64(),
        held_out.unwrap_or_default(),
        config.output.display()
    ))
}

struct Student<'a> {
    config: &'a SftConfig,
    decoder: Decoder,
    learner: Learner,
}

/// How held-out pairs are predicted, token by token given the right ones before.
#[derive(Clone, Copy, Debug)]
pub struct HeldOut {
    /// Mean cross-entropy per response token, nats.
    pub loss: f64,
    /// Share of responses whose every token is the most likely one: what greedy decoding gets right.
    pub exact: f64,
}

impl<'a> Student<'a> {
    fn new(config: &'a SftConfig, folder: &Path, has_weights: bool) -> Result<Self> {
        let model = ModelConfig::read(folder)?;
        let kind = kind(config.model.dtype);
        let mut weights = match has_weights {
            true => Weights::load(folder, &model, kind)?,
            false => Weights::random(&model, kind, config.seed)?,
        };
        let learner = Learner::new(&mut weights, config.optimizer(), config.learning_rate, config.steps)?;
        Ok(Self {
            config,
            decoder: Decoder::new(&model, &weights)?,
            learner,
        })
    }

    fn order(&self, pairs: usize) -> PromptOrder {
        PromptOrder {
            seed: self.config.seed,
            prompts: pairs,
            batch: self.config.batch_size,
            shuffle: true,
        }
    }

    /// One update; returns the mean cross-entropy per response token.
    fn update(&mut self, batch: &[&Sample]) -> Result<f64> {
        let tokens: usize = batch.iter().map(|sample| sample.response.len()).sum();
        let mut total = 0.0;
        for micro in batch.chunks(self.config.micro_batch_size.unwrap_or(batch.len())) {
            let (logprobs, _) = rows(micro)?.logprobs(&self.decoder, 1.0, false)?;
            let loss = -logprobs.sum(Kind::Float) / tokens as f64;
            total += loss.double_value(&[]);
            self.learner.backward(&loss)?;
        }
        self.learner.update()?;
        Ok(total)
    }

    fn evaluate(&self, held_out: &[Sample]) -> Result<HeldOut> {
        let _no_grad = tch::no_grad_guard();
        let (mut loss, mut tokens, mut exact) = (0.0, 0, 0.0);
        for piece in held_out.chunks(self.config.batch_size) {
            let piece: Vec<&Sample> = piece.iter().collect();
            let rows = rows(&piece)?;
            let (logprobs, _) = rows.logprobs(&self.decoder, 1.0, false)?;
            loss -= logprobs.sum(Kind::Double).double_value(&[]);
            tokens += piece.iter().map(|sample| sample.response.len()).sum::<usize>();
            let wrong: Tensor = rows.missed(&self.decoder)?.sum_dim_intlist(1, false, Kind::Float);
            exact += wrong.eq(0.0).sum(Kind::Double).double_value(&[]);
        }
        Ok(HeldOut {
            loss: loss / tokens as f64,
            exact: exact / held_out.len() as f64,
        })
    }
}

fn rows(samples: &[&Sample]) -> Result<Rows> {
    let longest = samples.iter().map(|sample| sample.response.len()).max().unwrap_or(0);
    Rows::new(samples, longest, false)
}
