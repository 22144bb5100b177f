//! What samples weigh that another policy drew: `algorithm.rollout_correction`, as verl/trainer/ppo/rollout_corr_helper.py has it.

use serde_json::json;

use crate::convert::correction::{self, LONG, SHORT};
use crate::convert::draft::{Draft, WrongValue};
use crate::convert::row::is_off;
use crate::spec::{CorrectionLevel, Outside, RolloutCorrection};

const WEIGHTS: &str = "algorithm.rollout_correction.rollout_is";
const THRESHOLD: &str = "algorithm.rollout_correction.rollout_is_threshold";
const REJECTION: &str = "algorithm.rollout_correction.rollout_rs";
const REJECTED: &str = "algorithm.rollout_correction.rollout_rs_threshold";
const REJECTED_BELOW: &str = "algorithm.rollout_correction.rollout_rs_threshold_lower";

/// Weights, and what is left out.
pub(super) fn set(draft: &mut Draft) -> Result<(), WrongValue> {
    let older = "actor_rollout_ref.actor.tis_imp_ratio_cap";
    if let Some(cap) = draft.number(older)?.filter(|cap| *cap > 0.0) {
        let source = draft.source(older);
        correction::set(draft, RolloutCorrection::truncated(cap), &source);
    }
    let level = match chosen(draft, WEIGHTS).as_deref() {
        None => None,
        Some("token") => Some(CorrectionLevel::Token),
        Some("sequence") => Some(CorrectionLevel::Sequence),
        Some(other) => {
            let why = format!("is {other}; here are token and sequence");
            draft.leave(WEIGHTS, &why);
            None
        }
    };
    if let Some(level) = level {
        // One number truncates, two are IcePop's bounds.
        let (low, high) = bounds(draft, THRESHOLD)?.unwrap_or((None, 2.0));
        let outside = if low.is_some() {
            Outside::Mask
        } else {
            Outside::Truncate
        };
        let correction = RolloutCorrection {
            level,
            outside,
            low: low.unwrap_or(0.0),
            high,
        };
        let source = draft.source(THRESHOLD);
        correction::set(draft, correction, &source);
    }
    rejection(draft, level.is_some())
}

/// What verl leaves out by a ratio. Beside it, it weighs what is left as `rollout_is` says, which here the same block says otherwise.
fn rejection(draft: &mut Draft, is_weighed: bool) -> Result<(), WrongValue> {
    let Some(kind) = chosen(draft, REJECTION) else {
        return Ok(());
    };
    let (level, is_inverse) = match kind.as_str() {
        // Up to 0.7.
        "token" => (CorrectionLevel::Token, false),
        "sequence" => (CorrectionLevel::Sequence, false),
        "geometric" => (CorrectionLevel::Geometric, false),
        // k1 is minus the logarithm of the ratio.
        "token_k1" => (CorrectionLevel::Token, true),
        "seq_sum_k1" => (CorrectionLevel::Sequence, true),
        "seq_mean_k1" => (CorrectionLevel::Geometric, true),
        _ => {
            let why = format!(
                "is {kind}; here samples are left out by one ratio (algorithm.rolloutCorrection), and by no divergence"
            );
            draft.leave(REJECTION, &why);
            return Ok(());
        }
    };
    let given = match bounds(draft, REJECTED)? {
        Some(given) => Some(given),
        None => bounds(draft, THRESHOLD)?,
    };
    let (low, high) = given.unwrap_or((None, 2.0));
    let low = draft.number(REJECTED_BELOW)?.or(low).unwrap_or(1.0 / high);
    let (low, high) = if is_inverse {
        (1.0 / high, 1.0 / low)
    } else {
        (low, high)
    };
    let correction = RolloutCorrection {
        level,
        outside: Outside::Mask,
        low,
        high,
    };
    let source = draft.source(REJECTION);
    correction::set(draft, correction, &source);
    let theirs = if is_weighed { "as rollout_is says" } else { "1" };
    let why = format!(
        "verl also takes what it leaves out from what losses are divided by, and the rest weighs {theirs}; here it stays there, and the rest \
         weighs its ratio ({LONG})"
    );
    draft.leave(REJECTION, &why);
    Ok(())
}

/// A setting's word; none where it is off.
fn chosen(draft: &Draft, name: &str) -> Option<String> {
    draft
        .text(name)
        .filter(|word| !["null", "none"].contains(&word.to_lowercase().as_str()))
}

/// A threshold's lower bound, where it has one, and its upper one: `HIGH` or `LOW_HIGH`, both above 0.
fn bounds(draft: &Draft, name: &str) -> Result<Option<(Option<f64>, f64)>, WrongValue> {
    let Some(text) = chosen(draft, name) else {
        return Ok(None);
    };
    let wrong = || WrongValue {
        flag: draft.source(name),
        message: format!("wants a number or LOW_HIGH, above 0, has {text:?}"),
    };
    let number = |text: &str| {
        text.parse::<f64>()
            .ok()
            .filter(|number| *number > 0.0 && number.is_finite())
            .ok_or_else(wrong)
    };
    Ok(Some(match text.split_once('_') {
        Some((low, high)) => (Some(number(low)?), number(high)?),
        None => (None, number(&text)?),
    }))
}

/// What the recipe that generates one step ahead does about samples of the policy before, where it is not told.
pub(super) fn set_ahead(draft: &mut Draft) {
    if draft.has(SHORT) || draft.has(LONG) {
        return;
    }
    // On by default in one_step_off_ppo_trainer.yaml since the recipe is in verl's own package.
    let name = "algorithm.rollout_correction.bypass_mode";
    let bypasses = match draft.given_below(name).last() {
        Some(given) => !is_off(&given.values),
        None => draft
            .launcher
            .last()
            .is_some_and(|program| program.contains("experimental")),
    };
    if bypasses {
        let why = "is on in this recipe, where PPO's ratio is to the policy that drew; here it is to the one before the update, and \
                   algorithm.truncatedImportanceSampling, 2 with overlap, weighs what lies between the two";
        draft.leave(name, why);
    } else {
        let source = "verl corrects for older samples only with rollout_is; leave it out for 2";
        draft.set(SHORT, json!(0.0), source);
    }
}
