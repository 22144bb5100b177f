//! Where scores come from: a reward model, rules, a remote server; alone or as a weighted sum.

mod answer;
mod mix;
mod model;
mod number;
mod protocol;
mod remote;
mod retry;
mod rule;
mod sample;
pub mod serve;
mod server;

pub use mix::{RewardSource, Scores};
pub use model::{ModelReward, SequenceScorer};
pub use protocol::{ScoreRequest, ScoreResponse};
pub use remote::{RemoteOptions, RemoteReward};
pub use rule::Rule;
pub use sample::ScoredSample;
pub use server::{RewardService, ServeOptions};
