//! The decoder: embedding, layers, final norm and output projection.

use anyhow::{Context, Result, ensure};
use tch::{Device, Tensor};

use super::adapter::Adapter;
use super::attention::{Attention, Ragged};
use super::batch::TokenBatch;
use super::config::{Head, ModelConfig};
use super::filler::{filled, without_filler};
use super::linear::Linear;
use super::mlp::Mlp;
use super::names;
use super::norm::RmsNorm;
use super::rope::{Rotation, frequency_tensor};
use super::weights::Weights;
use crate::native::training;

/// On a CPU rows are filled up to a multiple of these. oneDNN builds a product anew for every number of rows it has not seen (0.5 ms
/// for a small one, of which a model has a dozen) and the next micro-batch has another number. A wide model's rows cost more than
/// that: of 900 rows of a 135M, steps of 64 are 3 % filler. Nothing reads the filler and its gradients are zero.
const ROW_STEP: usize = 64;
const WIDE_ROW_STEP: usize = 16;
const WIDE: i64 = 512;

/// Ids behind a vocabulary that a [companion](Decoder::take_unknown) takes: a policy's embedding is filled up to a multiple of some hundreds.
pub const MOST_UNKNOWN: i64 = 4096;

/// A decoder over [`Weights`] that it shares: an in-place update of a tensor is an update of the model.
#[derive(Debug)]
pub struct Decoder {
    config: ModelConfig,
    parameters: Vec<(String, Tensor)>,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: RmsNorm,
    /// None on a trunk.
    lm_head: Option<Linear>,
    /// Radians per position, `[head_dim / 2]`, float32.
    frequencies: Tensor,
    checkpointing: bool,
    /// Ids behind the vocabulary that it takes.
    unknown: i64,
}

/// What all layers need to know of the batch.
#[derive(Debug)]
struct Batch {
    rotation: Rotation,
    ragged: Ragged,
}

impl Batch {
    fn shallow_clone(&self) -> Self {
        Self {
            rotation: self.rotation.shallow_clone(),
            ragged: self.ragged.shallow_clone(),
        }
    }
}

#[derive(Debug)]
struct Layer {
    input_norm: RmsNorm,
    attention: Attention,
    mlp_norm: RmsNorm,
    mlp: Mlp,
}

impl Layer {
    fn new(config: &ModelConfig, weights: &Weights, prefix: &str) -> Result<Self> {
        let norm = |name: &str| RmsNorm::new(weights, &format!("{prefix}.{name}"), config.norm_eps);
        Ok(Self {
            input_norm: norm("input_layernorm")?,
            attention: Attention::new(config, weights, &format!("{prefix}.self_attn"))?,
            mlp_norm: norm("post_attention_layernorm")?,
            mlp: Mlp::new(weights, &format!("{prefix}.mlp"))?,
        })
    }

    fn shallow_clone(&self) -> Self {
        Self {
            input_norm: self.input_norm.shallow_clone(),
            attention: self.attention.shallow_clone(),
            mlp_norm: self.mlp_norm.shallow_clone(),
            mlp: self.mlp.shallow_clone(),
        }
    }

    /// By their names below the layer's.
    fn projections_mut(&mut self) -> impl Iterator<Item = (String, &mut Linear)> {
        let attention = self
            .attention
            .projections_mut()
            .map(|(name, linear)| (format!("self_attn.{name}"), linear));
        let mlp = self
            .mlp
            .projections_mut()
            .map(|(name, linear)| (format!("mlp.{name}"), linear));
        attention.into_iter().chain(mlp)
    }

    /// With `read` (`[n]`, int64) what follows the attention is computed for these rows alone, in their order.
    fn forward(&self, input: &Tensor, batch: &Batch, read: Option<&Tensor>) -> Result<Tensor> {
        let mixed = self
            .attention
            .mix(self.input_norm.of(input), &batch.rotation, &batch.ragged)?;
        let chosen = |rows: &Tensor| read.map_or_else(|| Ok(rows.shallow_clone()), |read| rows.f_index_select(0, read));
        let middle = chosen(input)?.f_add(&self.attention.project(&chosen(&mixed)?)?)?;
        let fed = self.mlp.forward(self.mlp_norm.of(&middle))?;
        Ok(middle.f_add(&fed)?)
    }
}

