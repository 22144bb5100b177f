//! Models with one number per token or per sample: the critic and the reward model.

use std::path::Path;

use anyhow::{Result, ensure};
use tch::{Device, Kind, Tensor};

use super::batch::TokenBatch;
use super::config::{Head, ModelConfig};
use super::critic_folder::CriticFolder;
use super::decoder::Decoder;
use super::linear::Linear;
use super::names::{EMBEDDING, SCORE_BIAS, SCORE_WEIGHT};
use super::target::Target;
use super::weights::Weights;
use crate::native::device::send;
use crate::native::training;

/// The critic: a trunk of its own and a linear head, one value per token. Saved as `...ForTokenClassification` with one
/// label, which is what it is in transformers.
#[derive(Debug)]
pub struct ValueModel {
    /// The trunk.
    pub decoder: Decoder,
    head: Linear,
}

impl ValueModel {
    /// Reads a critic from a model folder to `target`. A saved critic comes with its head; on any other model the head
    /// starts at zero, so the first values are 0. [`CriticFolder`] may keep a reward model's.
    ///
    /// Returns the configuration and the weights, trunk and head, to train and to [`save`](super::save); build the model
    /// on them with [`new`](Self::new).
    ///
    /// # Errors
    /// As [`Weights::load`].
    pub fn load(folder: &Path, target: impl Into<Target>) -> Result<(ModelConfig, Weights)> {
        let critic = CriticFolder::read(folder, false)?;
        let weights = critic.load(target.into())?;
        Ok((critic.config().clone(), weights))
    }

    /// Configuration and weights of a critic on the trunk of `weights`, whose tensors it shares, under a head of zeros in `kind`.
    ///
    /// # Errors
    /// When there is no trunk, or memory runs out.
    pub fn upon(config: ModelConfig, weights: &Weights, kind: Kind) -> Result<(ModelConfig, Weights)> {
        let config = config.with_head(Head::Value);
        let mut weights = weights.shallow_clone();
        weights.0.retain(|name, _| name.starts_with("model."));
        let device = weights.get(EMBEDDING)?.device();
        let zeros = |dims: &[i64]| Tensor::f_zeros(dims, (kind, device));
        weights.0.insert(SCORE_WEIGHT.to_owned(), zeros(&[1, config.hidden])?);
        weights.0.insert(SCORE_BIAS.to_owned(), zeros(&[1])?);
        Ok((config, weights))
    }

    /// Takes shallow clones of the tensors.
    ///
    /// # Errors
    /// When the configuration has another head or a tensor is missing.
    pub fn new(config: &ModelConfig, weights: &Weights) -> Result<Self> {
        ensure!(
            config.head == Head::Value,
            "a critic needs a value head, the model has {:?}",
            config.head
        );
        let head = Linear::new(weights, "score")?;
        ensure!(head.bias.is_some(), "tensor {SCORE_BIAS} is missing");
        let mut decoder = Decoder::new(config, weights)?;
        // Its ids are the policy's.
        decoder.take_unknown();
        Ok(Self { decoder, head })
    }

    /// Value of each token's state, `[tokens]`, float32.
    ///
    /// # Errors
    /// As [`Decoder::hidden`].
    pub fn values(&self, batch: &TokenBatch) -> Result<Tensor> {
        one_number(&self.head, &self.decoder.hidden(batch)?)
    }

    /// Values of the states of `rows` (`[n]`, int64) alone, `[n]`, float32.
    ///
    /// # Errors
    /// As [`Decoder::hidden_of`].
    pub fn values_of(&self, batch: &TokenBatch, rows: &Tensor) -> Result<Tensor> {
        one_number(&self.head, &self.decoder.hidden_of(batch, rows)?)
    }

