//! The blocks of the question, each answered by the function the trainer calls.

use anyhow::{Context, Result, bail, ensure};
use ppo_crds::run_config::{self, Algorithm};
use ppo_crds::spec::{Estimator, KlPlacement, Profile};
use serde_json::{Map, Value};
use tch::{Kind, Tensor};

use super::answer::Answer;
use super::block::{self, Block};
use super::names;
use crate::ppo::advantage::{AdvantageInput, Advantages, advantages};
use crate::ppo::aggregation::Denominator;
use crate::ppo::controller::KlController;
use crate::ppo::policy_loss::{PolicyInput, policy_loss};
use crate::ppo::shape::{ShapeInput, Shaped, shape};
use crate::ppo::value_loss::{ValueInput, value_loss};
use crate::ppo::{kl, mask, profile, whiten};

/// The settings of the whole question, and what later blocks may take from earlier ones.
struct Question {
    profile: Profile,
    kind: Kind,
    shape: Option<ShapeBlock>,
    advantage: Option<AdvantageBlock>,
}

struct ShapeBlock {
    logprobs: Tensor,
    mask: Tensor,
    score: run_config::Score,
    shaped: Shaped,
}

struct AdvantageBlock {
    estimator: Estimator,
    mask: Tensor,
    values: Option<Tensor>,
    result: Advantages,
}

/// The blocks in the order they are answered.
const BLOCKS: [&str; 7] = [
    "shape",
    "advantage",
    "policyLoss",
    "valueLoss",
    "kl",
    "klController",
    "whiten",
];

pub(super) fn answer(json: &Value) -> Result<Value> {
    let known: Vec<&str> = ["profile", "dtype"].into_iter().chain(BLOCKS).collect();
    let top = Block::new("input", json, &known, Kind::Double)?;
    let mut question = Question {
        profile: top
            .text("profile")?
            .map_or(Ok(Profile::Default), |name| names::profile("profile", name))?,
        kind: top
            .text("dtype")?
            .map_or(Ok(Kind::Double), |name| names::dtype("dtype", name))?,
        shape: None,
        advantage: None,
    };
    let mut answers = Map::new();
    for name in BLOCKS {
        let Some(value) = top.value(name) else {
            continue;
        };
        let answer = match name {
            "shape" => question.shape(value),
            "advantage" => question.advantage(value),
            "policyLoss" => question.policy_loss(value),
            "valueLoss" => question.value_loss(value),
            "kl" => question.kl(value),
            "klController" => question.kl_controller(value),
            _ => question.whiten(value),
        }?;
        answers.insert(name.into(), answer);
    }
    Ok(Value::Object(answers))
}

impl Question {
    fn shape(&mut self, value: &Value) -> Result<Value> {
        let known = [
            "logprobs",
            "refLogprobs",
            "mask",
            "scores",
            "klCoef",
            "klEstimator",
            "klClamp",
            "scoreClip",
            "scoreScale",
            "missingEosPenalty",
            "finished",
            "lengths",
        ];
        let block = Block::new("shape", value, &known, self.kind)?;
        let mut algorithm = profile::algorithm(self.profile, Estimator::Gae);
        algorithm.kl.placement = KlPlacement::Reward;
        if let Some(name) = block.text("klEstimator")? {
            algorithm.kl.estimator = names::kl_estimator(&block.path("klEstimator"), name)?;
        }
        algorithm.kl.clamp = block.number("klClamp")?;
        algorithm.kl.coef = block.number("klCoef")?.unwrap_or(algorithm.kl.coef);
        read_score_clip(&block, &mut algorithm)?;
        algorithm.score.scale = block.number("scoreScale")?.unwrap_or(1.0);
        algorithm.score.missing_eos_penalty = block.number("missingEosPenalty")?;

        let logprobs = block.required_matrix("logprobs")?;
        let reference = block.matrix("refLogprobs")?;
        ensure!(
            reference.is_some() || algorithm.kl.coef == 0.0,
            "shape.refLogprobs is missing: the KL coefficient is {}",
            algorithm.kl.coef
        );
        let mask = required_mask(&block, None)?;
        block.same_shape(&[
            ("mask", Some(&mask)),
            ("logprobs", Some(&logprobs)),
            ("refLogprobs", reference.as_ref()),
        ])?;
        let batch = mask.size()[0];
        let scores = block
            .column("scores", batch, block::number)?
            .context("shape.scores is missing")?;
        let finished = block.column("finished", batch, block::boolean)?;
        let lengths = block.column("lengths", batch, block::integer)?.map(slots).transpose()?;
        let shaped = shape(
            &algorithm,
            algorithm.kl.coef,
            &ShapeInput {
                old_logprobs: &logprobs,
                ref_logprobs: reference.as_ref(),
                mask: &mask,
                scores: &self.column(&scores),
                finished: finished.as_deref(),
                lengths: lengths.as_deref(),
            },
        )
        .context("shape")?;
        let answer = Answer::new("shape")
            .matrix("rewards", &shaped.rewards)?
            .matrix("kl", &shaped.kl)?
            .done();
        self.shape = Some(ShapeBlock {
            logprobs,
            mask,
            score: algorithm.score,
            shaped,
        });
        Ok(answer)
    }

