//! Jobs as real pods: a real kubelet and containerd run images of our binaries, which the chart's operator looks after.
//!
//! On a machine that cannot run a node every test says so in one line and ends.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod enclosure;
mod ends;
mod gangs;
mod job;
#[path = "../monitoring/mod.rs"]
mod monitoring;
mod node;
mod operator;
mod prometheus;
mod restarts;
mod scales;
mod suspends;
mod trains;
#[path = "../worker/mod.rs"]
mod worker;
mod world;
