//! The PPO maths: against the frameworks, under changes that must not matter, and at the traps others fell into.

mod command;
mod gradients;
mod invariance;
mod reference;
mod step;
mod traps;
