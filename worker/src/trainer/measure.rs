//! The numbers of a completed step.

use std::time::Duration;

use anyhow::Result;
use ppo_crds::run_config::{Algorithm, Batch as Sizes, Score};
use tch::{Kind, Tensor};

use super::Trainer;
use super::score::different;
use crate::actor::lesson::Lesson;
use crate::actor::update::Learnt;
use crate::engine::FinishReason;
use crate::outcome::Diverged;
use crate::ppo::controller::observed_kl;
use crate::ppo::correction::corrected;
use crate::ppo::mask::value_mask;
use crate::ppo::shape::clip;
use crate::ppo::stats::{explained_variance, mismatch, summary};
use crate::stages::{Batch, Drawn, Sample, Scored};
use crate::telemetry::{Metric, StepReport};

impl Trainer {
    /// Fills the step's report and moves the KL coefficient by what was observed. A KL above `kl.stopAbove` is told beside it.
    pub(super) fn measure(
        &mut self,
        batch: &Batch,
        learnt: &Learnt,
        wall: Duration,
    ) -> Result<(StepReport, Option<Diverged>)> {
        let scored = &batch.scored;
        let mut report = StepReport {
            step: self.steps_done,
            total_steps: self.total_steps,
            episode: self.order.episode_of(self.draws - scored.drawn.draws) + 1,
            policy_version: self.steps_done,
            samples: scored.samples().len() as u64,
            stages: std::mem::take(&mut self.stages),
            wall,
            ..StepReport::default()
        };
        drawn(&mut report, &scored.drawn, &self.config.batch)?;
        rewards(&mut report, batch, &self.config.algorithm.score)?;
        staleness(&mut report, scored.samples(), self.steps_done - 1);
        per_token(&mut report, batch, &self.config.algorithm)?;
        update(&mut report, learnt, &self.config.algorithm);
        report.set(Metric::KlCoefficient, self.kl.coef);
        if self.critic.is_some() {
            let trained = value_mask(self.config.algorithm.profile, &scored.mask)?;
            critic(&mut report, batch, &trained)?;
        }
        report.set(Metric::SamplesDrawnAgain, self.rollout.take_drawn_again() as f64);
        let generated = report.get(Metric::GeneratedTokens).unwrap_or(0.0);
        let generating = self.ahead.took.as_secs_f64();
        if generating > 0.0 {
            report.set(Metric::GenerationTokensPerSecond, generated / generating);
        }
        let tokens = generated + report.get(Metric::PromptTokens).unwrap_or(0.0);
        report.set(Metric::TokensPerSecond, tokens / wall.as_secs_f64().max(1e-9));
        let diverged = self.observe_kl(batch, &report, learnt)?;
        Ok((report, diverged))
    }

    /// Moves the KL coefficient; whether the KL is above `kl.stopAbove`.
    fn observe_kl(&mut self, batch: &Batch, report: &StepReport, learnt: &Learnt) -> Result<Option<Diverged>> {
        if self.kl.observes(learnt.actor_updates > 0) {
            let profile = self.config.algorithm.profile;
            let observed = observed_kl(profile, &batch.shaped.kl, &batch.scored.mask, learnt.kl_loss())?;
            self.kl.observe(observed, batch.scored.samples().len());
        }
        let kl = report.get(Metric::Kl).unwrap_or(0.0);
        let limit = self.config.algorithm.kl.stop_above.filter(|limit| kl > *limit);
        Ok(limit.map(|limit| Diverged {
            step: self.steps_done,
            what: format!(
                "mean sequence KL to the reference is {kl:.3}, above algorithm.kl.stopAbove = {limit}; raise algorithm.kl.coef or lower \
                 optimizer.actorLearningRate"
            ),
        }))
    }
}