impl Decoder {
    /// Takes shallow clones of the tensors that `config` calls for. With [`Head::LanguageModel`] the decoder has an output
    /// projection; under another head it is the trunk alone.
    ///
    /// # Errors
    /// When a tensor is missing.
    pub fn new(config: &ModelConfig, weights: &Weights) -> Result<Self> {
        let expected = if config.head == Head::LanguageModel {
            names::expected(config)
        } else {
            names::trunk(config)
        };
        let parameters = expected
            .into_keys()
            .map(|name| Ok((name.clone(), weights.get(&name)?.shallow_clone())))
            .collect::<Result<Vec<_>>>()?;
        let embedding = weights.get(names::EMBEDDING)?.shallow_clone();
        let lm_head = match config.head {
            Head::LanguageModel if config.tied => Some(Linear {
                weight: embedding.shallow_clone(),
                bias: None,
                adapter: None,
            }),
            Head::LanguageModel => Some(Linear::new(weights, "lm_head")?),
            Head::Score | Head::Value => None,
        };
        let layers = (0..config.layers).map(|layer| Layer::new(config, weights, &format!("model.layers.{layer}")));
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
            norm: RmsNorm::new(weights, "model.norm", config.norm_eps)?,
            frequencies: frequency_tensor(
                config.rope_scaling,
                config.rope_theta,
                config.head_dim,
                embedding.device(),
            )?,
            config: config.clone(),
            parameters,
            embedding,
            lm_head,
            checkpointing: false,
            unknown: 0,
        })
    }

    /// Computes with the tensors of `adapter`, shared, from now on.
    ///
    /// # Errors
    /// When it adapts a projection that the decoder does not have.
    pub fn attach(&mut self, adapter: &Adapter) -> Result<()> {
        let mut attached = 0;
        for (number, layer) in self.layers.iter_mut().enumerate() {
            for (name, linear) in layer.projections_mut() {
                linear.adapter = adapter.low_rank(&format!("model.layers.{number}.{name}"));
                attached += 2 * usize::from(linear.adapter.is_some());
            }
        }
        let tensors = adapter.weights.0.len();
        ensure!(
            attached == tensors,
            "the adapter has {tensors} tensors, of which the model has a place for {attached}"
        );
        Ok(())
    }

    /// Keeps only each layer's input for the backward pass and computes the layer again there: less memory, a third more
    /// work, the same gradients.
    pub fn set_activation_checkpointing(&mut self, on: bool) {
        self.checkpointing = on;
    }

    /// Takes ids behind its vocabulary from now on, [`MOST_UNKNOWN`] of them, as rows of zeros, in the embedding and in the output projection. The
    /// embedding of a policy may have rows for which its tokenizer has no token, and more of them than that of a critic or reference of the same
    /// family (Qwen2.5-7B has 152064, Qwen2.5-1.5B 151936): a policy that draws one of these is answered for, and the run goes on.
    pub fn take_unknown(&mut self) {
        self.unknown = MOST_UNKNOWN;
    }

    /// Whether it [takes](Self::take_unknown) ids behind its vocabulary.
    pub fn takes_unknown(&self) -> bool {
        self.unknown > 0
    }

    /// Where it computes.
    pub fn device(&self) -> Device {
        self.embedding.device()
    }

    /// The configuration it was made from.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Every tensor of the model itself by name, without an adapter's, in name order; a tied output projection is the embedding and appears once.
    pub fn parameters(&self) -> Vec<(String, Tensor)> {
        self.parameters
            .iter()
            .map(|(name, tensor)| (name.clone(), tensor.shallow_clone()))
            .collect()
    }

    /// Hidden states after the final norm: `[tokens, hidden]`.
    ///
    /// # Errors
    /// When an id is outside the vocabulary, or libtorch fails, as when memory runs out.
    pub fn hidden(&self, batch: &TokenBatch) -> Result<Tensor> {
        without_filler(&self.forward(batch, None)?, batch.tokens() as i64)
    }

    /// Those of `rows` (`[n]`, int64) alone: `[n, hidden]`. Of the other tokens the last layer needs no more than keys and values, so
    /// most of it is computed for these rows only.
    ///
    /// # Errors
    /// When a row is not a token's; as [`hidden`](Self::hidden).
    pub fn hidden_of(&self, batch: &TokenBatch, rows: &Tensor) -> Result<Tensor> {
        let count = rows.size1()?;
        let filler = self.filler(count as usize);
        let rows = filled(&rows.f_to_device(self.device())?, filler)?;
        without_filler(&self.forward(batch, Some(&rows))?, count)
    }

    /// Rows of filler after so many.
    pub(super) fn filler(&self, rows: usize) -> i64 {
        let step = if self.config.hidden < WIDE {
            ROW_STEP
        } else {
            WIDE_ROW_STEP
        };
        match self.device() {
            Device::Cpu => (rows.next_multiple_of(step) - rows) as i64,
            _ => 0,
        }
    }

    /// Hidden states of `read`, or of all tokens and their filler.
    fn forward(&self, batch: &TokenBatch, read: Option<&Tensor>) -> Result<Tensor> {
        ensure!(
            batch.greatest < self.config.vocab + self.unknown,
            "token id {} is outside the vocabulary of {}",
            batch.greatest,
            self.config.vocab
        );
        let batch = batch.on(self.device())?;
        let tokens = batch.tokens();
        let filler = self.filler(tokens);
        let shared = Batch {
            rotation: Rotation::at(&filled(&batch.positions, filler)?, &self.frequencies)?,
            ragged: Ragged::new(&batch.lengths, batch.boundaries),
        };
        let ids = filled(&batch.ids, filler)?;
        let mut hidden = self.embed(&ids, batch.greatest)?;
        let (last, before) = self.layers.split_last().context("a decoder has at least one layer")?;
        for layer in before {
            hidden = self.layer(layer, &hidden, &shared, None)?;
        }
        hidden = self.layer(last, &hidden, &shared, read)?;
        self.norm.forward(&hidden)
    }

    /// `[rows]` to `[rows, hidden]`, zeros for ids that have no row.
    fn embed(&self, ids: &Tensor, greatest: i64) -> Result<Tensor> {
        let vocab = self.config.vocab;
        if greatest < vocab {
            return training::embed(&self.embedding, ids);
        }
        let known = ids.f_lt(vocab)?.f_unsqueeze(1)?.f_to_kind(self.embedding.kind())?;
        Ok(training::embed(&self.embedding, &ids.f_clamp_max(vocab - 1)?)?.f_mul(&known)?)
    }

    fn layer(&self, layer: &Layer, input: &Tensor, batch: &Batch, read: Option<&Tensor>) -> Result<Tensor> {
        if !self.checkpointing {
            return layer.forward(input, batch, read);
        }
        let (layer, batch) = (layer.shallow_clone(), batch.shallow_clone());
        let read = read.map(Tensor::shallow_clone);
        training::checkpoint(
            input,
            Box::new(move |input| layer.forward(input, &batch, read.as_ref())),
        )
    }

    /// Logits of rows of hidden states: `[rows, hidden]` to `[rows, vocab]`, in the model's precision.
    ///
    /// # Errors
    /// On a trunk, or when libtorch fails.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        self.lm_head()?.forward(hidden)
    }

    /// The output projection.
    ///
    /// # Errors
    /// On a trunk.
    pub fn lm_head(&self) -> Result<&Linear> {
        self.lm_head
            .as_ref()
            .context("this decoder has no output projection: it is the trunk of a reward model or critic")
    }
}
