//! Held-out prompts answered and scored.

use std::time::Instant;

use anyhow::{Context, Result};
use ppo_crds::run_config::Evaluation;
use serde::{Deserialize, Serialize};

use super::Trainer;
use crate::data::PromptSet;
use crate::engine::{Details, Request, SamplingParams, sample_seed};
use crate::reward::ScoredSample;
use crate::telemetry::{Answer, EvaluationReport};

/// Domain of evaluation seeds, so that they never meet those of a training step.
const EVALUATION: u64 = u64::MAX;

/// An evaluation and the answers it is made of, in the order of the prompts.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Evaluated {
    /// The numbers.
    pub report: EvaluationReport,
    /// One answer a prompt.
    pub answers: Vec<Answer>,
}

impl Trainer {
    /// Answers `prompts` with the present policy, once each, and scores the answers.
    ///
    /// # Errors
    /// When the engine or a reward source fails.
    pub fn evaluate(&self, settings: &Evaluation, prompts: &PromptSet) -> Result<Evaluated> {
        let began = Instant::now();
        let params = SamplingParams {
            temperature: settings.temperature as f32,
            ..self.sampling.as_ref().clone()
        };
        let params = std::sync::Arc::new(params);
        let requests = prompts.prompts.iter().map(|prompt| Request {
            prompt: prompt.ids.clone(),
            seeds: vec![sample_seed(self.config.seed, EVALUATION, prompt.index as u64, 0)],
            params: params.clone(),
            details: Details::default(),
        });
        let completions = self.generate(requests.collect()).context("evaluation failed")?;
        let samples = prompts
            .prompts
            .iter()
            .zip(completions.iter().flatten())
            .map(|(prompt, completion)| {
                let (ids, reason) = (&completion.tokens, completion.finish_reason);
                ScoredSample::new(&self.tokenizer, prompt.index, prompt, ids, reason)
            })
            .collect::<Result<Vec<_>>>()?;
        let scores = self.scores(&samples)?.scores;
        let count = samples.len() as f64;
        let passed = scores
            .iter()
            .filter(|score| f64::from(**score) >= settings.pass_score)
            .count();
        let tokens: usize = completions
            .iter()
            .flatten()
            .map(|completion| completion.tokens.len())
            .sum();
        let report = EvaluationReport {
            step: self.steps_done,
            prompts: samples.len() as u64,
            score: scores.iter().map(|score| f64::from(*score)).sum::<f64>() / count,
            pass_rate: passed as f64 / count,
            response_length: tokens as f64 / count,
            seconds: began.elapsed().as_secs_f64(),
        };
        let answers = samples.into_iter().zip(scores);
        let answers = answers.map(|(sample, score)| Answer {
            response: sample.visible_response,
            score: f64::from(score),
        });
        Ok(Evaluated {
            report,
            answers: answers.collect(),
        })
    }
}
