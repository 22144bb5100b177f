//! Held-out prompts answered and scored.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use ppo_crds::run_config::Evaluation;
use serde::{Deserialize, Serialize};

use super::Trainer;
use crate::data::{Prompt, PromptSet};
use crate::engine::{Details, Request, SamplingParams, sample_seed};
use crate::reward::ScoredSample;
use crate::telemetry::{Answer, EvaluationReport, SetReport, passes};

/// Domain of evaluation seeds, so that they never meet those of a training step.
const EVALUATION: u64 = u64::MAX;

/// An evaluation and the answers it is made of, in the order of the prompts.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Evaluated {
    /// The numbers.
    pub report: EvaluationReport,
    /// The first answer to each prompt.
    pub answers: Vec<Answer>,
}

/// Seeds of the samples of a held-out prompt: the first ones stay what they are when there are more.
fn seeds(run_seed: u64, prompt: usize, n: usize) -> Vec<u64> {
    let seed = |sample| sample_seed(run_seed, EVALUATION, prompt as u64, sample);
    (0..n as u64).map(seed).collect()
}

/// What an evaluation, or one test set of it, comes to, of `n` samples of each prompt, one prompt's after the other's. Where c of its n
/// samples pass, a prompt's pass@k is 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, "Evaluating Large Language Models Trained on Code", arXiv
/// 2107.03374, equation 1): c / n for k = 1; for k = n 1 if any passes, else 0.
fn figures(scores: &[f32], lengths: &[usize], n: usize, pass_score: f64) -> SetReport {
    let passes = |score: f32| passes(f64::from(score), pass_score);
    let count = scores.len() as f64;
    let passed = scores.iter().filter(|score| passes(**score)).count();
    let solved = |group: &&[f32]| group.iter().any(|score| passes(*score));
    let any = scores.chunks(n).filter(solved).count();
    let prompts = scores.len() / n;
    SetReport {
        prompts: prompts as u64,
        score: scores.iter().map(|score| f64::from(*score)).sum::<f64>() / count,
        pass_rate: passed as f64 / count,
        pass_at_n: (n > 1).then(|| any as f64 / prompts as f64),
        response_length: lengths.iter().sum::<usize>() as f64 / count,
    }
}

/// The figures of each test set, by its name; none where prompts name none.
fn by_set(
    prompts: &[Prompt],
    scores: &[f32],
    lengths: &[usize],
    n: usize,
    pass_score: f64,
) -> BTreeMap<String, SetReport> {
    let mut sets: BTreeMap<&str, (Vec<f32>, Vec<usize>)> = BTreeMap::new();
    let groups = scores.chunks(n).zip(lengths.chunks(n));
    for (prompt, (scores, lengths)) in prompts.iter().zip(groups) {
        if let Some(name) = prompt.set.as_deref() {
            let (of_set, lengths_of_set) = sets.entry(name).or_default();
            of_set.extend_from_slice(scores);
            lengths_of_set.extend_from_slice(lengths);
        }
    }
    let sets = sets.into_iter();
    sets.map(|(name, (scores, lengths))| (name.to_owned(), figures(&scores, &lengths, n, pass_score)))
        .collect()
}

