//! Rules of an optimizer, which `ppo-worker sft` and `rm` have too.

use super::{Problem, limits};
use crate::spec::OptimizerSpec;

/// The numbers of an optimizer that are outside the limits of their fields, with their paths in a PpoJob.
pub fn optimizer_problems(optimizer: &OptimizerSpec) -> Vec<Problem> {
    let mut problems = Vec::new();
    let schema = &crate::spec_schema()["properties"]["optimizer"];
    limits::check_block(optimizer, schema, "spec.optimizer", &mut problems);
    problems
}

/// Why a warm-up over `warmup` of a run's `total` updates is not meant; None where it ends before the run.
pub fn endless_warmup(warmup: u64, total: u64) -> Option<String> {
    let is_endless = warmup > 0 && warmup >= total;
    is_endless.then(|| {
        format!(
            "is {warmup}, and the run has {total} updates: the learning rate rises to the end; it must be below {total}"
        )
    })
}
