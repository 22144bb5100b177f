//! Copies of the model, one for each device of the pod, each on a thread of its own: libtorch keeps a team of threads for each thread that
//! computes, and one for a device is enough.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use crossbeam_channel::{Receiver, Sender};
use tch::{Kind, Tensor};
use tokio::sync::oneshot;

use super::pod::SHORTER;
use super::protocol::{LogprobsRequest, LogprobsResponse, Sequence};
use crate::actor::rows::{Rows, passes};
use crate::data::Prompt;
use crate::device;
use crate::engine::FinishReason;
use crate::model::Decoder;
use crate::model::decoder::MOST_UNKNOWN;
use crate::model::digest::digest_of_model;
use crate::stages::Sample;

/// Requests that wait for the model; more are refused.
const QUEUE: usize = 256;

/// The model, to be asked from anywhere.
#[derive(Clone)]
pub struct Scorer {
    questions: Sender<Question>,
    /// Bounds of a request.
    pub bounds: Bounds,
    /// Of the model.
    digest: Arc<str>,
}

/// What a model can compute.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Tokens that it has. Some ids more are [taken](Decoder::take_unknown).
    pub vocabulary: u32,
    /// Tokens of the longest sequence.
    pub longest: usize,
    /// Tokens of a request.
    pub tokens: usize,
}

struct Question {
    request: LogprobsRequest,
    /// For log-probabilities by sequence.
    reply: oneshot::Sender<Result<Vec<Vec<f32>>>>,
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
    /// A thread for each of `copies` of one model, which compute what is within `bounds`: whichever is free takes the next request.
    ///
    /// # Errors
    /// When there is no copy, its weights cannot be read, or no thread can be started.
    pub fn start(copies: Vec<Decoder>, bounds: Bounds) -> Result<Self> {
        let first = copies.first().context("there is nothing to compute with")?;
        let digest: Arc<str> = digest_of_model(first.config(), first.parameters())?.into();
        let (questions, asked) = crossbeam_channel::bounded(QUEUE);
        for (number, copy) in copies.into_iter().enumerate() {
            let asked = asked.clone();
            std::thread::Builder::new()
                .name(format!("reference-{number}"))
                .spawn(move || answer_all(&copy, &asked))
                .context("cannot start a thread")?;
        }
        Ok(Self {
            questions,
            bounds,
            digest,
        })
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
        let logprobs = answer.map_err(|error| ScorerError::Failed(format!("{error:#}")))?;
        refuse_not_finite(&logprobs).map_err(ScorerError::Refused)?;
        Ok(LogprobsResponse {
            logprobs,
            digest: Some(self.digest.to_string()),
        })
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
            if let Some(id) = ids
                .into_iter()
                .find(|id| i64::from(**id) >= i64::from(self.vocabulary) + MOST_UNKNOWN)
            {
                return Err(format!(
                    "sequences[{index}]: token {id} is outside the vocabulary of {}",
                    self.vocabulary
                ));
            }
            tokens += length;
        }
        match tokens > self.tokens {
            true => Err(format!(
                "{tokens} tokens in one request, at most {}: {SHORTER}",
                self.tokens
            )),
            false => Ok(()),
        }
    }
}

/// JSON has no such numbers, and the same request would be computed the same.
fn refuse_not_finite(logprobs: &[Vec<f32>]) -> Result<(), String> {
    let is_bad = |row: &Vec<f32>| row.iter().any(|logprob| !logprob.is_finite());
    match logprobs.iter().position(is_bad) {
        None => Ok(()),
        Some(index) => Err(format!(
            "sequences[{index}]: its log-probabilities are not finite: check the weights of the reference"
        )),
    }
}

fn answer_all(decoder: &Decoder, asked: &Receiver<Question>) {
    let _no_grad = tch::no_grad_guard();
    while let Ok(Question { request, reply }) = asked.recv() {
        let is_gone = || reply.is_closed();
        let answer = device::enter(decoder.device()).and_then(|()| compute(decoder, request, is_gone));
        let _ = reply.send(answer);
    }
}

/// Pass by pass. A client that is gone needs no answer, and no further pass.
fn compute(decoder: &Decoder, request: LogprobsRequest, is_gone: impl Fn() -> bool) -> Result<Vec<Vec<f32>>> {
    let temperature = request.temperature;
    let samples: Vec<Sample> = request.sequences.into_iter().map(sample).collect();
    let all: Vec<&Sample> = samples.iter().collect();
    let mut logprobs = vec![Vec::new(); all.len()];
    for pass in passes(&all) {
        ensure!(!is_gone(), "nobody waits for the answer any more");
        let chosen: Vec<&Sample> = pass.iter().map(|&place| all[place]).collect();
        for (place, row) in pass.into_iter().zip(forward(decoder, &chosen, temperature)?) {
            logprobs[place] = row;
        }
    }
    Ok(logprobs)
}

