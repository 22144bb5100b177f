//! The runner on libtorch's operators, for any device in float32 or bfloat16.
//!
//! A pass is one forward over all new rows, packed; attention reads the paged cache by [`kernel::Kernel`]. Where a GPU computes, a
//! pass of single tokens runs over static tensors ([`decode`]), as a CUDA graph where `libppo_cuda.so` is found, which has kernels of
//! our own for bfloat16 besides ([`steps`]). Tokens are drawn where the logits are ([`draws`]): a pass answers with two numbers a draw,
//! and waits for the device once, besides once for each row whose log-probabilities a request asked to see.
//!
//! A row's numbers may depend on how many rows are computed beside it, since the libraries' products choose their kernels by
//! size: what [`NativeRunner`](super::native_runner::NativeRunner) promises to the bit holds here within rounding.

mod blockwise;
mod cache;
mod chunked;
mod decode;
mod decoder;
mod draws;
mod gathered;
mod groups;
pub mod kernel;
mod rotary;
mod steps;
mod truncation;
mod weights;

use anyhow::{Result, ensure};
use tch::{Device, Tensor};

use self::cache::Cache;
use self::decode::{Answer, Decode};
use self::decoder::Decoder;
use self::groups::Inputs;
use self::kernel::Kernel;
use self::steps::Steps;
use self::steps::fused::{self, Fused};
use self::steps::operators::Operators;
use self::weights::Weights;
use super::changes::Changes;
use super::flat::flatten;
use super::logprobs::detailed;
use super::runner::{ForwardBatch, Output, Runner};
use super::sampler::given;
use crate::model::MergedWeights;
use crate::native::batch::Batch;
use crate::native::cuda::{self, Shim};
use crate::native::decoder_shape::DecoderShape;
use crate::native::device::{send, synchronize, synchronize_shared};

/// Where and how large.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    /// What computes, and holds weights and cache.
    pub device: Device,
    /// How attention reads the cache.
    pub kernel: Kernel,
    /// Blocks of the cache, of `kernel.block_size()` positions.
    pub num_blocks: usize,
    /// Sequences that run at once: passes of at most so many single tokens run over static tensors on a GPU.
    pub max_sequences: usize,
    /// Which of our own kernels compute where they take the shape.
    pub kernels: Kernels,
}

/// Which of our own kernels compute, on a GPU in bfloat16: all, but to compare with less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Kernels {
    /// None: libtorch's operators.
    Operators,
    /// What lies between products and attention, and draws.
    Steps,
    /// Products of a few rows besides.
    #[default]
    Products,
}

/// Runs a decoder on libtorch's operators. It cannot compute before [`Runner::load`] has succeeded once, and must stay on the
/// thread that made it.
#[derive(Debug)]
pub struct TorchRunner {
    shape: DecoderShape,
    placement: Placement,
    decoder: Decoder,
    /// Of passes that draw one token for each sequence. None: they run as any other.
    decode: Option<Decode>,
    /// Has our own kernels, where they compute.
    fused: Option<&'static Shim>,
    /// Of the last forward, `[rows, vocab]` float32, on the device: for tests alone, as they are large.
    #[cfg(test)]
    logits: Option<Tensor>,
    loaded: bool,
}

impl TorchRunner {
    /// A decoder without weights, and a cache.
    ///
    /// # Errors
    /// When the shape cannot be run or the device's memory does not suffice.
    pub fn new(shape: &DecoderShape, placement: Placement) -> Result<Self> {
        let shim = match shim_of(placement.device) {
            None => None,
            Some((device, Ok(shim))) => {
                shim.own_stream(device)?;
                Some(shim)
            }
            Some((_, Err(error))) => {
                tracing::warn!(
                    "decoding without CUDA graphs and kernels of our own, which makes small batches several times slower: {error:#}"
                );
                None
            }
        };
        let fits = placement.kernel.flash.is_some() && fused::fits(shape);
        let fused = shim.filter(|_| fits && placement.kernels > Kernels::Operators);
        let decode = match placement.device {
            Device::Cuda(_) => Some(Decode::new(shape, &placement, shim, fused)?),
            _ => None,
        };
        Self::with(shape, placement, decode, fused)
    }

