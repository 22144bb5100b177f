//! `ppo-worker sft`: supervised warm start on prompt and response pairs.
//!
//! Cross-entropy of the response tokens given the prompt, EOS included, averaged over the tokens of the whole batch, so that
//! the micro-batch size changes nothing but memory.

mod config;
mod examples;
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
    /// No progress, only the result.
    #[arg(long, conflicts_with = "json")]
    quiet: bool,
    /// One JSON object per evaluation on standard output.
    #[arg(long)]
    json: bool,
}

/// Trains as the file says and writes the model in Hugging Face layout.
///
/// # Errors
/// When the file, the data or the model cannot be read, or the loss is not finite.
pub fn main(args: SftArgs) -> anyhow::Result<()> {
    let mode = match (args.quiet, args.json) {
        (true, _) => OutputMode::Quiet,
        (_, true) => OutputMode::Json,
        _ => OutputMode::Auto,
    };
    train::train(&SftConfig::read(&args.file.file)?, mode)
}
