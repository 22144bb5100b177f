//! The rollout engine: continuous batching over a paged key/value cache.
//!
//! [`scheduler`] and [`blocks`] decide what runs and where it is stored and name no tensor; a [`runner::Runner`] computes.

pub mod decoder_shape;
pub mod native_runner;
pub mod request;
pub mod runner;
pub mod sampler;
