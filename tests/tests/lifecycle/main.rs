//! The life of jobs on a real control plane: they run, restart, are suspended and end, and say why.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod actor;
mod ends;
mod job;
mod leads;
mod metrics;
mod objects;
mod restarts;
mod returns;
mod runs;
mod scales;
mod suspends;
mod taken;
mod templates;