fn forward(decoder: &Decoder, samples: &[&Sample], temperature: f64) -> Result<Vec<Vec<f32>>> {
    let lengths: Vec<usize> = samples.iter().map(|sample| sample.response.len()).collect();
    let columns = lengths.iter().copied().max().unwrap_or(0);
    let rows = Rows::new(samples, columns, false)?;
    let (logprobs, _) = rows.logprobs(decoder, temperature, None)?;
    let flat = Vec::<f32>::try_from(&Tensor::f_view(&logprobs.f_to_kind(Kind::Float)?, [-1])?)?;
    ensure!(
        flat.len() == lengths.len() * columns,
        "{} numbers came back",
        flat.len()
    );
    let of = |(row, length): (usize, &usize)| flat[row * columns..row * columns + length].to_vec();
    Ok(lengths.iter().enumerate().map(of).collect())
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::Path;

    use futures::future::join_all;
    use ppo_crds::manifest::parse_manifest;
    use ppo_crds::run_config::RunConfig;
    use ppo_crds::{Environment, resolve};
    use tch::Device;

    use super::*;
    use crate::actor::pieces::Pieces;
    use crate::actor::rows::padded_rows;
    use crate::model::budget::PASS_TOKENS;
    use crate::model::{ModelConfig, Weights};
    use crate::ranks::Ranks;
    use crate::telemetry::Live;

    fn scorer(copies: usize) -> Scorer {
        scorer_of("llama", copies)
    }

    fn scorer_of(model: &str, copies: usize) -> Scorer {
        scorer_with(model, copies, |_| ())
    }

    /// Copies whose weights `change` has changed.
    fn scorer_with(model: &str, copies: usize, change: impl Fn(&Weights)) -> Scorer {
        let copies: Vec<Decoder> = (0..copies).map(|_| decoder_of(model, &change)).collect();
        let bounds = Bounds {
            vocabulary: u32::try_from(copies[0].config().vocab).unwrap(),
            longest: 64,
            tokens: 1 << 16,
        };
        Scorer::start(copies, bounds).unwrap()
    }

    fn decoder_of(model: &str, change: impl Fn(&Weights)) -> Decoder {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(model);
        let config = ModelConfig::read(&folder).unwrap();
        let weights = Weights::load(&folder, &config, (Kind::Float, Device::Cpu)).unwrap();
        change(&weights);
        Decoder::new(&config, &weights).unwrap()
    }

    fn request(number: u32) -> LogprobsRequest {
        let sequence = |length: u32| Sequence {
            prompt: (1..4 + number).collect(),
            response: (2..2 + length).collect(),
        };
        LogprobsRequest {
            sequences: (1..4).map(sequence).collect(),
            temperature: 0.7,
        }
    }

    #[tokio::test]
    async fn several_copies_give_the_bits_of_one_and_every_answer_goes_to_whoever_asked() {
        let ask = async |scorer: Scorer| {
            let answers = join_all((0..24).map(|number| scorer.ask(request(number % 6)))).await;
            let logprobs = answers.into_iter().map(|answer| answer.unwrap().logprobs);
            logprobs.collect::<Vec<_>>()
        };
        let one = ask(scorer(1)).await;
        assert_eq!(one[0].iter().map(Vec::len).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(one[0] != one[1] && one[0] == one[6]);
        assert_eq!(ask(scorer(3)).await, one);
    }

    /// Samples of more tokens than a pass may have.
    fn many() -> Vec<Sample> {
        let lengths = (0..400).map(|number| (1 + number % 7, 40 + number % 11));
        let sequences = lengths.map(|(prompt, response)| Sequence {
            prompt: (1..=prompt).collect(),
            response: (2..2 + response).collect(),
        });
        sequences.map(sample).collect()
    }

    fn config(samples: usize) -> RunConfig {
        let manifest = format!(
            "{{apiVersion: ppojob.dev/v1alpha1, kind: PpoJob, metadata: {{name: test}}, spec: {{\
             model: {{policy: {{path: llama}}, dtype: float32}}, prompts: {{source: {{path: prompts.jsonl}}}}, \
             generation: {{maxNewTokens: 50}}, batch: {{rolloutBatchSize: {samples}, nSamplesPerPrompt: 1, trainBatchSize: {samples}, \
             microRolloutBatchSize: {samples}}}, roles: {{reward: {{rules: [{{json: {{}}}}]}}}}}}}}"
        );
        let job = parse_manifest(&manifest, "test").unwrap();
        let here = Environment::Laptop {
            manifest_folder: Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"),
        };
        resolve(&job, &here).unwrap()
    }

    #[tokio::test]
    async fn more_tokens_than_a_pass_may_have_are_split_here_as_in_the_trainers_process() {
        let samples = many();
        let passes = passes(&samples.iter().collect::<Vec<_>>());
        assert!(passes.len() > 1);
        for pass in &passes {
            let longest = pass.iter().map(|&place| samples[place].length()).max().unwrap();
            assert!(pass.len() * longest <= PASS_TOKENS);
            assert!(pass.is_sorted());
        }
        let ask = async |places: &[usize]| {
            let sequence = |&place: &usize| Sequence {
                prompt: samples[place].prompt.ids.to_vec(),
                response: samples[place].response.clone(),
            };
            let request = LogprobsRequest {
                sequences: places.iter().map(sequence).collect(),
                temperature: 0.7,
            };
            scorer(1).ask(request).await.unwrap().logprobs
        };
        let whole = ask(&(0..samples.len()).collect::<Vec<_>>()).await;
        for pass in &passes {
            let of_pass: Vec<Vec<f32>> = pass.iter().map(|&place| whole[place].clone()).collect();
            assert_eq!(ask(pass).await, of_pass, "each pass is computed alone");
        }

        let (config, live) = (config(samples.len()), Arc::new(Live::new("test", 1)));
        let pieces = Pieces::of(&config, 0, &samples, 50, 1, &live);
        let decoder = decoder_of("llama", |_| ());
        let here = pieces.logprobs(&decoder, &Ranks::alone(), 0.7).unwrap();
        assert_eq!(here, padded_rows(&whole, 50), "to the bit");
    }

    #[test]
    fn for_a_client_that_is_gone_no_further_pass_is_computed() {
        let _no_grad = tch::no_grad_guard();
        let decoder = decoder_of("llama", |_| ());
        let sequence = |sample: Sample| Sequence {
            prompt: sample.prompt.ids.to_vec(),
            response: sample.response,
        };
        let request = LogprobsRequest {
            sequences: many().into_iter().map(sequence).collect(),
            temperature: 0.7,
        };
        let looks = Cell::new(0);
        // It goes during the first pass.
        let is_gone = || looks.replace(looks.get() + 1) == 1;
        let error = compute(&decoder, request, is_gone).unwrap_err();
        assert!(error.to_string().starts_with("nobody waits"), "{error:#}");
        assert_eq!(looks.get(), 2);
    }

    #[tokio::test]
    async fn an_answer_says_which_model_it_was_computed_with() {
        let digest = async |scorer: Scorer| scorer.ask(request(0)).await.unwrap().digest.unwrap();
        let one = digest(scorer(1)).await;
        assert_eq!(digest(scorer(2)).await, one);
        assert_ne!(digest(scorer_of("qwen2", 1)).await, one);
    }

    #[tokio::test]
    async fn what_a_model_cannot_compute_is_refused_with_the_sequence() {
        let scorer = scorer(1);
        let mut outside = request(0);
        outside.sequences[1].response = vec![scorer.bounds.vocabulary + MOST_UNKNOWN as u32];
        let mut long = request(0);
        long.sequences[2].prompt = vec![1; 62];
        for (request, words) in [(outside, "sequences[1]: token"), (long, "sequences[2]: 65 tokens")] {
            let error = scorer.ask(request).await.unwrap_err();
            assert!(
                matches!(&error, ScorerError::Refused(why) if why.starts_with(words)),
                "{error}"
            );
        }
    }

    #[tokio::test]
    async fn a_model_that_computes_nan_says_so_with_the_sequence() {
        let damaged = scorer_with("llama", 1, |weights| {
            let _ = weights.0["model.norm.weight"].shallow_clone().fill_(f64::NAN);
        });
        let error = damaged.ask(request(0)).await.unwrap_err();
        let words = "sequences[0]: its log-probabilities are not finite";
        assert!(
            matches!(&error, ScorerError::Refused(why) if why.starts_with(words)),
            "{error}"
        );
    }
}
