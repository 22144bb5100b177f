//! The model on a thread of its own: libtorch keeps a team of threads for each thread that computes, and one is enough.

use anyhow::{Context, Result, anyhow, ensure};
use crossbeam_channel::{Receiver, Sender};
use tch::{Kind, Tensor};
use tokio::sync::oneshot;

use super::protocol::{LogprobsRequest, LogprobsResponse, Sequence};
use crate::actor::rows::Rows;
use crate::data::Prompt;
use crate::engine::FinishReason;
use crate::model::Decoder;
use crate::stages::Sample;

/// Requests that wait for the model; more are refused.
const QUEUE: usize = 256;

/// The model, to be asked from anywhere.
#[derive(Clone)]
pub struct Scorer {
    questions: Sender<Question>,
    /// Bounds of a request.
    pub bounds: Bounds,
}

/// What a model can compute.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Ids are below this.
    pub vocabulary: u32,
    /// Tokens of the longest sequence.
    pub longest: usize,
    /// Tokens of a request.
    pub tokens: usize,
}

struct Question {
    request: LogprobsRequest,
    reply: oneshot::Sender<Result<LogprobsResponse>>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ScorerError {
    /// The request can never be computed.
    #[error("{0}")]
    Refused(String),
    /// Too many wait.
    #[error("{QUEUE} requests wait already: try again")]
    Full,
    /// The model failed.
    #[error("the reference model failed: {0}")]
    Failed(String),
}

impl Scorer {
    /// A thread that computes with `decoder` what is within `bounds`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(decoder: Decoder, bounds: Bounds) -> Result<Self> {
        let (questions, asked) = crossbeam_channel::bounded(QUEUE);
        std::thread::Builder::new()
            .name("reference".into())
            .spawn(move || answer_all(&decoder, &asked))
            .context("cannot start a thread")?;
        Ok(Self { questions, bounds })
    }

    /// The answer to a request.
    ///
    /// # Errors
    /// [`ScorerError`].
    pub async fn ask(&self, request: LogprobsRequest) -> Result<LogprobsResponse, ScorerError> {
        self.bounds.check(&request).map_err(ScorerError::Refused)?;
        let (reply, answer) = oneshot::channel();
        self.questions
            .try_send(Question { request, reply })
            .map_err(|_| ScorerError::Full)?;
        let answer = answer.await.unwrap_or_else(|_| Err(anyhow!("its thread is gone")));
        answer.map_err(|error| ScorerError::Failed(format!("{error:#}")))
    }
}

impl Bounds {
    /// What is wrong with a request, before any of it reaches the model.
    fn check(&self, request: &LogprobsRequest) -> Result<(), String> {
        if request.sequences.is_empty() {
            return Err("sequences: there is none".into());
        }
        if !(request.temperature.is_finite() && request.temperature > 0.0) {
            return Err(format!("temperature: {} is not above 0", request.temperature));
        }
        let mut tokens = 0;
        for (index, sequence) in request.sequences.iter().enumerate() {
            let length = sequence.prompt.len() + sequence.response.len();
            if sequence.prompt.is_empty() {
                return Err(format!("sequences[{index}]: the prompt has no tokens"));
            }
            if length > self.longest {
                return Err(format!(
                    "sequences[{index}]: {length} tokens, a sequence of this job has at most {}",
                    self.longest
                ));
            }
            let ids = sequence.prompt.iter().chain(&sequence.response);
            if let Some(id) = ids.into_iter().find(|id| **id >= self.vocabulary) {
                return Err(format!(
                    "sequences[{index}]: token {id} is outside the vocabulary of {}",
                    self.vocabulary
                ));
            }
            tokens += length;
        }
        match tokens > self.tokens {
            true => Err(format!(
                "{tokens} tokens in one request, at most {}: ask for fewer",
                self.tokens
            )),
            false => Ok(()),
        }
    }
}

fn answer_all(decoder: &Decoder, asked: &Receiver<Question>) {
    let _no_grad = tch::no_grad_guard();
    while let Ok(Question { request, reply }) = asked.recv() {
        // A client that is gone needs no answer, and no computing.
        if reply.is_closed() {
            continue;
        }
        let computed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| compute(decoder, request)));
        let answer = computed.unwrap_or_else(|_| Err(anyhow!("it panicked")));
        let _ = reply.send(answer);
    }
}

fn compute(decoder: &Decoder, request: LogprobsRequest) -> Result<LogprobsResponse> {
    let temperature = request.temperature;
    let samples: Vec<Sample> = request.sequences.into_iter().map(sample).collect();
    let lengths: Vec<usize> = samples.iter().map(|sample| sample.response.len()).collect();
    let columns = lengths.iter().copied().max().unwrap_or(0);
    let rows = Rows::new(&samples.iter().collect::<Vec<_>>(), columns, false)?;
    let (logprobs, _) = rows.logprobs(decoder, temperature, false)?;
    let flat = Vec::<f32>::try_from(&Tensor::f_view(&logprobs.f_to_kind(Kind::Float)?, [-1])?)?;
    ensure!(
        flat.len() == lengths.len() * columns,
        "{} numbers came back",
        flat.len()
    );
    let of = |(row, length): (usize, &usize)| flat[row * columns..row * columns + length].to_vec();
    Ok(LogprobsResponse {
        logprobs: lengths.iter().enumerate().map(of).collect(),
    })
}

/// The trainer's own form of a sequence.
fn sample(sequence: Sequence) -> Sample {
    Sample {
        prompt: Prompt {
            ids: sequence.prompt.into(),
            ..Prompt::default()
        },
        group: 0,
        rollout_logprobs: Vec::new(),
        versions: Vec::new(),
        response: sequence.response,
        finish_reason: FinishReason::Length,
    }
}
