//! The settings of `verl/trainer/config/ppo_trainer.yaml`, with its defaults where ours are others.

mod actor;
mod algorithm;
mod data;
mod reward;
mod rollout;
mod trainer;

use crate::convert::row::Row;

/// Every override. Of two rows that are a setting's the first counts.
pub fn rows() -> Vec<Row> {
    [
        data::ROWS,
        actor::ROWS,
        algorithm::ROWS,
        rollout::ROWS,
        reward::ROWS,
        trainer::ROWS,
    ]
    .concat()
}
