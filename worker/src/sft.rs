//! `ppo-worker sft`: supervised warm start on prompt and response pairs.
//!
//! Cross-entropy of the response tokens given the prompt, EOS included, averaged over the tokens of the whole batch, so that
//! the micro-batch size changes nothing but memory.

mod config;
mod examples;
mod progress;
mod train;

use clap::Args;

pub use config::SftConfig;

use crate::cli::ManifestArgs;
use crate::telemetry::OutputMode;

/// Arguments of `ppo-worker sft`.
#[derive(Debug, Args)]
pub struct SftArgs {
    #[command(flatten)]
    file: ManifestArgs,
}

/// Trains as the file says and writes the model in Hugging Face layout.
///
/// # Errors
/// When the file, the data or the model cannot be read, or the loss is not finite.
pub fn main(args: SftArgs, output: OutputMode) -> anyhow::Result<()> {
    train::train(&SftConfig::read(&args.file.file)?, output)
}
