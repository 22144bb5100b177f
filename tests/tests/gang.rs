//! Gangs on real gang schedulers: all of a job's pods or none, quota taken and given back, and words for what is missing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "gang/kueue.rs"]
mod kueue;
#[path = "gang/pod_groups.rs"]
mod pod_groups;
#[path = "gang/uninstalled.rs"]
mod uninstalled;
#[path = "gang/world.rs"]
mod world;
