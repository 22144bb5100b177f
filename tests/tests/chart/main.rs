//! The Helm chart, the dashboards, the alerts and the images' recipes, checked by the tools that their users use.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod alerts;
mod conformity;
mod copies;
mod dashboards;
mod evaluation;
mod images;
mod installed;
mod metrics;
#[path = "../monitoring/mod.rs"]
mod monitoring;
mod operating;
#[path = "../worker/process.rs"]
mod process;
mod rendered;
mod rights;
mod schemas;
mod tools;
mod values;
