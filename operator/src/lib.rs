//! The control plane: turns PpoJobs into pods of four roles, restarts, suspends and explains them.
//!
//! [`run`](run::run) is the process, [`controller`] its loop, [`reconcile`] the line for one job:
//! read, [`plan`] (with [`lifecycle`] deciding and [`status`] telling), record, apply. Everything between read and record is
//! pure. No tensor crate is anywhere below this one.

pub mod cli;
pub mod condition;
mod containers;
pub mod context;
pub mod contract;
pub mod controller;
pub mod events;
pub mod expected;
pub mod failure;
pub mod gang;
pub mod http;
pub mod job;
pub mod lease;
pub mod ledger;
pub mod lifecycle;
pub mod log;
pub mod metrics;
pub mod plan;
pub mod plugin;
pub mod reconcile;
pub mod reports;
pub mod run;
pub mod served;
pub mod settings;
#[cfg(test)]
mod smallest_job;
pub mod snapshot;
pub mod status;
pub mod watches;
pub mod world;
