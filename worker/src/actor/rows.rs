//! Ragged samples to the packed rows a model computes, and back to padded [batch, time].

use tch::{Device, Kind, Tensor};

use crate::model::{Decoder, TokenBatch, ValueHead, token_logprobs};
use crate::stages::Sample;

/// Packed tokens of some samples, and which rows predict response tokens.
#[derive(Debug)]
pub struct Rows {
    /// Prompt and response of every sample, without padding.
    pub tokens: TokenBatch,
    /// [rows] int64: the packed position before each response token, whose output predicts it.
    pub predicting: Tensor,
    /// [rows] int64: the response tokens.
    pub targets: Tensor,
    /// [rows] int64: where each response token goes in the flattened [batch, time].
    places: Tensor,
    batch: i64,
    time: i64,
}

impl Rows {
    /// Rows of `samples`, padded back to `time` columns.
    pub fn new(samples: &[&Sample], time: usize, device: Device) -> anyhow::Result<Self> {
        let sequences: Vec<Vec<u32>> = samples.iter().map(|sample| sample.tokens()).collect();
        let (mut predicting, mut targets, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let mut start = 0;
        for (row, sample) in samples.iter().enumerate() {
            let prompt = sample.prompt.ids.len();
            for (column, &token) in sample.response.iter().enumerate() {
                predicting.push((start + prompt + column) as i64 - 1);
                targets.push(i64::from(token));
                places.push((row * time + column) as i64);
            }
            start += prompt + sample.response.len();
        }
        Ok(Self {
            tokens: TokenBatch::new(&sequences, device)?,
            predicting: Tensor::from_slice(&predicting).to_device(device),
            targets: Tensor::from_slice(&targets).to_device(device),
            places: Tensor::from_slice(&places).to_device(device),
            batch: samples.len() as i64,
            time: time as i64,
        })
    }

    /// [rows] to [batch, time], zero where there is no response token. Differentiable.
    fn pad(&self, rows: &Tensor) -> Tensor {
        Tensor::zeros([self.batch * self.time], (Kind::Float, rows.device()))
            .index_copy(0, &self.places, &rows.to_kind(Kind::Float))
            .view([self.batch, self.time])
    }

    /// Log-probabilities of the response tokens under the tempered distribution, and its entropy where wanted; [batch, time].
    pub fn logprobs(&self, decoder: &Decoder, temperature: f64, entropy: bool) -> anyhow::Result<(Tensor, Option<Tensor>)> {
        let hidden = decoder.hidden(&self.tokens)?.f_index_select(0, &self.predicting)?;
        let answer = token_logprobs(decoder, &hidden, &self.targets, temperature, entropy)?;
        Ok((self.pad(&answer.logprobs), answer.entropy.map(|entropy| self.pad(&entropy))))
    }

    /// The critic's value of the state before each response token, [batch, time].
    pub fn values(&self, trunk: &Decoder, head: &ValueHead) -> anyhow::Result<Tensor> {
        let hidden = trunk.hidden(&self.tokens)?.f_index_select(0, &self.predicting)?;
        Ok(self.pad(&head.forward(&hidden)?))
    }
}

/// The longest response, in tokens.
pub fn longest(samples: &[&Sample]) -> usize {
    samples.iter().map(|sample| sample.response.len()).max().unwrap_or(0)
}

/// [batch, time] float32: 1 on response tokens.
pub fn mask(samples: &[Sample], time: usize) -> Tensor {
    padded(samples, time, |sample| vec![1.0; sample.response.len()])
}

/// [batch, time] float32 from one list a sample, zero after its end.
pub fn padded(samples: &[Sample], time: usize, values: impl Fn(&Sample) -> Vec<f32>) -> Tensor {
    let mut flat = vec![0f32; samples.len() * time];
    for (row, sample) in flat.chunks_mut(time.max(1)).zip(samples) {
        let values = values(sample);
        row[..values.len()].copy_from_slice(&values);
    }
    Tensor::from_slice(&flat).view([samples.len() as i64, time as i64])
}
