//! `ppo-worker rollout`: the engine as a server that speaks vLLM's dialect of the OpenAI API.
//!
//! A request's way: [`listen`](crate::serving::listen) (connections) -> [`router`] (paths,
//! [`auth`](crate::serving::auth)) -> [`body`](crate::serving::body) (bytes to [`protocol`]) -> [`job`]
//! (everything checked, token ids only) -> the engine -> [`choice`] (text, log-probabilities) -> [`response`] or [`stream`].

pub mod actor;
pub mod args;
pub mod chat;
pub mod choice;
pub mod completions;
pub mod control;
pub mod conversation;
pub mod echo;
pub mod encode;
pub mod follow;
pub mod generate;
pub mod given;
pub mod inflight;
pub mod info;
pub mod job;
pub mod label;
pub mod listing;
pub mod message;
pub mod metrics;
pub mod model;
pub mod prompt;
pub mod protocol;
pub mod refused;
pub mod response;
pub mod router;
pub mod serve;
pub mod service;
pub mod settings;
#[cfg(test)]
pub(crate) mod stand_in;
pub mod stream;
pub mod text;
pub mod truncate;
pub mod unread;
pub mod updates;
pub mod weights;

pub use args::RolloutArgs;
pub use model::Model;
pub use serve::{Ended, main, serve};
pub use service::Service;
pub use settings::{ModelSettings, Settings, VllmSettings};
