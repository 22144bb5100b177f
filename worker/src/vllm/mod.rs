//! `engine: vllm`: the door before a real vLLM that listens on this pod's localhost.
//!
//! vLLM's control endpoints check no key, so that nobody but the door may reach it; the door asks for the job's token, speaks
//! the dialect of [`rollout`](crate::rollout), forwards what generates, and gives vLLM the published weights: [`client`] (what
//! vLLM is asked), [`router`] (who may ask for what), [`asked`] and [`generate`] (seeds and versions), [`abort`] (names), [`weights`] (stream to
//! folder to vLLM), [`transfer`] (GPU to GPU), [`stall`] (when vLLM hangs), [`serve`] (the process).

pub mod abort;
pub mod asked;
pub mod client;
pub mod generate;
pub mod room;
pub mod router;
pub mod serve;
pub mod service;
pub mod stall;
#[cfg(test)]
mod stand_in;
pub mod transfer;
pub mod weights;

pub use serve::main;