    /// Every trainable tensor by name: trunk, then head.
    pub fn parameters(&self) -> Vec<(String, Tensor)> {
        let mut parameters = self.decoder.parameters();
        let head = [
            (SCORE_WEIGHT, Some(&self.head.weight)),
            (SCORE_BIAS, self.head.bias.as_ref()),
        ];
        let head = head
            .into_iter()
            .filter_map(|(name, tensor)| Some((name.to_owned(), tensor?.shallow_clone())));
        parameters.extend(head);
        parameters
    }
}

/// `...ForSequenceClassification` with one label: a score per sample, read at its last token.
#[derive(Debug)]
pub struct RewardModel {
    decoder: Decoder,
    head: Linear,
}

impl RewardModel {
    /// Reads a reward model from its folder to `target`.
    ///
    /// # Errors
    /// When the folder holds another kind of model; as [`Weights::load`].
    pub fn load(folder: &Path, target: impl Into<Target>) -> Result<Self> {
        let config = Self::configuration(folder)?;
        let weights = Weights::load(folder, &config, target)?;
        let mut model = Self::new(&config, &weights)?;
        // Ids may be a policy's.
        model.decoder.take_unknown();
        Ok(model)
    }

    /// What the folder of a reward model says of it.
    ///
    /// # Errors
    /// When the folder holds another kind of model; as [`ModelConfig::read`].
    pub fn configuration(folder: &Path) -> Result<ModelConfig> {
        let config = ModelConfig::read(folder)?;
        ensure!(
            config.head == Head::Score,
            "{} is not a reward model: its config.json must name an architecture ...ForSequenceClassification, or OpenRLHF's RewardModel",
            folder.display()
        );
        Ok(config)
    }

    /// Takes shallow clones of the tensors.
    ///
    /// # Errors
    /// When a tensor is missing.
    pub fn new(config: &ModelConfig, weights: &Weights) -> Result<Self> {
        Ok(Self {
            decoder: Decoder::new(config, weights)?,
            head: Linear::new(weights, "score")?,
        })
    }

    /// The configuration it was made from.
    pub fn config(&self) -> &ModelConfig {
        self.decoder.config()
    }

    /// Where its tensors are.
    pub fn device(&self) -> Device {
        self.decoder.device()
    }

    /// Every tensor by name: trunk, then head.
    pub fn parameters(&self) -> Vec<(String, Tensor)> {
        let mut parameters = self.decoder.parameters();
        parameters.push((SCORE_WEIGHT.to_owned(), self.head.weight.shallow_clone()));
        parameters
    }

    /// Scores of whole sequences (prompt and response). The length says which token is last, never a padding id: a
    /// sequence that ends in the padding token is scored at that token.
    ///
    /// # Errors
    /// When a sequence is empty; as [`Decoder::hidden`].
    pub fn scores<S: AsRef<[u32]>>(&self, sequences: &[S]) -> Result<Vec<f32>> {
        if sequences.is_empty() {
            return Ok(Vec::new());
        }
        let _no_grad = tch::no_grad_guard();
        Ok(Vec::<f32>::try_from(&self.forward(sequences)?)?)
    }

    /// The same as `[sequences]` float32, to be differentiated.
    ///
    /// # Errors
    /// As [`scores`](Self::scores).
    pub fn forward<S: AsRef<[u32]>>(&self, sequences: &[S]) -> Result<Tensor> {
        let batch = TokenBatch::new(sequences)?;
        let rows = send(&batch.last_rows()?, self.decoder.device())?;
        one_number(&self.head, &self.decoder.hidden_of(&batch, &rows)?)
    }
}

/// `[rows, hidden]` to `[rows]`, float32 and never rounded to less: a score of 20 would move by up to 0.06 in bfloat16. The head of an
/// adapted critic is float32 over a trunk of less.
fn one_number(head: &Linear, hidden: &Tensor) -> Result<Tensor> {
    let hidden = hidden.f_to_kind(head.weight.kind())?;
    let numbers = training::wide_linear(&hidden, &head.weight, head.bias.as_ref())?;
    Ok(numbers.f_squeeze_dim(1)?.f_to_kind(Kind::Float)?)
}
