//! `ppo-worker plan`: what a PpoJob would take. Reads the models' config.json where it can; changes nothing.

use std::path::Path;

use anyhow::Result;
use clap::Args;
use ppo_crds::memory::{ModelShape, Shapes};
use ppo_crds::run_config::{Location, RunConfig};
use ppo_crds::{Environment, Plan, render_plan, resolve};

use crate::cli::ManifestArgs;
use crate::manifest::Manifest;
use crate::model::ModelConfig;
use crate::output::print;
use crate::telemetry::OutputMode;

/// Arguments of `ppo-worker plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    manifest: ManifestArgs,
}

/// Prints pods, GPUs, batch arithmetic, memory per role and the manifest with every default; as JSON with `--json`.
///
/// # Errors
/// [`Invalid`](crate::manifest::Invalid) with everything that is wrong with the manifest.
pub fn main(args: PlanArgs, output: OutputMode) -> Result<()> {
    let manifest = Manifest::read(&args.manifest.file)?;
    let environment = Environment::meant_by(&manifest.job, &manifest.folder);
    let config = resolve(&manifest.job, &environment).map_err(|errors| manifest.invalid(&errors))?;
    let shapes = shapes(&config);
    if shapes.is_none() {
        tracing::warn!("the policy's config.json is not on this machine: no memory estimate");
    }
    let plan = Plan::of(&manifest.job, &environment, shapes.as_ref()).map_err(|errors| manifest.invalid(&errors))?;
    match output {
        OutputMode::Json => print(&format!("{}\n", serde_json::to_string_pretty(&plan)?)),
        OutputMode::Auto | OutputMode::Quiet => print(&render_plan(&plan)),
    }
}

/// Shapes of the models whose configuration lies on this machine; None when the policy's does not.
fn shapes(config: &RunConfig) -> Option<Shapes> {
    let shape = |location: &Location| match location {
        Location::Path(folder) => read_shape(folder),
        Location::Hub { .. } => None,
    };
    Some(Shapes {
        policy: shape(&config.model.policy)?,
        critic: config.model.critic.as_ref().and_then(shape),
        reward: config.reward.model.as_ref().and_then(|model| shape(&model.source)),
    })
}

fn read_shape(folder: &Path) -> Option<ModelShape> {
    Some(ModelConfig::read(folder).ok()?.shape())
}
