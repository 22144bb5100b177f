//! Rust face of the C++ in `worker/native`: what tch does not bind. The only place with `unsafe`.

pub mod allocator;
pub mod batch;
pub mod bytes;
pub mod change;
pub mod collective;
pub mod cuda;
pub mod decoder_shape;
pub mod descriptors;
pub mod device;
pub mod driver;
pub mod engine;
pub mod filled;
pub mod flash;
pub mod instructions;
pub mod library;
pub mod mapped;
pub mod master;
pub mod message;
pub mod nccl;
pub mod optimizer;
pub mod packed;
pub mod process;
pub mod random;
pub mod store;
pub mod threads;
pub mod training;

#[cfg(test)]
mod tests;
