//! A reward model that learns which of two responses is the better one: -log sigmoid(score of the better - score of the worse), the
//! mean over pairs (Bradley and Terry 1952; Ouyang et al. 2022, arXiv 2203.02155, equation 1).

use std::path::Path;

use anyhow::Result;
use tch::{Kind, Tensor};

use super::config::{PreferenceData, RmConfig};
use super::preferences::Preference;
use super::train::{self, HeldOut, Measure};
use crate::actor::learner::Learner;
use crate::model::names::SCORE_WEIGHT;
use crate::model::target;
use crate::model::{Head, ModelConfig, RewardModel, Weights, named};
use crate::tokenizer::Tokenizer;

/// The model, and how it is trained.
pub struct Student {
    model: RewardModel,
    learner: Learner,
    micro: usize,
}

impl train::Student for Student {
    type Data = PreferenceData;

    const MEASURE: Measure = Measure {
        short: "right",
        long: "pairs in the right order",
        key: "heldOutRight",
    };

    /// A language model gives its trunk, under a head that starts at zero; a reward model goes on from its own head.
    fn new(config: &RmConfig, folder: &Path, has_weights: bool) -> Result<Self> {
        let target = target(config.model.dtype)?;
        let source = ModelConfig::read(folder)?;
        let has_head = source.head == Head::Score;
        let model = source.with_head(Head::Score);
        let mut weights = match (has_weights, has_head) {
            (true, true) => named::found("model", Weights::load(folder, &model, target))?,
            (true, false) => named::found("model", Weights::load_trunk(folder, &model, target))?,
            (false, _) => Weights::random(&model, target.kind, config.seed)?.on(target.device)?,
        };
        if has_weights && !has_head {
            let head = Tensor::f_zeros([1, model.hidden], (target.kind, target.device))?;
            weights.0.insert(SCORE_WEIGHT.to_owned(), head);
        }
        let learner = Learner::new(&mut weights, config.optimizer(), config.learning_rate, config.steps)?;
        Ok(Self {
            model: RewardModel::new(&model, &weights)?,
            learner,
            micro: config.micro_batch_size(),
        })
    }

    fn update(&mut self, batch: &[&Preference]) -> Result<f64> {
        for micro in batch.chunks(self.micro) {
            let loss = -self.margins(micro)?.f_log_sigmoid()?.sum(Kind::Float) / batch.len() as f64;
            self.learner.backward(&loss, &[])?;
        }
        let losses = self.learner.passes()?;
        self.learner.update()?.made()?;
        Ok(losses.into_iter().map(|(loss, [])| loss).sum())
    }

    fn evaluate(&self, held_out: &[Preference]) -> Result<HeldOut> {
        let _no_grad = tch::no_grad_guard();
        let (mut loss, mut right) = (0.0, 0.0);
        for piece in held_out.chunks(self.micro) {
            let margins = self.margins(&piece.iter().collect::<Vec<_>>())?;
            loss -= margins.f_log_sigmoid()?.sum(Kind::Double).double_value(&[]);
            right += margins.f_gt(0.0)?.sum(Kind::Double).double_value(&[]);
        }
        Ok(HeldOut {
            loss: loss / held_out.len() as f64,
            right: right / held_out.len() as f64,
        })
    }

    /// Pairs end at the end token, and so scores are read there. With the token by which transformers finds the last one of each sequence in a batch: without it, it scores one at a time.
    fn config(&self, tokenizer: &Tokenizer) -> ModelConfig {
        let config = self.model.config().clone().scoring_at_end_token();
        let padding = padding(tokenizer, config.vocab);
        config.padded_with(padding, tokenizer.eos_id())
    }

    fn learner(&self) -> &Learner {
        &self.learner
    }
}

impl Student {
    /// By how much each better response scores above the worse one, [pairs].
    fn margins(&self, pairs: &[&Preference]) -> Result<Tensor> {
        let better = pairs.iter().map(|pair| &pair.chosen[..]);
        let sequences: Vec<&[u32]> = better.chain(pairs.iter().map(|pair| &pair.rejected[..])).collect();
        let scores = self.model.forward(&sequences)?;
        let count = pairs.len() as i64;
        Ok(scores
            .f_narrow(0, 0, count)?
            .f_sub(&scores.f_narrow(0, count, count)?)?)
    }
}

/// The token that fills a batch. None where there is none in the model's vocabulary, or it ends responses too, as of many base models:
/// transformers would score a response at the token before its end then.
fn padding(tokenizer: &Tokenizer, vocabulary: i64) -> Option<u32> {
    let known = tokenizer.pad_id().filter(|id| i64::from(*id) < vocabulary);
    known.filter(|id| Some(*id) != tokenizer.eos_id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_filled_with_a_token_that_ends_no_response() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer");
        let padding = |folder: &Path| padding(&Tokenizer::load(folder).unwrap(), 400);
        assert_eq!(padding(&fixtures.join("qwen3")), Some(0));
        assert_eq!(padding(&fixtures.join("llama2")), None);
        let base = tempfile::tempdir().unwrap();
        let files = [
            (
                "tokenizer.json",
                std::fs::read(fixtures.join("qwen3/tokenizer.json")).unwrap(),
            ),
            (
                "tokenizer_config.json",
                br#"{"tokenizer_class": "Qwen2Tokenizer"}"#.to_vec(),
            ),
        ];
        for (name, content) in files {
            std::fs::write(base.path().join(name), content).unwrap();
        }
        assert_eq!(padding(base.path()), None);
    }
}
