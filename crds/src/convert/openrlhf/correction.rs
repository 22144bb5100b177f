//! What tokens weigh that the engine drew with other probabilities than the actor's: `is_correction_enable` with a type up to 0.11.1, since
//! then a level, a mode and a gating, whose schemes have names in openrlhf/cli/train_ppo_ray.py.

use serde_json::{Value, json};

use crate::convert::draft::{Draft, WrongValue};
use crate::convert::row::Read::Numbers;

const FIELD: &str = "algorithm.truncatedImportanceSampling";
const THRESHOLD: &str = "algo.advantage.is_correction_threshold";
const LEVEL: &str = "algo.advantage.is_correction_level";
const GATING: &str = "algo.advantage.is_correction_gating";

/// The truncated ratio, with the upper bound of whatever scheme was chosen.
pub(super) fn set(draft: &mut Draft) -> Result<(), WrongValue> {
    let level = draft.text(LEVEL).filter(|level| level != "off");
    if level.is_none() && !draft.truth("algo.advantage.is_correction_enable")? {
        if draft.has("overlap") {
            let source = "OpenRLHF corrects for older samples only with is_correction_enable; leave it out for 2";
            draft.set(FIELD, json!(0.0), source);
        }
        return Ok(());
    }
    // PolicyLoss (openrlhf/models/loss.py) takes the correction of GSPO into the ratio, and neither weighs nor leaves out.
    if draft.get("algorithm.ratio").is_some_and(|ratio| ratio == "sequence") {
        let source = "with gspo the ratio is to the engine's log-probs, whatever the number";
        draft.set(FIELD, json!(2.0), source);
        return Ok(());
    }
    let gating = draft.text(GATING).filter(|gating| level.is_some() && gating != "ratio");
    if let Some(gating) = gating {
        // The threshold bounds a divergence, not a ratio.
        draft.set(FIELD, json!(2.0), "what is nearest to the gate");
        let why = format!(
            "is {gating}, by which OpenRLHF leaves out what has moved too far; here nothing is left out, and a token's ratio is truncated at 2 \
             ({FIELD})"
        );
        draft.leave(GATING, &why);
        return Ok(());
    }
    let (low, cap, source) = bounds(draft, level.is_some())?;
    draft.set(FIELD, json!(cap), &source);
    let clips = draft.text("algo.advantage.is_correction_mode").as_deref() == Some("clip");
    match level.as_deref() {
        Some(level) if level == "seq" || !clips => {
            let what = if level == "seq" { "a response" } else { "a token" };
            let why = format!(
                "OpenRLHF leaves out {what} whose ratio is not between {low} and {cap}; here a token's above {cap} counts as {cap}, one below \
                 {low} as it is"
            );
            draft.leave(LEVEL, &why);
        }
        _ if low > 0.0 => {
            let why = format!("the lower bound, {low}, is not here: a ratio below it counts as it is");
            draft.leave(THRESHOLD, &why);
        }
        _ => {}
    }
    Ok(())
}

/// The lower and the upper bound, and where they are from. Since there are levels, one number is the upper one.
fn bounds(draft: &Draft, has_level: bool) -> Result<(f64, f64, String), WrongValue> {
    let (mut values, flag) = draft.values(THRESHOLD).unwrap_or_default();
    if has_level && values.len() == 1 {
        values.insert(0, "0".into());
    }
    let wrong = |message| WrongValue {
        flag: flag.clone(),
        message,
    };
    let bounds = Numbers.values(&values, 2).map_err(wrong)?;
    let bounds: Vec<f64> = bounds.iter().flatten().filter_map(Value::as_f64).collect();
    match bounds.as_slice() {
        [low, cap] => Ok((*low, *cap, flag)),
        _ => Err(wrong("wants 2 numbers".into())),
    }
}
