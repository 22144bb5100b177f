//! DAPO's dynamic sampling (Yu et al. 2025, section 3.2), which OpenRLHF and verl both offer.

use serde::Deserialize;
use serde_json::{Value, json};

use super::draft::Draft;
use crate::spec::{DynamicSampling, Estimator};

/// Learns from groups only whose scores differ, as `flag` asks for; says so where that cannot be. `draws` is a bound of the draws of a step
/// and where it is from. Whether it is set.
pub fn sample(draft: &mut Draft, flag: &str, draws: Option<(u64, String)>) -> bool {
    let estimator = draft.get("algorithm.advantage.estimator");
    let why = if !estimator.is_some_and(needs_group) {
        "batch.dynamicSampling is for estimators that compare the samples of a prompt; every group is learnt from"
    } else {
        match draws {
            Some((draws, source)) => {
                let draws = draws.clamp(DynamicSampling::LEAST.into(), DynamicSampling::MOST.into());
                draft.set("batch.dynamicSampling.maxDraws", draws, &source);
            }
            None => draft.set("batch.dynamicSampling", json!({}), &draft.source(flag)),
        }
        return true;
    };
    draft.leave(flag, why);
    false
}

fn needs_group(estimator: &Value) -> bool {
    Estimator::deserialize(estimator).is_ok_and(Estimator::needs_group)
}