    fn advantage(&mut self, value: &Value) -> Result<Value> {
        let known = [
            "estimator",
            "rewards",
            "values",
            "mask",
            "scores",
            "groups",
            "gamma",
            "lambda",
            "whiten",
            "whitenRewards",
            "scoreClip",
            "nSamplesPerPrompt",
            "klInReward",
        ];
        let block = Block::new("advantage", value, &known, self.kind)?;
        let estimator = block.text("estimator")?.map_or(Ok(Estimator::Gae), |name| {
            names::estimator(&block.path("estimator"), name)
        })?;
        let mut algorithm = profile::algorithm(self.profile, estimator);
        algorithm.kl.placement = KlPlacement::Reward;
        algorithm.kl.coef = f64::from(block.flag("klInReward")?.unwrap_or(false));
        algorithm.gamma = block.number("gamma")?.unwrap_or(algorithm.gamma);
        algorithm.lambda = block.number("lambda")?.unwrap_or(algorithm.lambda);
        algorithm.whiten = block.flag("whiten")?.unwrap_or(algorithm.whiten);
        algorithm.score.whiten_rewards = block.flag("whitenRewards")?.unwrap_or(algorithm.score.whiten_rewards);
        if let Some(shape) = &self.shape {
            algorithm.score.clip = shape.score.clip;
        }
        read_score_clip(&block, &mut algorithm)?;

        let mask = required_mask(&block, self.shape.as_ref().map(|shape| &shape.mask))?;
        let given = block.matrix("rewards")?;
        let shaped = self.shape.as_ref().map(|shape| &shape.shaped);
        let rewards = given.as_ref().or(shaped.map(|shaped| &shaped.rewards));
        let rewards = rewards.context("advantage.rewards is missing, and there is no shape block to take them from")?;
        let values = block.matrix("values")?;
        block.same_shape(&[
            ("mask", Some(&mask)),
            ("rewards", Some(rewards)),
            ("values", values.as_ref()),
        ])?;
        let batch = mask.size()[0];
        let scores = match (block.column("scores", batch, block::number)?, shaped) {
            (Some(scores), _) => self.column(&scores),
            (None, Some(shaped)) if given.is_none() => shaped.scores.shallow_clone(),
            (None, _) => mask::keep(rewards, &mask).sum_dim_intlist(-1, false, self.kind),
        };
        let groups = block.column("groups", batch, block::integer)?;
        let input = AdvantageInput {
            rewards,
            values: values.as_ref(),
            mask: &mask,
            scores: Some(&scores),
            groups: groups.as_deref(),
            group_size: block.count("nSamplesPerPrompt")?,
        };
        let result = advantages(&algorithm, &input).context("advantage")?;
        let answer = Answer::new("advantage")
            .matrix("rawAdvantages", &result.raw)?
            .matrix("advantages", &result.advantages)?
            .matrix("returns", &result.returns)?
            .done();
        self.advantage = Some(AdvantageBlock {
            estimator,
            mask,
            values,
            result,
        });
        Ok(answer)
    }

