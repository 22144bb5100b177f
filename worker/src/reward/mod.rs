//! Where scores come from: a reward model, rules, a remote server; alone or as a weighted sum.

mod alike;
mod answer;
mod held;
mod lists;
mod load;
mod longest;
mod math;
mod mix;
mod model;
mod names;
mod number;
mod numbers;
mod power;
mod protocol;
mod question;
mod reading;
mod remote;
mod retry;
mod role;
mod router;
mod rule;
mod sample;
pub mod serve;
mod split;
mod unreached;

pub use load::load;
pub use mix::{RewardSource, Scores};
pub use model::{ModelReward, SequenceScorer};
pub use protocol::{PolicyView, ScoreRequest, ScoreResponse};
pub use remote::{RemoteOptions, RemoteReward};
pub use role::Reward;
pub use router::Service;
pub use rule::Rule;
pub use sample::ScoredSample;
