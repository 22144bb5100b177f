//! Decoder language models on libtorch, read from and written to the Hugging Face layout.

pub mod weights;

pub use weights::Weights;