    fn policy_loss(&self, value: &Value) -> Result<Value> {
        let known = [
            "logprobs",
            "oldLogprobs",
            "advantages",
            "mask",
            "clipLow",
            "clipHigh",
            "dualClip",
            "aggregation",
            "estimator",
            "rolloutLogprobs",
            "truncatedImportanceSampling",
            "maxResponseLength",
        ];
        let block = Block::new("policyLoss", value, &known, self.kind)?;
        let advantage = self.advantage.as_ref();
        let estimator = match block.text("estimator")? {
            Some(name) => names::estimator(&block.path("estimator"), name)?,
            None => advantage.map_or(Estimator::Gae, |advantage| advantage.estimator),
        };
        let mut algorithm = profile::algorithm(self.profile, estimator);
        let clip = &mut algorithm.clip;
        clip.policy_low = block.number("clipLow")?.unwrap_or(clip.policy_low);
        clip.policy_high = block.number("clipHigh")?.unwrap_or(clip.policy_high);
        clip.dual = block
            .number_or_off("dualClip")?
            .unwrap_or(clip.dual)
            .filter(|&dual| dual != 0.0);
        if let Some(dual) = clip.dual.filter(|&dual| dual <= 1.0) {
            bail!("policyLoss.dualClip: expected a number above 1, or 0 for off, found {dual}");
        }
        read_aggregation(&block, &mut algorithm)?;
        algorithm.truncated_importance_sampling = block.number("truncatedImportanceSampling")?;

        let logprobs = block.required_matrix("logprobs")?;
        let old = block.matrix("oldLogprobs")?;
        let old = old.as_ref().or(self.shape.as_ref().map(|shape| &shape.logprobs));
        let old =
            old.context("policyLoss.oldLogprobs is missing, and there is no shape block to take logprobs from")?;
        let given = block.matrix("advantages")?;
        let taken = given
            .as_ref()
            .or(advantage.map(|advantage| &advantage.result.advantages));
        let taken = taken.context("policyLoss.advantages is missing, and there is no advantage block")?;
        let mask = required_mask(&block, self.earlier_mask())?;
        let rollout = block.matrix("rolloutLogprobs")?;
        block.same_shape(&[
            ("mask", Some(&mask)),
            ("logprobs", Some(&logprobs)),
            ("oldLogprobs", Some(old)),
            ("advantages", Some(taken)),
            ("rolloutLogprobs", rollout.as_ref()),
        ])?;
        let logprobs = logprobs.set_requires_grad(true);
        let input = PolicyInput {
            logprobs: &logprobs,
            old_logprobs: old,
            advantages: taken,
            mask: &mask,
            rollout_logprobs: rollout.as_ref(),
        };
        let whole = denominator(&block, &mask)?;
        let result = policy_loss(&algorithm, &input, &whole).context("policyLoss")?;
        Ok(Answer::new("policyLoss")
            .number("loss", result.loss.f_double_value(&[])?, self.kind)?
            .number("clipFraction", result.stats.clip_fraction(), self.kind)?
            .number("approxKl", result.stats.approx_kl(), self.kind)?
            .matrix("gradient", &gradient(&result.loss, &logprobs)?)?
            .done())
    }

