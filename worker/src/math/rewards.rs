//! The blocks from scores to advantages: shape, advantage, whiten.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};
use ppo_crds::defaults;
use ppo_crds::run_config::Algorithm;
use ppo_crds::spec::{Estimator, KlPlacement, Profile};
use serde_json::Value;
use tch::{Kind, Tensor};

use super::answer::Answer;
use super::block::{self, Block};
use super::names;
use super::question::{AdvantageBlock, Question, ShapeBlock, required_mask};
use crate::ppo::advantage::{AdvantageInput, advantages};
use crate::ppo::shape::{ShapeInput, shape};
use crate::ppo::{mask, whiten};

impl Question {
    pub(super) fn shape(&mut self, value: &Value) -> Result<Value> {
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
        let mut algorithm = defaults::algorithm(self.profile, Estimator::Gae);
        algorithm.kl.placement = KlPlacement::Reward;
        if let Some(name) = block.text("klEstimator")? {
            algorithm.kl.estimator = names::kl_estimator(&block.path("klEstimator"), name)?;
        }
        algorithm.kl.clamp = block
            .bound("klClamp")?
            .unwrap_or_else(|| defaults::kl_clamp(self.profile, algorithm.kl.estimator));
        algorithm.kl.coef = block.coefficient("klCoef")?.unwrap_or(algorithm.kl.coef);
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

    pub(super) fn advantage(&mut self, value: &Value) -> Result<Value> {
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
            "deviation",
            "scoreClip",
            "nSamplesPerPrompt",
            "klInReward",
        ];
        let block = Block::new("advantage", value, &known, self.kind)?;
        let estimator = block.text("estimator")?.map_or(Ok(Estimator::Gae), |name| {
            names::estimator(&block.path("estimator"), name)
        })?;
        let mut algorithm = defaults::algorithm(self.profile, estimator);
        algorithm.kl.placement = KlPlacement::Reward;
        algorithm.kl.coef = f64::from(block.flag("klInReward")?.unwrap_or(false));
        algorithm.gamma = block.share("gamma")?.unwrap_or(algorithm.gamma);
        algorithm.lambda = block.share("lambda")?.unwrap_or(algorithm.lambda);
        algorithm.whiten = block.flag("whiten")?.unwrap_or(algorithm.whiten);
        if let Some(name) = block.text("deviation")? {
            algorithm.deviation = names::deviation(&block.path("deviation"), name)?;
        }
        algorithm.score.whiten_rewards = block.flag("whitenRewards")?.unwrap_or(algorithm.score.whiten_rewards);
        if let Some(shape) = &self.shape {
            algorithm.score.clip = shape.score.clip;
        }
        read_score_clip(&block, &mut algorithm)?;

        let mask = required_mask(&block, self.shape.as_ref().map(|shape| &shape.mask))?;
        let given = block.matrix("rewards")?;
        let shaped = self.shape.as_ref().map(|shape| &shape.shaped);
        let rewards = given.as_ref().or(shaped.map(|shaped| &shaped.rewards));
        ensure!(
            rewards.is_some() || !reads_rewards(&algorithm),
            "advantage.rewards is missing, and there is no shape block to take them from"
        );
        let values = block.matrix("values")?;
        block.same_shape(&[("mask", Some(&mask)), ("rewards", rewards), ("values", values.as_ref())])?;
        let batch = mask.size()[0];
        let scores = match (block.column("scores", batch, block::number)?, shaped) {
            (Some(scores), _) => self.column(&scores),
            (None, Some(shaped)) if given.is_none() => shaped.scores.shallow_clone(),
            (None, _) => {
                let rewards = rewards.context("advantage.scores is missing, and there are no rewards to sum")?;
                // Under trl the score lies in the slot after the response.
                let rewarded = mask::value_mask(self.profile, &mask)?;
                mask::keep(rewards, &rewarded).sum_dim_intlist(-1, false, self.kind)
            }
        };
        let groups = block.column("groups", batch, block::label)?;
        let groups = groups.map(|labels| numbered(&labels));
        // Nobody looks at these.
        let none = mask.zeros_like().to_kind(self.kind);
        let input = AdvantageInput {
            rewards: rewards.unwrap_or(&none),
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

    pub(super) fn whiten(&self, value: &Value) -> Result<Value> {
        let block = Block::new("whiten", value, &["values", "mask", "keepMean"], self.kind)?;
        let values = block.required_matrix("values")?;
        let mask = required_mask(&block, None)?;
        block.same_shape(&[("mask", Some(&mask)), ("values", Some(&values))])?;
        let whitened = whiten::whiten(self.profile, &values, &mask, block.flag("keepMean")?.unwrap_or(false))?;
        Ok(Answer::new("whiten").matrix("whitened", &whitened)?.done())
    }

    fn column(&self, numbers: &[f64]) -> Tensor {
        Tensor::from_slice(numbers).to_kind(self.kind)
    }
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

/// Whether an estimator looks at token rewards: of those that compare scores, verl's takes the rows' sums of them, OpenRLHF's puts the
/// score back in its place among them, and a KL penalty in the reward is told by nothing else.
fn reads_rewards(algorithm: &Algorithm) -> bool {
    let of_scores = matches!(algorithm.estimator, Estimator::Grpo | Estimator::DrGrpo);
    let of_tokens = matches!(algorithm.profile, Profile::Verl | Profile::Openrlhf);
    !of_scores || of_tokens || algorithm.kl.coef != 0.0
}

fn slots(lengths: Vec<i64>) -> Result<Vec<usize>> {
    let slots = |length| {
        usize::try_from(length)
            .ok()
            .with_context(|| format!("shape.lengths holds {length}"))
    };
    lengths.into_iter().map(slots).collect()
}

/// A number for each label, the same for equal ones: its own, where all are numbers.
fn numbered(labels: &[String]) -> Vec<i64> {
    let own: Option<Vec<i64>> = labels.iter().map(|label| label.parse().ok()).collect();
    if let Some(own) = own {
        return own;
    }
    let mut known = HashMap::new();
    let mut number = |label| {
        let next = known.len() as i64;
        *known.entry(label).or_insert(next)
    };
    labels.iter().map(&mut number).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::math::run;

    #[test]
    fn rewards_are_asked_for_only_where_they_are_read() {
        let ask = |profile: &str, estimator: &str, others: Value| {
            let mut block = json!({"estimator": estimator, "groups": [0, 0, 1, 1], "mask": [[1], [1], [1], [1]]});
            for (name, value) in others.as_object().into_iter().flatten() {
                block[name] = value.clone();
            }
            run(&json!({"profile": profile, "advantage": block}).to_string()).map_err(|error| format!("{error:#}"))
        };
        let scores = json!([1, 2, 3, 4]);
        for profile in ["default", "trl", "alpacafarm"] {
            for estimator in ["grpo", "drGrpo"] {
                let without = ask(profile, estimator, json!({"scores": scores})).unwrap();
                let rewards = json!([[1], [2], [3], [4]]);
                let with = ask(profile, estimator, json!({"scores": scores, "rewards": rewards})).unwrap();
                assert_eq!(without, with, "{profile} {estimator}");
            }
        }
        let missing = "advantage.rewards is missing, and there is no shape block to take them from";
        for (profile, estimator, others) in [
            ("verl", "grpo", json!({"scores": scores})),
            ("openrlhf", "drGrpo", json!({"scores": scores})),
            ("default", "rloo", json!({"scores": scores})),
            ("default", "gae", json!({"scores": scores})),
            ("default", "grpo", json!({"scores": scores, "klInReward": true})),
        ] {
            assert_eq!(
                ask(profile, estimator, others).unwrap_err(),
                missing,
                "{profile} {estimator}"
            );
        }
        let neither = ask("default", "grpo", json!({})).unwrap_err();
        assert!(neither.starts_with("advantage.scores is missing"), "{neither}");
    }
}
