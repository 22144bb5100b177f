//! A language model that learns responses: cross-entropy of the response tokens given the prompt, EOS included, averaged over the
//! tokens of the whole batch, so that the micro-batch size changes nothing but memory.

use std::path::Path;

use anyhow::Result;
use tch::{Kind, Tensor};

use super::config::{SftConfig, SftData};
use super::train::{self, HeldOut, Measure};
use crate::actor::learner::Learner;
use crate::actor::rows::Rows;
use crate::model::target;
use crate::model::{Decoder, ModelConfig, Weights, named};
use crate::stages::Sample;
use crate::tokenizer::Tokenizer;

/// The model, and how it is trained.
pub struct Student {
    decoder: Decoder,
    learner: Learner,
    micro: usize,
}

impl train::Student for Student {
    type Data = SftData;

    /// Responses whose every token is the most likely one given the right ones before: what greedy decoding gets right.
    const MEASURE: Measure = Measure {
        short: "exact",
        long: "exact match",
        key: "heldOutExact",
    };

    fn new(config: &SftConfig, folder: &Path, has_weights: bool) -> Result<Self> {
        let model = named::described("model", ModelConfig::read_language_model(folder))?;
        let target = target(config.model.dtype)?;
        let mut weights = match has_weights {
            true => named::found("model", Weights::load(folder, &model, target))?,
            false => Weights::random(&model, target.kind, config.seed)?.on(target.device)?,
        };
        let learner = Learner::new(&mut weights, config.optimizer(), config.learning_rate, config.steps)?;
        Ok(Self {
            decoder: Decoder::new(&model, &weights)?,
            learner,
            micro: config.micro_batch_size(),
        })
    }

    fn update(&mut self, batch: &[&Sample]) -> Result<f64> {
        let tokens: usize = batch.iter().map(|sample| sample.response.len()).sum();
        for micro in batch.chunks(self.micro) {
            let (logprobs, _) = rows(micro)?.logprobs(&self.decoder, 1.0, None)?;
            let loss = -logprobs.sum(Kind::Float) / tokens as f64;
            self.learner.backward(&loss, &[])?;
        }
        let losses = self.learner.passes()?;
        self.learner.update()?.made()?;
        Ok(losses.into_iter().map(|(loss, [])| loss).sum())
    }

    fn evaluate(&self, held_out: &[Sample]) -> Result<HeldOut> {
        let _no_grad = tch::no_grad_guard();
        let (mut loss, mut tokens, mut exact) = (0.0, 0, 0.0);
        for piece in held_out.chunks(self.micro) {
            let piece: Vec<&Sample> = piece.iter().collect();
            let rows = rows(&piece)?;
            let (logprobs, _) = rows.logprobs(&self.decoder, 1.0, None)?;
            loss -= logprobs.sum(Kind::Double).double_value(&[]);
            tokens += piece.iter().map(|sample| sample.response.len()).sum::<usize>();
            let wrong: Tensor = rows.missed(&self.decoder)?.sum_dim_intlist(1, false, Kind::Float);
            exact += wrong.eq(0.0).sum(Kind::Double).double_value(&[]);
        }
        Ok(HeldOut {
            loss: loss / tokens as f64,
            right: exact / held_out.len() as f64,
        })
    }

    fn config(&self, _: &Tokenizer) -> ModelConfig {
        self.decoder.config().clone()
    }

    fn learner(&self) -> &Learner {
        &self.learner
    }
}

fn rows(samples: &[&Sample]) -> Result<Rows> {
    let longest = samples.iter().map(|sample| sample.response.len()).max().unwrap_or(0);
    Rows::new(samples, longest, false)
}

#[cfg(test)]
mod tests {
    use ppo_crds::report::exit_code;

    use super::*;
    use crate::outcome;

    #[test]
    fn a_reward_model_is_refused_before_anything_is_learnt() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let error = named::described("model", ModelConfig::read_language_model(&fixtures.join("reward"))).unwrap_err();
        assert_eq!(outcome::code(&error), exit_code::BAD_CONFIGURATION);
        let words = format!("{error:#}");
        assert!(
            words.starts_with("model: ") && words.contains("no language model"),
            "{words}"
        );
        ModelConfig::read_language_model(&fixtures.join("llama")).unwrap();
    }
}
