//! What policyLoss is told of the policy that drew: truncatedImportanceSampling and rolloutCorrection.

use anyhow::{Result, ensure};
use ppo_crds::run_config::Algorithm;
use ppo_crds::spec::{CorrectionLevel, Outside, RolloutCorrection};
use tch::Kind;

use super::block::Block;
use super::names;

const SHORT: &str = "truncatedImportanceSampling";
const LONG: &str = "rolloutCorrection";

/// Reads both fields; `has_rollout` is whether there are log-probs of the engine to compare with.
pub(super) fn read(block: &Block, kind: Kind, has_rollout: bool, algorithm: &mut Algorithm) -> Result<()> {
    algorithm.truncated_importance_sampling = block.bound(SHORT)?.flatten();
    algorithm.rollout_correction = long(block, kind)?;
    let is_short = algorithm.truncated_importance_sampling.is_some();
    ensure!(
        !is_short || algorithm.rollout_correction.is_none(),
        "policyLoss.{LONG} excludes {SHORT}, its short form: give one of the two"
    );
    let name = if is_short { SHORT } else { LONG };
    ensure!(
        has_rollout || algorithm.correction().is_none(),
        "policyLoss.rolloutLogprobs is missing: {name} compares oldLogprobs with those of the engine that generated"
    );
    Ok(())
}

fn long(block: &Block, kind: Kind) -> Result<Option<RolloutCorrection>> {
    let Some(value) = block.value(LONG) else {
        return Ok(None);
    };
    let known = ["level", "outside", "low", "high"];
    let block = Block::new("policyLoss.rolloutCorrection", value, &known, kind)?;
    let mut correction = RolloutCorrection::default();
    if let Some(name) = block.text("level")? {
        correction.level = names::correction_level(&block.path("level"), name)?;
    }
    if let Some(name) = block.text("outside")? {
        correction.outside = names::outside(&block.path("outside"), name)?;
    }
    correction.low = block.number("low")?.unwrap_or(correction.low);
    correction.high = block.number("high")?.unwrap_or(correction.high);
    let (low, high) = (correction.low, correction.high);
    ensure!(
        (0.0..high).contains(&low) && high <= 1000.0,
        "{}: expected bounds from 0 to 1000, low below high, found low {low} and high {high}",
        block.name
    );
    ensure!(
        correction.level != CorrectionLevel::Geometric || correction.outside == Outside::Mask,
        "{}: level geometric is for outside mask; give that, or level token or sequence",
        block.name
    );
    Ok(Some(correction))
}
