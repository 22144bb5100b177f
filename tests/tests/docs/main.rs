//! The pages of `docs/` say what is: every link, file, field, command, flag, metric and quoted word on them exists, what they
//! print is printed, and the page of errors has all of them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod commands;
mod convert;
mod demo_cluster;
mod errors;
mod fields;
mod gitops;
mod invariants;
mod links;
mod outputs;
mod page;
mod reward_server;
#[path = "../worker/mod.rs"]
mod worker;
