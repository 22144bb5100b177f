//! The reference role.

use anyhow::Result;
use tch::Tensor;

use super::{Answer, Pool};
use crate::actor::Actor;
use crate::actor::pieces::Pieces;
use crate::actor::rows::padded_rows;
use crate::model::Decoder;
use crate::ranks::Ranks;
use crate::ranks::order::Order;
use crate::reference::protocol::{LogprobsRequest, LogprobsResponse, PATH, Sequence};
use crate::stages::Sample;

/// The reference role: a frozen model in this process, or pods.
pub enum Reference {
    /// What lies below the actor's adapter, at all its ranks.
    Below,
    /// In this process.
    Here {
        /// The model.
        decoder: Box<Decoder>,
        /// As in [`digest`](Self::digest).
        digest: String,
    },
    /// Behind HTTP.
    There(Box<ReferencePods>),
}

impl Reference {
    /// Log-probabilities of the response tokens under the tempered distribution, [samples, columns].
    ///
    /// # Errors
    /// When libtorch fails, a rank is lost, or the pods do not answer in time.
    pub fn logprobs(&self, actor: &Actor, pieces: &Pieces, ranks: &Ranks, temperature: f64) -> Result<Tensor> {
        match self {
            Self::Below => {
                ranks.order(&Order::FrozenLogprobs)?;
                actor.frozen_logprobs(pieces, ranks, temperature)
            }
            Self::Here { decoder, .. } => pieces.logprobs(decoder, &Ranks::alone(), temperature),
            Self::There(pods) => pods.logprobs(pieces, temperature),
        }
    }

    /// Digest of the model. None: it is the actor's own, or no pod has said it yet.
    pub fn digest(&self) -> Option<&str> {
        match self {
            Self::Below => None,
            Self::Here { digest, .. } => Some(digest),
            Self::There(pods) => pods.pool.digest(),
        }
    }
}

impl Answer for LogprobsResponse {
    fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }
}

/// The reference behind HTTP.
pub struct ReferencePods {
    /// Its pods.
    pub pool: Pool,
    /// Waits for the answers.
    pub runtime: tokio::runtime::Handle,
}

impl ReferencePods {
    /// Each piece is one request, so that its forward passes are there what they are here.
    fn logprobs(&self, pieces: &Pieces, temperature: f64) -> Result<Tensor> {
        let parts: Vec<&[Sample]> = pieces.samples.chunks(pieces.size).collect();
        let request = |part: &&[Sample]| LogprobsRequest {
            sequences: part.iter().map(sequence).collect(),
            temperature,
        };
        let requests: Vec<LogprobsRequest> = parts.iter().map(request).collect();
        let read = |number: usize, answer: LogprobsResponse| complete(parts[number], answer);
        let answers = self.runtime.block_on(self.pool.ask_all(PATH, &requests, read))?;
        let rows: Vec<Vec<f32>> = answers.into_iter().flatten().collect();
        Ok(padded_rows(&rows, pieces.columns))
    }
}

/// One number for each token of each response.
fn complete(samples: &[Sample], answer: LogprobsResponse) -> Result<Vec<Vec<f32>>, String> {
    let logprobs = answer.logprobs;
    if logprobs.len() != samples.len() {
        return Err(format!("an answer for {} of {} samples", logprobs.len(), samples.len()));
    }
    let short = samples
        .iter()
        .zip(&logprobs)
        .find(|(sample, logprobs)| sample.response.len() != logprobs.len());
    match short {
        None => Ok(logprobs),
        Some((sample, logprobs)) => Err(format!(
            "{} log-probabilities for {} tokens",
            logprobs.len(),
            sample.response.len()
        )),
    }
}

fn sequence(sample: &Sample) -> Sequence {
    Sequence {
        prompt: sample.prompt.ids.to_vec(),
        response: sample.response.clone(),
    }
}
