//! Rust face of the C++ in `worker/native`.

pub mod engine;
