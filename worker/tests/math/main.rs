//! The PPO maths: against the frameworks, under changes that must not matter, and at the traps others fell into.
#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod cispo;
mod command;
mod gradients;
mod gspo;
mod invariance;
mod reference;
mod stale;
mod step;
mod traps;