    fn value_loss(&self, value: &Value) -> Result<Value> {
        let known = [
            "values",
            "oldValues",
            "returns",
            "mask",
            "valueMask",
            "clip",
            "aggregation",
            "maxResponseLength",
        ];
        let block = Block::new("valueLoss", value, &known, self.kind)?;
        let advantage = self.advantage.as_ref();
        let mut algorithm = profile::algorithm(self.profile, Estimator::Gae);
        let clip = block
            .number_or_off("clip")?
            .unwrap_or(algorithm.clip.value)
            .filter(|&clip| clip != 0.0);
        if let Some(clip) = clip.filter(|&clip| clip < 0.0) {
            bail!("valueLoss.clip: expected a number above 0, or 0 for off, found {clip}");
        }
        algorithm.clip.value = clip;
        read_aggregation(&block, &mut algorithm)?;

        let values = block.required_matrix("values")?;
        let given_old = block.matrix("oldValues")?;
        let old = given_old
            .as_ref()
            .or(advantage.and_then(|advantage| advantage.values.as_ref()));
        let old = old.context("valueLoss.oldValues is missing, and there is no advantage block with values")?;
        let given_returns = block.matrix("returns")?;
        let returns = given_returns
            .as_ref()
            .or(advantage.map(|advantage| &advantage.result.returns));
        let returns = returns.context("valueLoss.returns is missing, and there is no advantage block")?;
        let mask = match block.mask("valueMask")? {
            Some(mask) => mask,
            None => mask::value_mask(self.profile, &required_mask(&block, self.earlier_mask())?)?,
        };
        block.same_shape(&[
            ("mask", Some(&mask)),
            ("values", Some(&values)),
            ("oldValues", Some(old)),
            ("returns", Some(returns)),
        ])?;
        let values = values.set_requires_grad(true);
        let whole = denominator(&block, &mask)?;
        let input = ValueInput {
            values: &values,
            old_values: old,
            returns,
            mask: &mask,
        };
        let result = value_loss(&algorithm, &input, &whole).context("valueLoss")?;
        Ok(Answer::new("valueLoss")
            .number("loss", result.loss.f_double_value(&[])?, self.kind)?
            .number("clipFraction", result.stats.clip_fraction(), self.kind)?
            .matrix("gradient", &gradient(&result.loss, &values)?)?
            .done())
    }

    fn kl(&self, value: &Value) -> Result<Value> {
        let block = Block::new(
            "kl",
            value,
            &["logprobs", "refLogprobs", "estimator", "clamp"],
            self.kind,
        )?;
        let estimator = match block.text("estimator")? {
            Some(name) => names::kl_estimator(&block.path("estimator"), name)?,
            None => profile::algorithm(self.profile, Estimator::Gae).kl.estimator,
        };
        let logprobs = block.required_matrix("logprobs")?;
        let reference = block.required_matrix("refLogprobs")?;
        block.same_shape(&[("logprobs", Some(&logprobs)), ("refLogprobs", Some(&reference))])?;
        let logprobs = logprobs.set_requires_grad(true);
        let estimate = kl::estimate(&logprobs, &reference, estimator, block.number("clamp")?, self.profile);
        let gradient = gradient(&estimate.sum(self.kind), &logprobs)?;
        Ok(Answer::new("kl")
            .matrix("kl", &estimate)?
            .matrix("gradient", &gradient)?
            .done())
    }

    fn kl_controller(&self, value: &Value) -> Result<Value> {
        let block = Block::new(
            "klController",
            value,
            &["coef", "target", "horizon", "observations"],
            Kind::Double,
        )?;
        let controller = match (positive(&block, "target")?, positive(&block, "horizon")?) {
            (None, _) => run_config::KlController::Fixed,
            (Some(target), Some(horizon)) => run_config::KlController::Adaptive { target, horizon },
            (Some(target), None) if self.profile == Profile::Alpacafarm => {
                run_config::KlController::Adaptive { target, horizon: 1.0 } // AlpacaFarm has no horizon.
            }
            (Some(_), None) => bail!("klController.horizon is missing: a coefficient with a target is adaptive"),
        };
        let mut controller = KlController::new(block.required_number("coef")?, controller, self.profile);
        let Some(observations) = block.value("observations") else {
            bail!("klController.observations is missing: expected [[kl, samples], ...]");
        };
        let count = observations.as_array().map_or(0, Vec::len) as i64;
        let pairs = block.column("observations", count, observation)?.unwrap_or_default();
        let coefs: Vec<f64> = pairs
            .into_iter()
            .map(|(kl, samples)| {
                controller.observe(kl, samples);
                controller.coef
            })
            .collect();
        Ok(Answer::new("klController").numbers("coefs", &coefs)?.done())
    }

