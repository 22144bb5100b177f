//! The reward role: its model. Rules and remote servers are the trainer's own calls.

use anyhow::Result;

use super::answer::check;
use super::model::ModelReward;
use super::protocol::{ScoreRequest, ScoreResponse};
use super::sample::ScoredSample;
use crate::model::budget::{PASS_TOKENS, batches};
use crate::roles::{Answer, Pool};

/// Where reward pods are asked.
const PATH: &str = "/get_reward";

/// The reward role's model: in this process, or in pods.
pub enum Reward {
    /// In this process.
    Here(ModelReward),
    /// Behind HTTP.
    There(Box<Pool>),
}

impl Answer for ScoreResponse {
    fn digest(&self) -> Option<&str> {
        self.model_digest.as_deref()
    }
}

impl Reward {
    /// Digest of the model. None: no pod has said it yet.
    pub fn digest(&self) -> Option<&str> {
        match self {
            Self::Here(model) => model.digest(),
            Self::There(pods) => pods.digest(),
        }
    }

    /// One score per sample. They are scored in the same parts here and there, so with the same bits.
    ///
    /// # Errors
    /// When the model fails, or the pods do not answer in time.
    pub async fn scores(&self, samples: &[ScoredSample]) -> Result<Vec<f32>> {
        let parts = batches(samples.iter().map(ScoredSample::tokens), PASS_TOKENS);
        let chosen: Vec<Vec<ScoredSample>> = parts
            .iter()
            .map(|part| part.iter().map(|&at| samples[at].clone()).collect())
            .collect();
        let answers = match self {
            Self::Here(model) => {
                let mut answers = Vec::with_capacity(chosen.len());
                for part in &chosen {
                    answers.push(model.score(part).await?);
                }
                answers
            }
            Self::There(pods) => {
                let questions: Vec<ScoreRequest> = chosen.iter().map(|part| ScoreRequest::of_job(part)).collect();
                let read = |number: usize, answer: ScoreResponse| Ok(check(&answer, &chosen[number])?.scores);
                pods.ask_all(PATH, &questions, read).await?
            }
        };
        let mut scores = vec![0.0; samples.len()];
        for (&at, score) in parts.iter().flatten().zip(answers.iter().flatten()) {
            scores[at] = *score;
        }
        Ok(scores)
    }
}
