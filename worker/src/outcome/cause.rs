//! Errors by whose type an exit code and a [reason](ppo_crds::report::Reason) are chosen, however much was said above them.

use ppo_crds::report::Outcome;

/// The run left the region in which it can learn; its last checkpoint is good.
#[derive(Debug, thiserror::Error)]
#[error("diverged in step {step}: {what}")]
pub struct Diverged {
    /// The step, from 1.
    pub step: u64,
    /// Which number left its bounds and what to try.
    pub what: String,
}

/// The reward could not be had.
#[derive(Debug, thiserror::Error)]
#[error("the reward role failed")]
pub struct RewardFailed;

/// A reward server of the user's own failed, in its words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ServerFailed(pub String);

/// Prompts, labels or examples cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the data cannot be used")]
pub struct BadData;

/// Another rank is lost, or the ranks no longer reach each other: what broke is not this process.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RankLost(pub String);

/// The run ended at rank 0, which told the others.
#[derive(Clone, Debug, thiserror::Error)]
#[error("rank 0 ended the run: {}", outcome.message)]
pub struct Relayed {
    /// How.
    pub outcome: Outcome,
    /// Its exit code.
    pub code: i32,
}

/// A checkpoint of a version that writes another format: whole, but not for this one.
#[derive(Debug, thiserror::Error)]
#[error(
    "it has format {found}, this version reads format {read}: go on with the version that made it, or move it away"
)]
pub struct OtherFormat {
    /// The checkpoint's.
    pub found: u32,
    /// This version's.
    pub read: u32,
}