    fn whiten(&self, value: &Value) -> Result<Value> {
        let block = Block::new("whiten", value, &["values", "mask", "keepMean"], self.kind)?;
        let values = block.required_matrix("values")?;
        let mask = required_mask(&block, None)?;
        block.same_shape(&[("mask", Some(&mask)), ("values", Some(&values))])?;
        let whitened = whiten::whiten(self.profile, &values, &mask, block.flag("keepMean")?.unwrap_or(false))?;
        Ok(Answer::new("whiten").matrix("whitened", &whitened)?.done())
    }

    fn earlier_mask(&self) -> Option<&Tensor> {
        let advantage = self.advantage.as_ref().map(|advantage| &advantage.mask);
        advantage.or(self.shape.as_ref().map(|shape| &shape.mask))
    }

    fn column(&self, numbers: &[f64]) -> Tensor {
        Tensor::from_slice(numbers).to_kind(self.kind)
    }
}

fn required_mask(block: &Block, earlier: Option<&Tensor>) -> Result<Tensor> {
    let mask = block.mask("mask")?.or(earlier.map(Tensor::shallow_clone));
    mask.with_context(|| format!("{}.mask is missing", block.name))
}

fn read_aggregation(block: &Block, algorithm: &mut Algorithm) -> Result<()> {
    if let Some(name) = block.text("aggregation")? {
        algorithm.aggregation = names::aggregation(&block.path("aggregation"), name)?;
    }
    Ok(())
}

/// c, [least, greatest], {min, max}, or false.
fn read_score_clip(block: &Block, algorithm: &mut Algorithm) -> Result<()> {
    let path = block.path("scoreClip");
    let Some(value) = block.value("scoreClip") else {
        return Ok(());
    };
    let bound = |value: &Value| block::number(value, &path, Kind::Double);
    let range = match value {
        Value::Bool(false) => {
            algorithm.score.clip = None;
            return Ok(());
        }
        Value::Number(_) => (-bound(value)?, bound(value)?),
        Value::Array(bounds) if bounds.len() == 2 => (bound(&bounds[0])?, bound(&bounds[1])?),
        Value::Object(bounds) if bounds.len() == 2 && bounds.contains_key("min") && bounds.contains_key("max") => {
            (bound(&bounds["min"])?, bound(&bounds["max"])?)
        }
        other => bail!(
            "{path}: expected c, [least, greatest] or {{min, max}}, found {}",
            block::found(other)
        ),
    };
    ensure!(
        range.0 <= range.1,
        "{path}: the range from {} to {} is empty",
        range.0,
        range.1
    );
    algorithm.score.clip = Some(range);
    Ok(())
}

fn denominator(block: &Block, mask: &Tensor) -> Result<Denominator> {
    let longest = block.count("maxResponseLength")?.unwrap_or(mask.size()[1] as usize);
    Ok(Denominator::of(mask, longest))
}

fn gradient(loss: &Tensor, leaf: &Tensor) -> Result<Tensor> {
    loss.f_backward()?;
    let gradient = leaf.f_grad()?;
    Ok(if gradient.defined() {
        gradient
    } else {
        leaf.zeros_like().detach()
    })
}

fn positive(block: &Block, field: &str) -> Result<Option<f64>> {
    let number = block.number(field)?;
    if let Some(number) = number.filter(|&number| number <= 0.0) {
        bail!("{}: expected a number above 0, found {number}", block.path(field));
    }
    Ok(number)
}

fn observation(value: &Value, path: &str, kind: Kind) -> Result<(f64, usize)> {
    let Some([kl, samples]) = value.as_array().map(Vec::as_slice) else {
        bail!("{path}: expected [kl, samples], found {}", block::found(value));
    };
    let samples_path = format!("{path}[1]");
    let Ok(samples) = usize::try_from(block::integer(samples, &samples_path, kind)?) else {
        bail!("{samples_path}: expected a number of samples, found {samples}");
    };
    Ok((block::number(kl, &format!("{path}[0]"), kind)?, samples))
}

fn slots(lengths: Vec<i64>) -> Result<Vec<usize>> {
    let slots = |length| {
        usize::try_from(length)
            .ok()
            .with_context(|| format!("shape.lengths holds {length}"))
    };
    lengths.into_iter().map(slots).collect()
}