impl Trainer {
    /// Answers `prompts` with the present policy, as many times each as `settings` say, and scores the answers.
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
        let (prompts, n) = (&prompts.prompts, settings.n_samples_per_prompt);
        let requests = prompts.iter().map(|prompt| Request {
            prompt: prompt.ids.clone(),
            seeds: seeds(self.config.seed, prompt.index, n),
            params: params.clone(),
            details: Details::default(),
        });
        let completions = self.generate(requests.collect()).context("evaluation failed")?;
        ensure!(
            completions.len() == prompts.len() && completions.iter().all(|group| group.len() == n),
            "the samples of the evaluation are not {n} of each of {} prompts",
            prompts.len()
        );
        let groups = prompts.iter().zip(&completions);
        let samples = groups
            .flat_map(|(prompt, group)| group.iter().map(move |completion| (prompt, completion)))
            .enumerate()
            .map(|(index, (prompt, completion))| {
                let (ids, reason) = (&completion.tokens, completion.finish_reason);
                ScoredSample::new(&self.tokenizer, index, prompt, ids, reason)
            })
            .collect::<Result<Vec<_>>>()?;
        let scores = self.scores(&samples)?.scores;
        let lengths: Vec<usize> = samples.iter().map(|sample| sample.response_ids.len()).collect();
        let figures = figures(&scores, &lengths, n, settings.pass_score);
        let report = EvaluationReport {
            step: self.steps_done,
            prompts: figures.prompts,
            n_samples_per_prompt: n as u64,
            score: figures.score,
            pass_rate: figures.pass_rate,
            pass_at_n: figures.pass_at_n,
            response_length: figures.response_length,
            seconds: began.elapsed().as_secs_f64(),
            sets: by_set(prompts, &scores, &lengths, n, settings.pass_score),
        };
        let answers = samples.into_iter().zip(scores).step_by(n);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sample_of_a_held_out_prompt_has_the_seed_that_an_only_one_has_and_each_other_one_of_its_own() {
        let only = sample_seed(42, EVALUATION, 7, 0);
        assert_eq!(seeds(42, 7, 1), [only]);
        let four = seeds(42, 7, 4);
        assert_eq!(four[0], only);
        assert_eq!(seeds(42, 7, 8)[..4], four);
        let mut all = [four, seeds(42, 8, 4)].concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 8);
    }

    #[test]
    fn pass_at_1_is_the_mean_over_samples_and_pass_at_n_the_share_of_prompts_of_which_any_passes() {
        let scores = [1.0, 0.0, 0.0, 0.5, 0.0, 0.0, 1.0, 1.0];
        let wanted = SetReport {
            prompts: 4,
            score: 3.5 / 8.0,
            pass_rate: 3.0 / 8.0,
            pass_at_n: Some(2.0 / 4.0),
            response_length: 2.0,
        };
        assert_eq!(figures(&scores, &[2; 8], 2, 1.0), wanted);
        let lower = SetReport {
            pass_rate: 4.0 / 8.0,
            pass_at_n: Some(3.0 / 4.0),
            ..wanted
        };
        assert_eq!(figures(&scores, &[2; 8], 2, 0.5), lower);
    }

    #[test]
    fn a_score_that_is_just_what_an_answer_must_score_passes_whatever_float32_makes_of_it() {
        for wanted in [0.1, 0.7, 0.8, 0.9, 0.95, 1.0, 3.3] {
            let rate = |score: f32| figures(&[score], &[1], 1, wanted).pass_rate;
            assert_eq!(
                (rate(wanted as f32), rate(wanted as f32 - 1e-3)),
                (1.0, 0.0),
                "{wanted}"
            );
        }
    }

    #[test]
    fn one_sample_of_each_prompt_has_no_pass_at_n() {
        let wanted = SetReport {
            prompts: 4,
            score: 0.5,
            pass_rate: 1.0 / 4.0,
            pass_at_n: None,
            response_length: 2.0,
        };
        assert_eq!(figures(&[0.5, 0.5, 0.0, 1.0], &[2; 4], 1, 1.0), wanted);
    }

    #[test]
    fn each_test_set_has_the_figures_of_its_own_prompts_wherever_they_stand_in_the_file() {
        let of = |set: &str| Prompt {
            set: Some(set.into()),
            ..Prompt::default()
        };
        let prompts = [of("GSM8K"), of("AIME24"), of("GSM8K")];
        let scores = [1.0, 1.0, 0.0, 0.5, 0.0, 1.0];
        let sets = by_set(&prompts, &scores, &[1, 2, 8, 6, 3, 6], 2, 1.0);
        let aime = SetReport {
            prompts: 1,
            score: 0.25,
            pass_rate: 0.0,
            pass_at_n: Some(0.0),
            response_length: 7.0,
        };
        let gsm = SetReport {
            prompts: 2,
            score: 0.75,
            pass_rate: 0.75,
            pass_at_n: Some(1.0),
            response_length: 3.0,
        };
        let wanted = [("AIME24".to_owned(), aime), ("GSM8K".to_owned(), gsm)];
        assert_eq!(sets, BTreeMap::from(wanted));
        let of_one = by_set(&prompts, &scores[..3], &[1, 2, 8], 1, 1.0);
        assert_eq!((of_one["GSM8K"].score, of_one["GSM8K"].pass_at_n), (0.5, None));
    }

    #[test]
    fn prompts_that_name_no_test_set_are_in_none() {
        let prompts = [Prompt::default(), Prompt::default()];
        assert!(by_set(&prompts, &[1.0, 0.0], &[1, 1], 1, 1.0).is_empty());
    }
}
