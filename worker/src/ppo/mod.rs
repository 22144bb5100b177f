//! The PPO maths: pure functions on tensors of shape [batch, time].
//!
//! Every function takes a response mask m of the same shape (bool, or 0 and 1 in any kind): 1 on generated tokens, EOS
//! included, 0 on padding and on tool tokens. What a masked position holds never matters, with one exception that is
//! written where it applies: the profile `alpacafarm` masks nothing, as AlpacaFarm does not.
//!
//! The line of a step is [`shape::shape`] (scores to token rewards), [`advantage::advantages`], then, for each
//! micro-batch, [`policy_loss::policy_loss`] and [`value_loss::value_loss`] with the [`aggregation::Denominator`] of the
//! whole update. What a framework does differently from the profile `default` is selected by `algorithm.profile` and
//! written beside the formula it changes.

pub mod advantage;
pub mod aggregation;
pub mod controller;
pub mod correction;
pub mod distribution;
mod error;
mod grid;
pub mod kl;
pub mod mask;
pub mod policy_loss;
mod ratio;
pub mod shape;
pub mod stats;
mod surrogate;
pub mod value_loss;
pub mod whiten;

pub use error::Error;
