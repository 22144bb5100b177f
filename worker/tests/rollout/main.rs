//! The rollout server as its clients see it: real HTTP, a real engine, tiny random models.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking, in their helpers too"
)]

mod answers;
mod control;
mod conversations;
mod dealer;
mod door;
mod follow;
mod lengths;
mod load;
mod openai;
#[path = "../../../tests/tests/worker/process.rs"]
mod process;
mod refusals;
mod shutdown;
#[path = "../../../tests/src/skip.rs"]
mod skip;
mod streams;
mod support;
mod weights;