/// Scores, lengths and further numbers of every sample that was drawn: of those that are learnt from alone they would not say how good the
/// policy is.
fn drawn(report: &mut StepReport, drawn: &Drawn, sizes: &Sizes) -> Result<()> {
    let Drawn { chosen, left_out, .. } = drawn;
    let scores = [&chosen.scores[..], &left_out.scores].concat();
    let n = sizes.n_samples_per_prompt;
    if n > 1 {
        let compared = [&chosen.compared[..], &left_out.compared].concat();
        let groups = compared.len() / n;
        let equal = groups - different(&compared, n);
        report.set(Metric::GroupsEqual, equal as f64 / groups.max(1) as f64);
    }
    if sizes.max_draws.is_some() {
        report.set(Metric::Draws, drawn.draws as f64);
    }
    let scores = Tensor::from_slice(&scores).unsqueeze(1); // [drawn, 1]
    let all = summary(&scores, &scores.ones_like())?;
    report.set(Metric::Score, all.mean);
    report.set(Metric::ScoreMax, all.max);
    report.set(Metric::ScoreMin, all.min);
    report.set(Metric::ScoreStd, all.variance.sqrt());
    let samples: Vec<&Sample> = chosen.samples.iter().chain(&left_out.samples).collect();
    lengths(report, &samples);
    for (name, values) in &chosen.extra {
        let values = values.iter().chain(left_out.extra.get(name).into_iter().flatten());
        let values: Vec<f64> = values.copied().map(f64::from).filter(|value| !value.is_nan()).collect();
        if !values.is_empty() {
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            report.extra.insert(name.clone(), mean);
        }
    }
    Ok(())
}

fn rewards(report: &mut StepReport, batch: &Batch, settings: &Score) -> Result<()> {
    let samples = batch.scored.samples().len().max(1) as f64;
    let per_sample = |token: &Tensor| token.sum(Kind::Double).double_value(&[]) / samples;
    let rewards = batch.shaped.rewards.sum_dim_intlist(-1, true, Kind::Double); // [batch, 1]
    let rewards = summary(&rewards, &rewards.ones_like())?;
    report.set(Metric::Reward, rewards.mean);
    report.set(Metric::RewardMax, rewards.max);
    report.set(Metric::RewardMin, rewards.min);
    let placed = Vec::<f64>::try_from(batch.shaped.scores.f_to_kind(Kind::Double)?)?;
    let placed: f64 = placed.into_iter().map(|score| clip(settings, score)).sum();
    report.set(Metric::NonScoreReward, rewards.mean - placed / samples);
    if batch.scored.reference_logprobs.is_some() {
        report.set(Metric::Kl, per_sample(&(&batch.shaped.kl * &batch.scored.mask)));
    }
    let drawn = &batch.scored.old_logprobs * &batch.scored.mask;
    report.set(Metric::SequenceEntropy, -per_sample(&drawn));
    Ok(())
}

fn lengths(report: &mut StepReport, samples: &[&Sample]) {
    let lengths = || samples.iter().map(|sample| sample.response.len());
    let count = samples.len().max(1) as f64;
    let share = |reason| samples.iter().filter(|sample| sample.finish_reason == reason).count() as f64 / count;
    let generated = lengths().sum::<usize>() as f64;
    report.set(Metric::GeneratedTokens, generated);
    report.set(
        Metric::PromptTokens,
        samples.iter().map(|sample| sample.prompt.ids.len()).sum::<usize>() as f64,
    );
    report.set(Metric::ResponseLength, generated / count);
    report.set(Metric::ResponseLengthMax, lengths().max().unwrap_or(0) as f64);
    report.set(Metric::ResponseLengthMin, lengths().min().unwrap_or(0) as f64);
    report.set(Metric::ResponseClipped, share(FinishReason::Length));
    report.set(Metric::EosFinished, share(FinishReason::Stop));
    report.set(Metric::EosTokens, share(FinishReason::Stop) * count);
}

/// How far behind `version`, the one that learnt from them, the samples were.
fn staleness(report: &mut StepReport, samples: &[Sample], version: u64) {
    let behind = || {
        let drawn = samples.iter().flat_map(|sample| &sample.versions);
        drawn.map(|drawn| version.saturating_sub(*drawn))
    };
    report.set(
        Metric::Staleness,
        behind().sum::<u64>() as f64 / behind().count().max(1) as f64,
    );
    report.set(Metric::StalenessMax, behind().max().unwrap_or(0) as f64);
}

