//! The reference behind HTTP: each piece of a step is one request, so that it is one forward pass there as it is here.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use ppo_crds::spec::Role;
use tch::Tensor;

use super::{Caller, Members};
use crate::actor::rows::padded_rows;
use crate::reference::protocol::{LogprobsRequest, LogprobsResponse, PATH, Sequence};
use crate::stages::Sample;
use crate::stop::StopFlag;
use crate::trainer::score::Pieces;

/// For all of a step: pods may have to start.
const DEADLINE: Duration = Duration::from_secs(1800);
/// For one forward pass.
const ONE_PIECE: Duration = Duration::from_secs(600);
/// Between two tries, as long as no pod answers.
const PAUSE: Duration = Duration::from_secs(1);
/// Pieces that each pod has at once: one computes, one waits.
const AHEAD: usize = 2;

/// The pods of the reference role.
pub struct ReferencePods {
    /// Where they are.
    pub members: Members,
    /// Calls them.
    pub caller: Caller,
    /// Waits for the answers.
    pub runtime: tokio::runtime::Handle,
    /// Set when the process was asked to stop.
    pub stop: StopFlag,
}

impl ReferencePods {
    pub(crate) fn logprobs(&self, pieces: &Pieces, temperature: f64) -> Result<Tensor> {
        let requests: Vec<LogprobsRequest> = pieces
            .samples
            .chunks(pieces.size)
            .map(|samples| LogprobsRequest {
                sequences: samples.iter().map(sequence).collect(),
                temperature,
            })
            .collect();
        let ends = Instant::now() + DEADLINE;
        let answers: Vec<LogprobsResponse> = self.runtime.block_on(async {
            let at_once = self.members.present().await.len().max(1) * AHEAD;
            let asked = stream::iter(requests.iter().enumerate());
            let answers = asked.map(|(index, request)| self.ask(index, request, ends));
            answers.buffered(at_once).try_collect().await
        })?;
        let logprobs: Vec<Vec<f32>> = answers.into_iter().flat_map(|answer| answer.logprobs).collect();
        ensure!(
            logprobs.len() == pieces.samples.len(),
            "the reference answered for {} of {} samples",
            logprobs.len(),
            pieces.samples.len()
        );
        for (sample, logprobs) in pieces.samples.iter().zip(&logprobs) {
            ensure!(
                logprobs.len() == sample.response.len(),
                "the reference gave {} log-probabilities for {} tokens",
                logprobs.len(),
                sample.response.len()
            );
        }
        Ok(padded_rows(&logprobs, pieces.columns))
    }

    /// Asks the pods in turn until one answers: what it computes depends on the request alone.
    async fn ask(&self, index: usize, request: &LogprobsRequest, ends: Instant) -> Result<LogprobsResponse> {
        let mut last = None;
        for turn in index.. {
            self.stop.check()?;
            let members = self.members.present().await;
            if let Some(member) = members.get(turn % members.len().max(1)) {
                match self
                    .caller
                    .post(Role::Reference, member, PATH, request, ONE_PIECE)
                    .await
                {
                    Ok(answer) => return Ok(answer),
                    Err(error) if !error.may_pass => return Err(error.into()),
                    Err(error) => last = Some(error),
                }
            }
            if Instant::now() > ends {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        match last {
            Some(error) => {
                Err(anyhow::Error::from(error).context(format!("no answer within {} s", DEADLINE.as_secs())))
            }
            None => anyhow::bail!(
                "{} had no address within {} s",
                self.members.words(),
                DEADLINE.as_secs()
            ),
        }
    }
}

fn sequence(sample: &Sample) -> Sequence {
    Sequence {
        prompt: sample.prompt.ids.to_vec(),
        response: sample.response.clone(),
    }
}
