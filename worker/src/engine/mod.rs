//! The rollout engine: continuous batching over a paged key/value cache.
//!
//! [`scheduler`] and [`blocks`] decide what runs and where it is stored and name no tensor; a [`runner::Runner`] computes;
//! a thread of its own owns the runner, and a [`handle::Engine`] moves requests in and completions out.

pub mod blocks;
mod cache_size;
pub mod changes;
mod clock;
#[cfg(test)]
pub(crate) mod conformance;
mod flat;
mod found_weights;
pub mod handle;
#[cfg(test)]
pub(crate) mod hash_runner;
pub mod lane;
pub mod logprobs;
pub mod native_runner;
mod places;
mod policy;
pub mod refusal;
pub mod request;
pub mod runner;
pub mod sampler;
pub mod scheduler;
pub mod seed;
pub mod sequence;
pub mod staging;
pub mod stats;
pub mod stop;
mod thread;
pub mod ticket;
pub mod torch_runner;

pub use handle::{Engine, EngineConfig, EngineError, PASS_DEADLINE, Pause};
pub use policy::{PolicyEngine, start as start_engine};
pub use refusal::Refusal;
pub use request::{
    Completion, Details, Event, FinishReason, News, Request, SamplingParams, Spent, TokenLogprob, TokenScore, Waited,
};
pub use scheduler::Counters;
pub use seed::sample_seed;
pub use stats::Stats;
pub use ticket::{Answer, Ticket};
pub use torch_runner::Kernels;

pub use crate::native::decoder_shape::DecoderShape;