fn per_token(report: &mut StepReport, batch: &Batch, algorithm: &Algorithm) -> Result<()> {
    let Scored {
        mask,
        old_logprobs,
        rollout_logprobs,
        ..
    } = &batch.scored;
    let advantages = summary(&batch.advantages.advantages, mask)?;
    report.set(Metric::AdvantageMean, advantages.mean);
    report.set(Metric::AdvantageStd, advantages.variance.sqrt());
    report.set(Metric::AdvantageMin, advantages.min);
    report.set(Metric::AdvantageMax, advantages.max);
    let difference = mismatch(old_logprobs, rollout_logprobs, mask)?;
    report.set(Metric::LogprobDifference, difference.mean);
    report.set(Metric::LogprobDifferenceMax, difference.max);
    // What is left out of the losses has no weight in them.
    let learnt = Lesson::taught(batch, algorithm)?.mask;
    if let Some(corrected) = corrected(algorithm, old_logprobs, rollout_logprobs, &learnt)? {
        report.set(Metric::CorrectionOutside, corrected.outside);
        report.set(Metric::CorrectionWeight, corrected.weight);
    }
    Ok(())
}

fn critic(report: &mut StepReport, batch: &Batch, trained: &Tensor) -> Result<()> {
    let Some(values) = &batch.scored.values else {
        return Ok(());
    };
    let returns = &batch.advantages.returns;
    let of_values = summary(values, trained)?;
    report.set(Metric::ValueMean, of_values.mean);
    report.set(Metric::ValueStd, of_values.variance.sqrt());
    report.set(Metric::ValueMin, of_values.min);
    report.set(Metric::ValueMax, of_values.max);
    let of_returns = summary(returns, trained)?;
    report.set(Metric::ReturnMean, of_returns.mean);
    report.set(Metric::ReturnStd, of_returns.variance.sqrt());
    report.set(Metric::ReturnMin, of_returns.min);
    report.set(Metric::ReturnMax, of_returns.max);
    report.set(Metric::ExplainedVariance, explained_variance(values, returns, trained)?);
    Ok(())
}

fn update(report: &mut StepReport, learnt: &Learnt, algorithm: &Algorithm) {
    let actor = learnt.actor_updates > 0;
    let critic = learnt.critic_updates > 0;
    let policy = &learnt.policy_stats;
    let dual_clips = actor && algorithm.clip.dual.is_some();
    let numbers = [
        (Metric::PolicyLoss, learnt.policy_loss()),
        (Metric::Entropy, learnt.entropy()),
        (Metric::KlLoss, learnt.kl_loss()),
        (Metric::TotalLoss, learnt.total_loss(algorithm.value_coef)),
        (Metric::ActorGradNorm, learnt.actor_grad_norm()),
        (Metric::ActorLearningRate, actor.then_some(learnt.actor_learning_rate)),
        (Metric::ClipFraction, actor.then(|| policy.clip_fraction())),
        (
            Metric::DualClipFraction,
            dual_clips.then(|| policy.dual_clip_fraction()),
        ),
        (Metric::ApproxKl, actor.then(|| policy.approx_kl())),
        (Metric::RatioMean, actor.then(|| policy.ratio_mean())),
        (Metric::RatioVariance, actor.then(|| policy.ratio_variance())),
        (Metric::RatioMax, actor.then_some(policy.ratio_max)),
        (Metric::ValueLoss, learnt.value_loss()),
        (
            Metric::ValueClipFraction,
            critic.then(|| learnt.value_stats.clip_fraction()),
        ),
        (Metric::CriticGradNorm, learnt.critic_grad_norm()),
        (
            Metric::CriticLearningRate,
            critic.then_some(learnt.critic_learning_rate),
        ),
    ];
    for (metric, value) in numbers {
        if let Some(value) = value {
            report.set(metric, value);
        }
    }
}
