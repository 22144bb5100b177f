//! The blocks of the update: policyLoss, valueLoss, kl, klController.

use anyhow::{Context, Result, bail, ensure};
use ppo_crds::defaults;
use ppo_crds::run_config::{self, Algorithm};
use ppo_crds::spec::{Estimator, Profile, Ratio, Surrogate};
use serde_json::Value;
use tch::{Kind, Tensor};

use super::answer::Answer;
use super::block::{self, Block};
use super::question::{Question, required_mask};
use super::{correction, names};
use crate::ppo::aggregation::Denominator;
use crate::ppo::controller::KlController;
use crate::ppo::policy_loss::{PolicyInput, policy_loss};
use crate::ppo::value_loss::{ValueInput, value_loss};
use crate::ppo::{kl, mask};

impl Question {
    pub(super) fn policy_loss(&self, value: &Value) -> Result<Value> {
        let known = [
            "logprobs",
            "oldLogprobs",
            "advantages",
            "mask",
            "clipLow",
            "clipHigh",
            "dualClip",
            "aggregation",
            "ratio",
            "surrogate",
            "estimator",
            "rolloutLogprobs",
            "truncatedImportanceSampling",
            "rolloutCorrection",
            "maxResponseLength",
        ];
        let block = Block::new("policyLoss", value, &known, self.kind)?;
        let advantage = self.advantage.as_ref();
        let estimator = match block.text("estimator")? {
            Some(name) => names::estimator(&block.path("estimator"), name)?,
            None => advantage.map_or(Estimator::Gae, |advantage| advantage.estimator),
        };
        let ratio = match block.text("ratio")? {
            Some(name) => names::ratio(&block.path("ratio"), name)?,
            None => Ratio::default(),
        };
        let surrogate = match block.text("surrogate")? {
            Some(name) => names::surrogate(&block.path("surrogate"), name)?,
            None => Surrogate::default(),
        };
        let is_one_action = (self.profile, estimator) == (Profile::Trl, Estimator::Rloo);
        ensure!(
            ratio == Ratio::Token || !is_one_action,
            "policyLoss.ratio: rloo under trl has one ratio per sequence already, that of the summed log-probs; leave it out"
        );
        ensure!(
            surrogate == Surrogate::Clipped || !is_one_action,
            "policyLoss.surrogate: rloo under trl takes a response as one action, and cispo weighs tokens; leave it out"
        );
        let mut algorithm = defaults::algorithm_by(self.profile, estimator, ratio, surrogate);
        let clip = &mut algorithm.clip;
        clip.policy_low = block.number("clipLow")?.unwrap_or(clip.policy_low);
        clip.policy_high = block.number("clipHigh")?.unwrap_or(clip.policy_high);
        for (field, bound, most) in [
            ("clipLow", clip.policy_low, 1.0),
            ("clipHigh", clip.policy_high, 1000.0),
        ] {
            ensure!(
                (0.0..=most).contains(&bound),
                "policyLoss.{field}: expected how far a ratio may be from 1, 0 to {most}, found {bound}"
            );
        }
        clip.dual = block.bound("dualClip")?.unwrap_or(clip.dual);
        if let Some(dual) = clip.dual.filter(|&dual| dual <= 1.0) {
            bail!("policyLoss.dualClip: expected a number above 1, or 0 for off, found {dual}");
        }
        ensure!(
            surrogate == Surrogate::Clipped || clip.dual.is_none(),
            "policyLoss.dualClip: cispo has no dual clip; leave it out"
        );
        read_aggregation(&block, &mut algorithm)?;

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
        correction::read(&block, self.kind, rollout.is_some(), &mut algorithm)?;
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
            .number("clipFraction", result.stats()?.clip_fraction(), self.kind)?
            .number("approxKl", result.stats()?.approx_kl(), self.kind)?
            .matrix("gradient", &gradient(&result.loss, &logprobs)?)?
            .done())
    }

    pub(super) fn value_loss(&self, value: &Value) -> Result<Value> {
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
        let mut algorithm = defaults::algorithm(self.profile, Estimator::Gae);
        algorithm.clip.value = block.bound("clip")?.unwrap_or(algorithm.clip.value);
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
            .number("clipFraction", result.stats()?.clip_fraction(), self.kind)?
            .matrix("gradient", &gradient(&result.loss, &values)?)?
            .done())
    }

    pub(super) fn kl(&self, value: &Value) -> Result<Value> {
        let block = Block::new(
            "kl",
            value,
            &["logprobs", "refLogprobs", "estimator", "clamp"],
            self.kind,
        )?;
        let estimator = match block.text("estimator")? {
            Some(name) => names::kl_estimator(&block.path("estimator"), name)?,
            None => defaults::algorithm(self.profile, Estimator::Gae).kl.estimator,
        };
        let logprobs = block.required_matrix("logprobs")?;
        let reference = block.required_matrix("refLogprobs")?;
        block.same_shape(&[("logprobs", Some(&logprobs)), ("refLogprobs", Some(&reference))])?;
        let logprobs = logprobs.set_requires_grad(true);
        let clamp = block
            .bound("clamp")?
            .unwrap_or_else(|| defaults::kl_clamp(self.profile, estimator));
        let estimate = kl::estimate(&logprobs, &reference, estimator, clamp, self.profile);
        let gradient = gradient(&estimate.sum(self.kind), &logprobs)?;
        Ok(Answer::new("kl")
            .matrix("kl", &estimate)?
            .matrix("gradient", &gradient)?
            .done())
    }

    pub(super) fn kl_controller(&self, value: &Value) -> Result<Value> {
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
        let coef = block.coefficient("coef")?.context("klController.coef is missing")?;
        let mut controller = KlController::new(coef, controller, self.profile);
        let Some(observations) = block.value("observations") else {
            bail!("klController.observations is missing: expected [[kl, samples], ...]");
        };
        let Some(count) = observations.as_array().map(Vec::len) else {
            bail!(
                "klController.observations: expected [[kl, samples], ...], found {}",
                block::found(observations)
            );
        };
        let pairs = block
            .column("observations", count as i64, observation)?
            .unwrap_or_default();
        let coefs: Vec<f64> = pairs
            .into_iter()
            .map(|(kl, samples)| {
                controller.observe(kl, samples);
                controller.coef
            })
            .collect();
        Ok(Answer::new("klController").numbers("coefs", &coefs)?.done())
    }
}

fn read_aggregation(block: &Block, algorithm: &mut Algorithm) -> Result<()> {
    if let Some(name) = block.text("aggregation")? {
        algorithm.aggregation = names::aggregation(&block.path("aggregation"), name)?;
    }
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