    fn with(
        shape: &DecoderShape,
        placement: Placement,
        decode: Option<Decode>,
        fused: Option<&'static Shim>,
    ) -> Result<Self> {
        shape.check()?;
        ensure!(placement.num_blocks > 0, "the key/value cache needs at least one block");
        let _no_grad = tch::no_grad_guard();
        Ok(Self {
            shape: shape.clone(),
            placement,
            decoder: Decoder::new(
                shape,
                Weights::empty(shape, placement.device)?,
                Cache::new(shape, &placement)?,
                match fused {
                    Some(shim) => Box::new(Fused {
                        shim,
                        products: placement.kernels >= Kernels::Products,
                    }) as Box<dyn Steps>,
                    None => Box::new(Operators),
                },
            )?,
            decode,
            fused,
            #[cfg(test)]
            logits: None,
            loaded: false,
        })
    }

    /// Bytes of the weights of a shape.
    pub fn weight_bytes(shape: &DecoderShape) -> usize {
        Weights::bytes(shape)
    }

    /// Logits of the rows the last batch drew from or scored, row-major `[rows, vocab]`.
    ///
    /// # Errors
    /// When the device fails.
    #[cfg(test)]
    fn logits(&self) -> Result<Vec<f32>> {
        self.logits.as_ref().map_or(Ok(vec![]), to_floats)
    }

    /// The pass up to its logits, whose rows are those of the batch that somebody reads. None: nobody reads any.
    fn answer(&mut self, flat: &Batch) -> Result<Option<Answer>> {
        if let Some(decode) = self.decode.as_mut().filter(|decode| decode.takes(flat)) {
            return Ok(Some(decode.run(flat, &self.decoder)?));
        }
        let inputs = Inputs::new(flat, &self.shape, self.placement.kernel, self.placement.device)?;
        let mut stream = self.decoder.trunk(&inputs)?;
        if flat.logit_rows.is_empty() {
            return Ok(None);
        }
        if !flat.logit_rows.iter().copied().eq(0..flat.tokens.len() as i32) {
            let rows: Vec<i64> = flat.logit_rows.iter().map(|row| i64::from(*row)).collect();
            stream = stream.chosen(&send(&Tensor::f_from_slice(&rows)?, self.placement.device)?)?;
        }
        Ok(Some(Answer {
            logits: self.decoder.logits(&mut stream)?,
            drawn: None,
        }))
    }
}

/// The library for CUDA, and the device's number, where the device is a GPU.
fn shim_of(device: Device) -> Option<(i32, Result<&'static Shim>)> {
    match device {
        Device::Cuda(index) => Some((i32::try_from(index).unwrap_or(i32::MAX), cuda::shim())),
        _ => None,
    }
}

fn to_floats(tensor: &Tensor) -> Result<Vec<f32>> {
    let plain = tensor.f_to_device(Device::Cpu)?.f_contiguous()?.f_view([-1])?;
    Ok(Vec::<f32>::try_from(&plain)?)
}

impl Runner for TorchRunner {
    fn num_blocks(&self) -> usize {
        self.placement.num_blocks
    }

    fn block_size(&self) -> usize {
        self.placement.kernel.block_size()
    }

    fn max_positions(&self) -> usize {
        self.shape.max_positions
    }

    fn forward(&mut self, batch: &ForwardBatch) -> Result<Output> {
        ensure!(self.loaded, "the runner has no weights yet: load some first");
        if batch.chunks.is_empty() {
            return Ok(Output::default());
        }
        let _no_grad = tch::no_grad_guard();
        let flat = flatten(batch, self.shape.vocab, self.block_size())?;
        flat.check(&self.shape, self.num_blocks(), self.block_size())?;
        let Some(Answer { logits, drawn }) = self.answer(&flat)? else {
            return Ok(Output::default());
        };
        let drawn = match drawn {
            Some(drawn) => drawn,
            None => draws::draw(&logits, &flat.draws, &flat.suppressed, self.fused)?,
        };
        let drawn = given(drawn);
        #[cfg(test)]
        {
            self.logits = Some(logits.shallow_clone());
        }
        detailed(batch, drawn, |row| to_floats(&logits.f_get(row as i64)?))
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        self.decoder.cache.copy_block(from, to)
    }

    fn load(&mut self, weights: &MergedWeights) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        // Weights come from threads that compute beside this one, on the stream that they share.
        synchronize_shared(self.placement.device)?;
        self.decoder.weights.load(weights, &self.shape, &mut self.loaded)?;
        // They are changed there as soon as this has returned.
        synchronize(self.placement.device)
    }

    fn change(&mut self, changes: &Changes) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        ensure!(
            self.loaded,
            "the runner has no weights that could change: load some first"
        );
        self.decoder.weights.change(changes, &self.shape, &mut self.loaded)?;
        synchronize(self.placement.device)
    }
}

#[cfg(test)]
mod tests;
