//! Models before PPO: `ppo-worker sft`, a supervised warm start on prompts and responses, and `ppo-worker rm`, a reward model from
//! pairs of a better and a worse response. One loop, two students.

mod config;
mod pairs;
mod policy;
mod preferences;
mod progress;
mod reading;
mod reward_model;
mod train;

use std::path::PathBuf;

use clap::Args;

pub use config::{RmConfig, SftConfig};

use crate::device::DeviceArgs;
use crate::telemetry::OutputMode;

/// Arguments of `ppo-worker sft` and `ppo-worker rm`.
#[derive(Debug, Args)]
pub struct SupervisedArgs {
    /// The training file (YAML): model, data, steps and output, as in docs/model-and-reward.md; no PpoJob. `-` reads standard input.
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    device: DeviceArgs,
}

/// `ppo-worker sft`: trains as the file says and writes the model in Hugging Face layout.
///
/// # Errors
/// When the file, the data or the model cannot be read, or the loss is not finite.
pub fn sft(args: &SupervisedArgs, output: OutputMode) -> anyhow::Result<()> {
    args.device.settle("the model")?;
    train::train::<policy::Student>(&SftConfig::read(&args.file)?, output)
}

/// `ppo-worker rm`: the same for a reward model, a `...ForSequenceClassification`.
///
/// # Errors
/// As [`sft`].
pub fn rm(args: &SupervisedArgs, output: OutputMode) -> anyhow::Result<()> {
    args.device.settle("the reward model")?;
    train::train::<reward_model::Student>(&RmConfig::read(&args.file)?, output)
}
