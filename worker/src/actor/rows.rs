//! Ragged samples to the packed rows a model computes, and back to padded [batch, time].

use anyhow::Result;
use tch::{Kind, Tensor};

use crate::model::batch::together;
use crate::model::budget::{PASS_TOKENS, batches_in_order};
use crate::model::{Decoder, Entropy, Targets, TokenBatch, ValueModel, likeliest, token_logprobs};
use crate::stages::Sample;

/// Packed tokens of some samples, and which rows predict response tokens. All of it is in this machine's memory until a model computes
/// with it: where the model is, which is also where the answer is.
#[derive(Debug)]
pub struct Rows {
    /// Prompt and response of every sample, without padding.
    tokens: TokenBatch,
    policy: Places,
    critic: Places,
    /// [rows of the policy] int64: the response tokens.
    targets: Tensor,
    greatest_target: i64,
    batch: i64,
    time: i64,
}

/// Samples of each forward pass of a model that does not learn, by their places: a reference gives the same bits in this process and in
/// another because both split here.
pub fn passes(samples: &[&Sample]) -> Vec<Vec<usize>> {
    batches_in_order(samples.iter().map(|sample| sample.length()), PASS_TOKENS)
}

/// Rows of the packed batch and where they go in the flattened [batch, time], both [rows] int64.
#[derive(Debug)]
struct Places {
    packed: Tensor,
    padded: Tensor,
}

impl Rows {
    /// Rows of `samples`, padded back to `time` columns. With `slot_after` the critic also values the state after the last
    /// token, where there is a column for it (TRL trains its critic there).
    ///
    /// # Errors
    /// When a sample is longer than `time`, or libtorch fails.
    pub fn new(samples: &[&Sample], time: usize, slot_after: bool) -> Result<Self> {
        let sequences: Vec<Vec<u32>> = samples.iter().map(|sample| sample.tokens()).collect();
        let (mut policy, mut critic, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        let mut start = 0;
        for (row, sample) in samples.iter().enumerate() {
            let length = sample.response.len();
            anyhow::ensure!(
                length <= time,
                "a response of {length} tokens does not fit into {time} columns"
            );
            // The output at the token before predicts a token; for the first that is the prompt's last.
            let before = start + sample.prompt.ids.len() - 1;
            let place = |column: usize| ((before + column) as i64, (row * time + column) as i64);
            policy.extend((0..length).map(place));
            critic.extend((0..length + usize::from(slot_after && length < time)).map(place));
            targets.extend(sample.response.iter().map(|&token| i64::from(token)));
            start += sample.prompt.ids.len() + length;
        }
        Ok(Self {
            tokens: TokenBatch::new(&sequences)?,
            policy: Places::new(&policy),
            critic: Places::new(&critic),
            targets: Tensor::from_slice(&targets),
            greatest_target: targets.iter().copied().max().unwrap_or(0),
            batch: samples.len() as i64,
            time: time as i64,
        })
    }

    /// Log-probabilities of the response tokens under the tempered distribution, and the entropy that is wanted; [batch, time].
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn logprobs(
        &self,
        decoder: &Decoder,
        temperature: f64,
        entropy: Option<Entropy>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let [packed, padded, targets] = together(
            [&self.policy.packed, &self.policy.padded, &self.targets],
            decoder.device(),
        )?;
        let hidden = decoder.hidden_of(&self.tokens, &packed)?;
        let targets = Targets {
            ids: &targets,
            greatest: self.greatest_target,
        };
        let answer = token_logprobs(decoder, &hidden, targets, temperature, entropy)?;
        let entropy = answer.entropy.map(|entropy| self.pad(&padded, &entropy)).transpose()?;
        Ok((self.pad(&padded, &answer.logprobs)?, entropy))
    }

    /// 1 where a response token is not the most likely one given the tokens before it, [batch, time].
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn missed(&self, decoder: &Decoder) -> Result<Tensor> {
        let [packed, padded, targets] = together(
            [&self.policy.packed, &self.policy.padded, &self.targets],
            decoder.device(),
        )?;
        let hidden = decoder.hidden_of(&self.tokens, &packed)?;
        self.pad(&padded, &likeliest(decoder, &hidden)?.f_ne_tensor(&targets)?)
    }

    /// The critic's value of the state before each response token, [batch, time].
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn values(&self, critic: &ValueModel) -> Result<Tensor> {
        let places = [&self.critic.packed, &self.critic.padded];
        let [packed, padded] = together(places, critic.decoder.device())?;
        let values = critic.values_of(&self.tokens, &packed)?;
        self.pad(&padded, &values)
    }

    /// [rows] to [batch, time], zero where there is no row. Differentiable.
    fn pad(&self, places: &Tensor, rows: &Tensor) -> Result<Tensor> {
        Ok(Tensor::f_zeros([self.batch * self.time], (Kind::Float, rows.device()))?
            .f_index_copy(0, places, &rows.to_kind(Kind::Float))?
            .f_view([self.batch, self.time])?)
    }
}

impl Places {
    fn new(places: &[(i64, i64)]) -> Self {
        let (packed, padded): (Vec<i64>, Vec<i64>) = places.iter().copied().unzip();
        Self {
            packed: Tensor::from_slice(&packed),
            padded: Tensor::from_slice(&padded),
        }
    }
}

/// [batch, time] float32 from one list a sample, zero after its end.
pub fn padded(samples: &[Sample], time: usize, values: impl Fn(&Sample) -> Vec<f32>) -> Tensor {
    padded_rows(&samples.iter().map(values).collect::<Vec<_>>(), time)
}

/// [batch, time] float32 from one list a row, zero after its end.
pub fn padded_rows(rows: &[Vec<f32>], time: usize) -> Tensor {
    let mut flat = vec![0f32; rows.len() * time];
    for (row, values) in flat.chunks_mut(time.max(1)).zip(rows) {
        row[..values.len()].copy_from_slice(values);
    }
    Tensor::from_slice(&flat).view([rows.len() as i64, time as i64])
}

/// [batch, time] float32: 1 on response tokens.
pub fn mask(samples: &[Sample], time: usize) -> Tensor {
    padded(samples, time, |sample| vec![1.0; sample.response.len()])
}
