//! `ppo-worker reference`: the frozen reference model as a server of log-probabilities.
//!
//! A request is one forward pass: its sequences are computed together, as the trainer would compute them in its own process,
//! and so with the same bits.

mod load;
pub mod pod;
pub mod protocol;
pub mod router;
pub mod scorer;

pub use load::load;
