//! Decoder language models on libtorch, read from and written to the Hugging Face layout.
//!
//! A [`Decoder`] computes over packed ragged sequences ([`TokenBatch`]): no padding token is ever multiplied. It holds
//! shallow clones of the [`Weights`] by name, so an optimizer that updates those in place updates the model. An [`Adapter`] is
//! attached to a decoder; several decoders may share frozen weights, each with its own adapter or none.

pub mod adapter;
pub mod attention;
pub mod batch;
pub mod budget;
pub mod companions;
pub mod config;
pub mod critic_folder;
pub mod decoder;
pub mod digest;
mod filler;
pub mod heads;
pub mod linear;
pub mod logprobs;
pub mod marks;
pub mod mlp;
pub mod named;
pub mod names;
pub mod norm;
pub mod replace;
pub mod rope;
pub mod safetensors;
pub mod save;
mod shard_file;
pub mod target;
mod unread;
pub mod weights;

pub use adapter::Adapter;
pub use adapter::merged::MergedWeights;
pub use batch::TokenBatch;
pub use companions::Companions;
pub use config::{Family, Head, ModelConfig};
pub use critic_folder::CriticFolder;
pub use decoder::Decoder;
pub use heads::{RewardModel, ValueModel};
pub use logprobs::{Entropy, Targets, TokenLogprobs, likeliest, token_logprobs};
pub use save::save;
pub use target::{Target, kind, target};
pub use weights::{Part, Weights};
