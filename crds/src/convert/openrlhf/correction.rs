//! What tokens weigh that the engine drew with other probabilities than the actor's: `is_correction_enable` with a type up to 0.11.1, since
//! then a level, a mode and a gating, whose schemes have names in openrlhf/cli/train_ppo_ray.py. What they do is in PolicyLoss
//! (openrlhf/models/loss.py).

use serde_json::{Value, json};

use crate::convert::correction::{self, SHORT};
use crate::convert::draft::{Draft, WrongValue};
use crate::convert::row::Read::Numbers;
use crate::spec::{CorrectionLevel, Outside, RolloutCorrection};

const THRESHOLD: &str = "algo.advantage.is_correction_threshold";
const LEVEL: &str = "algo.advantage.is_correction_level";
const GATING: &str = "algo.advantage.is_correction_gating";

/// The scheme that was chosen, with its bounds.
pub(super) fn set(draft: &mut Draft) -> Result<(), WrongValue> {
    let level = draft.text(LEVEL).filter(|level| level != "off");
    if level.is_none() && !draft.truth("algo.advantage.is_correction_enable")? {
        if draft.has("overlap") {
            let source = "OpenRLHF corrects for older samples only with is_correction_enable; leave it out for 2";
            draft.set(SHORT, json!(0.0), source);
        }
        return Ok(());
    }
    // PolicyLoss takes the correction of GSPO into the ratio, and neither weighs nor leaves out.
    if draft.get("algorithm.ratio").is_some_and(|ratio| ratio == "sequence") {
        let source = "with gspo the ratio is to the engine's log-probs, whatever the number";
        draft.set(SHORT, json!(2.0), source);
        return Ok(());
    }
    let gating = draft.text(GATING).filter(|gating| level.is_some() && gating != "ratio");
    if let Some(gating) = gating {
        // The threshold bounds a divergence, not a ratio.
        draft.set(SHORT, json!(2.0), "what is nearest to the gate");
        let why = format!(
            "is {gating}, by which OpenRLHF leaves out what has moved too far; here only a ratio is bounded (algorithm.rolloutCorrection), and \
             a token's is truncated at 2 ({SHORT})"
        );
        draft.leave(GATING, &why);
        return Ok(());
    }
    let (low, high, source) = bounds(draft)?;
    older_default(draft);
    let (level, outside) = scheme(draft, level.as_deref())?;
    let correction = RolloutCorrection {
        level,
        outside,
        low,
        high,
    };
    correction::set(draft, correction, &source);
    Ok(())
}

/// Whose ratio is bounded, and how. A response's is the geometric mean of its tokens', and what is outside is always left out.
fn scheme(draft: &Draft, level: Option<&str>) -> Result<(CorrectionLevel, Outside), WrongValue> {
    use CorrectionLevel::{Geometric, Token};
    let clips = draft.text("algo.advantage.is_correction_mode").as_deref() == Some("clip");
    let kind = draft.text("algo.advantage.is_correction_type");
    Ok(match (level, kind.as_deref()) {
        (Some("seq"), _) | (None, Some("seq-mask-tis")) => (Geometric, Outside::Mask),
        (Some(_), _) if clips => (Token, Outside::Truncate),
        (Some(_), _) | (None, Some("icepop")) => (Token, Outside::Mask),
        (None, _) if draft.truth("use_icepop")? => (Token, Outside::Mask),
        (None, _) => (Token, Outside::Truncate),
    })
}

/// Its default while the flags had these names, which do not tell the version (train_ppo_ray.py of 0.8.9 to 0.9.1).
fn older_default(draft: &mut Draft) {
    let newer = ["use_icepop", "vllm_is_correction_type"];
    let is_old = draft.has_name(|name| name == "enable_vllm_is_correction");
    let is_new = draft.has_name(|name| newer.contains(&name));
    if is_old && !is_new && !draft.is_given(THRESHOLD) {
        let why = "its default is 2, an upper bound alone, up to OpenRLHF 0.9.0, and 0.5 5.0 since 0.9.1, which is taken; with an older version \
                   give algorithm.truncatedImportanceSampling: 2 in place of algorithm.rolloutCorrection";
        draft.leave("vllm_is_truncated_threshold", why);
    }
}

/// The lower and the upper bound, and where they are from. One number is the upper one: up to 0.9.0, and since there are levels.
fn bounds(draft: &Draft) -> Result<(f64, f64, String), WrongValue> {
    let (mut values, flag) = draft.values(THRESHOLD).unwrap_or_default();
    if values.len() == 1 {
        values.insert(0, "0".into());
    }
    let wrong = |message| WrongValue {
        flag: flag.clone(),
        message,
    };
    let bounds = Numbers.values(&values, 2).map_err(wrong)?;
    let bounds: Vec<f64> = bounds.iter().flatten().filter_map(Value::as_f64).collect();
    match bounds.as_slice() {
        [low, high] => Ok((*low, *high, flag)),
        _ => Err(wrong("wants 2 numbers".into())),
    }
}
