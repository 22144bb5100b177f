//! Whatever comes from a network, a model's folder, a data set or a checkpoint: real files, damaged at random. No parser may
//! panic, or allocate what a damaged length asks for.
//!
//! `make test` runs a few seconds of it, the same cases each time. A long run: `PPO_FUZZ_CASES=200000 PPO_FUZZ_SEED=1 cargo test
//! --release -p ppo-worker --test fuzz`. A case that failed is written to a file, which belongs into `corpus/` once it is mended.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking, in their helpers too"
)]

mod damage;
mod files;
mod harness;
#[path = "../../../tests/tests/worker/process.rs"]
mod process;
mod server;
#[path = "../rollout/support.rs"]
#[allow(dead_code, reason = "shared with the tests of the server")]
mod support;
mod texts;
