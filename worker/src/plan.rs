//! `ppo-worker plan`: what a PpoJob would take. Reads the models' config.json where it can; changes nothing.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use ppo_crds::memory::{ModelShape, Shapes};
use ppo_crds::run_config::{Location, RunConfig};
use ppo_crds::{Environment, Plan, render_plan, resolve};

use crate::cli::ManifestArgs;
use crate::hub::found_here;
use crate::manifest::{Invalid, Manifest};
use crate::model::ModelConfig;
use crate::output::print;
use crate::telemetry::OutputMode;

/// Arguments of `ppo-worker plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    manifest: ManifestArgs,
    /// Where the claims of a manifest for a cluster lie: claim `c` is the folder DIR/c. Paths are absolute then, as in a pod.
    #[arg(long, value_name = "DIR")]
    volumes: Option<PathBuf>,
}

/// Prints pods, GPUs, batch arithmetic, memory per role and the manifest with every default; as JSON with `--json`.
///
/// # Errors
/// [`Invalid`](crate::manifest::Invalid) with everything that is wrong with the manifest.
pub fn main(args: PlanArgs, output: OutputMode) -> Result<()> {
    let manifest = Manifest::read(&args.manifest.file)?;
    let environment = environment(&manifest, args.volumes);
    let config = resolve(&manifest.job, &environment).map_err(|errors| manifest.invalid(&errors))?;
    check_context(&config.model.policy, config.generation.max_new_tokens)?;
    let shapes = shapes(&config);
    let plan = Plan::of(&manifest.job, &environment, shapes.as_ref()).map_err(|errors| manifest.invalid(&errors))?;
    match output {
        OutputMode::Json => print(&format!("{}\n", serde_json::to_string_pretty(&plan)?)),
        OutputMode::Auto | OutputMode::Quiet => print(&render_plan(&plan)),
    }
}

/// Where the manifest runs: with the folders of `volumes` for its claims as in a pod, else where it is meant to.
fn environment(manifest: &Manifest, volumes: Option<PathBuf>) -> Environment {
    match volumes {
        Some(volumes) => Environment::Cluster { volumes },
        None => Environment::meant_by(&manifest.job, &manifest.folder),
    }
}

/// Shapes of the models whose configuration can be read on this machine; None where the policy's cannot. Says which cannot, and what is then
/// estimated.
fn shapes(config: &RunConfig) -> Option<Shapes> {
    let read = |model: &str, location: &Location, estimated: &str| {
        let unknown = |why: &anyhow::Error| tracing::warn!("the {model}'s shape is not known, {estimated}: {why:#}");
        shape(location).inspect_err(unknown).ok()
    };
    let policy = read("policy", &config.model.policy, "so no memory is estimated")?;
    let as_policy = "so its memory is estimated as if it had the policy's";
    let critic = config.model.critic.as_ref();
    let reward = config.reward.model.as_ref();
    Some(Shapes {
        policy,
        critic: critic.and_then(|critic| read("critic", critic, as_policy)),
        reward: reward.and_then(|reward| read("reward model", &reward.source, as_policy)),
    })
}

/// # Errors
/// When the model's config.json is not on this machine, or is of no model that runs.
fn shape(location: &Location) -> Result<ModelShape> {
    let folder = found_here(location).context("its config.json is not on this machine")?;
    Ok(ModelConfig::read(&folder)?.shape())
}

/// What a run finds out only after it has read its prompts.
///
/// # Errors
/// When the policy is on this machine, and beside the shortest prompt its context has no room for the longest response.
fn check_context(policy: &Location, most: u32) -> Result<(), Invalid> {
    let policy = found_here(policy).and_then(|folder| ModelConfig::read(&folder).ok());
    match policy
        .map(|policy| policy.max_positions)
        .filter(|context| most as usize >= *context)
    {
        Some(context) => Err(Invalid::new(format!(
            "generation.maxNewTokens is {most}, and a response shares the model's context of {context} tokens with its prompt: lower it"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_that_the_models_context_cannot_hold_are_refused_before_prompts_are_read() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama");
        let context = ModelConfig::read(folder.as_ref()).unwrap().max_positions as u32;
        let policy = Location::Path(folder.into());
        check_context(&policy, context - 1).unwrap();
        let words = check_context(&policy, context).unwrap_err().to_string();
        assert!(
            words.starts_with(&format!("generation.maxNewTokens is {context}, ")),
            "{words}"
        );
        check_context(&Location::Path("/elsewhere".into()), context).unwrap();
    }

    #[test]
    fn a_claim_whose_folder_is_given_is_read_for_the_estimates() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.yaml");
        let text = "apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetadata: {name: math}\nspec:\n  \
                    model: {policy: {pvc: {claimName: models, path: p}}}\n  prompts: {source: {pvc: {claimName: data, path: d.jsonl}}}\n  \
                    roles: {reward: {rules: [{json: {}}]}}\n";
        std::fs::write(&file, text).unwrap();
        let model = folder.path().join("models/p");
        std::fs::create_dir_all(&model).unwrap();
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama/config.json");
        std::fs::copy(fixture, model.join("config.json")).unwrap();
        let manifest = Manifest::read(&file).unwrap();
        let known = |volumes: Option<PathBuf>| {
            let environment = environment(&manifest, volumes);
            shapes(&resolve(&manifest.job, &environment).unwrap()).is_some()
        };
        assert!(known(Some(folder.path().into())));
        assert!(!known(None));
    }

    #[test]
    fn a_model_that_cannot_run_is_told_apart_from_one_that_is_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let why = || {
            let location = Location::Path(folder.path().into());
            format!("{:#}", shape(&location).unwrap_err())
        };
        assert!(why().contains("is not on this machine"), "{}", why());
        let config = r#"{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}"#;
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        assert!(
            why().contains("supported are Llama") && why().contains("config.json"),
            "{}",
            why()
        );
    }
}
