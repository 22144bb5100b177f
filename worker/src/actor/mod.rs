//! The learning role: parameters, optimizer, update, checkpoints.

pub mod adamw;
pub mod parameters;
pub mod schedule;
