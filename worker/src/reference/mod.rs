//! `ppo-worker reference`: the frozen reference model as a server of log-probabilities.
//!
//! The sequences of a request are computed together, as the trainer would compute them in its own process, and so with the same bits: in
//! one forward pass, or in several where they have more tokens than one may have.

mod load;
pub mod pod;
pub mod protocol;
pub mod router;
pub mod scorer;

pub use load::load;
