//! `ppo-worker plan`: what a PpoJob would take. Reads the models' config.json where it can; changes nothing.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use ppo_crds::memory::{ModelShape, Shapes};
use ppo_crds::pod::VLLM_CONTAINER;
use ppo_crds::run_config::{Location, RunConfig};
use ppo_crds::spec::{Engine, RolesSpec};
use ppo_crds::validate::{Problem, Warning};
use ppo_crds::{Environment, Plan, ValidationErrors, render_plan, resolve};

use crate::hub::{found_here, of_the_hub};
use crate::manifest::{Manifest, ManifestArgs};
use crate::model::named::described;
use crate::model::rope::RopeScaling;
use crate::model::{ModelConfig, RewardModel};
use crate::output::print;
use crate::run::check_stop_ids;
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
    check_models(&config)?;
    check_context(&config, manifest.writes(&["spec", "generation", "maxNewTokens"])).map_err(|problem| {
        manifest.invalid(&ValidationErrors {
            problems: vec![problem],
        })
    })?;
    if let Some(policy) = policy_here(&config.model.policy) {
        check_stop_ids(&config.generation.stop_token_ids, policy.vocab)?;
    }
    let shapes = shapes(&config);
    let mut plan =
        Plan::of(&manifest.job, &environment, shapes.as_ref()).map_err(|errors| manifest.invalid(&errors))?;
    plan.warnings.extend(beyond_context(&config));
    plan.warnings.extend(uneven_split(&config, &manifest.job.spec.roles));
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
    let folder = found_here(location).with_context(|| {
        let meant = match location {
            Location::Path(path) => of_the_hub(path),
            Location::Hub { .. } => String::new(),
        };
        format!("its config.json is not on this machine{meant}")
    })?;
    Ok(ModelConfig::read(&folder)?.shape())
}

/// What a run finds out only when it loads its models.
///
/// # Errors
/// When a model is on this machine, and its config.json is of none that runs.
fn check_models(config: &RunConfig) -> Result<()> {
    let reward = config.reward.model.as_ref();
    let models = [
        ("model.policy", Some(&config.model.policy)),
        ("model.critic", config.model.critic.as_ref()),
        ("model.reference", config.model.reference.as_ref()),
        ("roles.reward.model.source", reward.map(|reward| &reward.source)),
    ];
    for (field, location) in models {
        if let Some(folder) = location.and_then(found_here) {
            let read = match field {
                "model.policy" | "model.reference" => ModelConfig::read_language_model(&folder),
                "roles.reward.model.source" => RewardModel::configuration(&folder),
                _ => ModelConfig::read(&folder),
            };
            described(field, read)?;
        }
    }
    Ok(())
}

/// What a run finds out only after it has read its prompts. `is_given`: the manifest says how long responses may be.
///
/// # Errors
/// When the policy is on this machine, and beside the shortest prompt its context has no room for the longest response.
fn check_context(config: &RunConfig, is_given: bool) -> Result<(), Problem> {
    let most = config.generation.max_new_tokens;
    let context = policy_here(&config.model.policy).map(|policy| policy.max_positions);
    let Some(context) = context.filter(|context| most as usize >= *context) else {
        return Ok(());
    };
    let given = if is_given { "" } else { " where none is given" };
    let field = "spec.generation.maxNewTokens";
    let words =
        format!("is {most}{given}, and a response shares the model's context of {context} tokens with its prompt");
    // Half of it: as much again is left for the prompt.
    Err(Problem::new(field, words).or(field, [(context as u64 / 2).max(1)]))
}

/// Longest sequences that vLLM is started for (`--max-model-len`) and does not start with. Our own engine takes any, and refuses prompts
/// alone that leave no room.
fn beyond_context(config: &RunConfig) -> Option<Warning> {
    let policy = policy_here(&config.model.policy)?;
    // vLLM stretches this context by its factor.
    let is_stretched = matches!(policy.rope_scaling, RopeScaling::Linear { .. });
    let (context, longest) = (policy.max_positions, config.longest_sequence());
    let does_not_start = config.rollout.engine == Engine::Vllm && longest > context && !is_stretched;
    does_not_start.then(|| Warning {
        field: "spec.prompts.maxLength".into(),
        message: format!(
            "is {}, {longest} tokens with spec.generation.maxNewTokens, and the model's context is {context}: vLLM does not start for longer \
             ones; lower either until they come to {context}",
            config.prompts.max_length
        ),
    })
}

/// The most of `gpusPerReplica`.
const MOST_GPUS: u64 = 64;

/// Numbers of GPUs over which vLLM is to split the policy (`--tensor-parallel-size`), and does not start.
fn uneven_split(config: &RunConfig, roles: &RolesSpec) -> Option<Warning> {
    let gpus = u64::from(roles.rollout.gpus_per_replica);
    if config.rollout.engine != Engine::Vllm || gpus <= 1 || has_own_split(roles) {
        return None;
    }
    let shape = policy_here(&config.model.policy)?.shape();
    let part = uneven(&shape, gpus)?;
    let fits = |gpus: &u64| uneven(&shape, *gpus).is_none();
    let nearest = (1..gpus).rev().find(fits).into_iter();
    let nearest = nearest.chain((gpus + 1..=MOST_GPUS).find(fits));
    let nearest: Vec<String> = nearest.map(|gpus| gpus.to_string()).collect();
    Some(Warning {
        field: "spec.roles.rollout.gpusPerReplica".into(),
        message: format!(
            "is {gpus}, and over so many GPUs vLLM does not split the model's {part}: it does not start; use {}",
            nearest.join(" or ")
        ),
    })
}

/// What of a model cannot be split over so many GPUs: the heads (`verify_with_parallel_config` of vLLM's configuration), those of keys, of
/// which several GPUs may have the same one (its attention), or a layer's width (its linear layers).
fn uneven(shape: &ModelShape, gpus: u64) -> Option<String> {
    let (heads, kv_heads, width) = (shape.heads, shape.kv_heads, shape.intermediate);
    if !heads.is_multiple_of(gpus) {
        Some(format!("{heads} attention heads"))
    } else if !kv_heads.is_multiple_of(gpus) && !gpus.is_multiple_of(kv_heads) {
        Some(format!("{kv_heads} heads of keys and values"))
    } else if !width.is_multiple_of(gpus) {
        Some(format!("feed-forward layer of width {width}"))
    } else {
        None
    }
}

/// Whether the template says how vLLM splits the model: its flags come last, and count.
fn has_own_split(roles: &RolesSpec) -> bool {
    let template = roles.rollout.template.as_ref();
    let spec = template.and_then(|template| template.spec.as_ref());
    let containers = spec.into_iter().flat_map(|spec| &spec.containers);
    let mut flags = containers
        .filter(|container| container.name == VLLM_CONTAINER)
        .flat_map(|container| container.args.iter().flatten());
    flags.any(|flag| flag.starts_with("-tp") || flag.replace('_', "-").starts_with("--tensor-parallel-size"))
}

/// The policy's configuration, where it is on this machine.
fn policy_here(policy: &Location) -> Option<ModelConfig> {
    found_here(policy).and_then(|folder| ModelConfig::read(&folder).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vllm_that_would_not_start_for_sequences_beyond_the_models_context_is_warned_of() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama");
        let context = ModelConfig::read(folder.as_ref()).unwrap().max_positions;
        let warned = |engine: &str, prompt: usize| {
            let text = format!(
                "{{apiVersion: ppojob.dev/v1alpha1, kind: PpoJob, metadata: {{name: math}}, spec: {{model: {{policy: {{path: {folder:?}}}}}, \
                 prompts: {{source: {{path: d.jsonl}}, maxLength: {prompt}}}, generation: {{maxNewTokens: 2}}, \
                 roles: {{rollout: {{engine: {engine}}}, reward: {{rules: [{{json: {{}}}}]}}}}}}}}"
            );
            let job = ppo_crds::parse_manifest(&text, "job.yaml").unwrap();
            let here = Environment::Laptop {
                manifest_folder: "/".into(),
            };
            beyond_context(&resolve(&job, &here).unwrap()).map(|warning| warning.to_string())
        };
        assert_eq!(warned("vllm", context - 2), None);
        assert_eq!(warned("builtin", context), None);
        let words = warned("vllm", context - 1).unwrap();
        let both = format!(
            "{} tokens with spec.generation.maxNewTokens, and the model's context is {context}",
            context + 1
        );
        assert!(
            words.starts_with("spec.prompts.maxLength: ") && words.contains(&both),
            "{words}"
        );
    }

    #[test]
    fn a_vllm_that_would_not_start_on_so_many_gpus_is_warned_of_with_the_nearest_numbers_that_go() {
        // 4 heads of queries and as many of keys, and a width of 48.
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama");
        let warned = |rollout: &str| {
            let text = format!(
                "{{apiVersion: ppojob.dev/v1alpha1, kind: PpoJob, metadata: {{name: math}}, spec: {{model: {{policy: {{path: {folder:?}}}}}, \
                 prompts: {{source: {{path: /d.jsonl}}}}, roles: {{rollout: {{{rollout}}}, reward: {{rules: [{{json: {{}}}}]}}}}}}}}"
            );
            let job = ppo_crds::parse_manifest(&text, "job.yaml").unwrap();
            let config = resolve(&job, &Environment::cluster()).unwrap();
            uneven_split(&config, &job.spec.roles).map(|warning| warning.to_string())
        };
        for gpus in [0, 1, 2, 4] {
            assert_eq!(warned(&format!("engine: vllm, gpusPerReplica: {gpus}")), None);
        }
        assert_eq!(
            warned("engine: vllm, gpusPerReplica: 3").unwrap(),
            "spec.roles.rollout.gpusPerReplica: is 3, and over so many GPUs vLLM does not split the model's 4 attention heads: it does not \
             start; use 2 or 4"
        );
        let words = warned("engine: vllm, gpusPerReplica: 8").unwrap();
        assert!(words.ends_with("; use 4"), "{words}");
        assert_eq!(warned("engine: builtin, gpusPerReplica: 3"), None);
        let flagged = |flag: &str| {
            let template = format!("template: {{spec: {{containers: [{{name: vllm, args: [{flag}]}}]}}}}");
            warned(&format!("engine: vllm, gpusPerReplica: 3, {template}")).is_none()
        };
        assert!(flagged("--tensor-parallel-size=1") && flagged("--tensor_parallel_size, '1'") && flagged("-tp, '1'"));
        assert!(!flagged("--enforce-eager"));
    }

    #[test]
    fn several_gpus_may_keep_one_head_of_keys_and_a_width_has_to_be_split_too() {
        let mut shape = ModelConfig::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama").as_ref())
            .unwrap()
            .shape();
        (shape.heads, shape.kv_heads, shape.intermediate) = (12, 2, 64);
        let of = |gpus: u64| uneven(&shape, gpus);
        assert_eq!([1, 2, 4].map(of), [None, None, None]);
        assert_eq!(of(3).unwrap(), "2 heads of keys and values");
        assert_eq!(of(6).unwrap(), "feed-forward layer of width 64");
        assert_eq!(of(8).unwrap(), "12 attention heads");
    }

    #[test]
    fn responses_that_the_models_context_cannot_hold_are_refused_before_prompts_are_read() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama");
        let context = ModelConfig::read(folder.as_ref()).unwrap().max_positions as u32;
        let checked = |policy: &str, most: u32, is_given: bool| {
            let text = format!(
                "{{apiVersion: ppojob.dev/v1alpha1, kind: PpoJob, metadata: {{name: math}}, spec: {{model: {{policy: {{path: {policy:?}}}}}, \
                 prompts: {{source: {{path: d.jsonl}}}}, generation: {{maxNewTokens: {most}}}, roles: {{reward: {{rules: [{{json: {{}}}}]}}}}}}}}"
            );
            let job = ppo_crds::manifest::parse_manifest(&text, "job.yaml").unwrap();
            let here = Environment::Laptop {
                manifest_folder: "".into(),
            };
            check_context(&resolve(&job, &here).unwrap(), is_given)
        };
        checked(folder, context - 1, true).unwrap();
        checked("/elsewhere", context, true).unwrap();
        let refused = |is_given| checked(folder, context, is_given).unwrap_err().to_string();
        let shares = format!(
            "a response shares the model's context of {context} tokens with its prompt; use {}",
            context / 2
        );
        assert_eq!(
            refused(true),
            format!("spec.generation.maxNewTokens: is {context}, and {shares}")
        );
        let words = format!("spec.generation.maxNewTokens: is {context} where none is given, and {shares}");
        assert_eq!(refused(false), words);
    }

    #[test]
    fn a_model_that_is_here_and_cannot_run_is_refused_by_the_field_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama");
        let config = |field: &str| {
            let text = format!(
                "{{apiVersion: ppojob.dev/v1alpha1, kind: PpoJob, metadata: {{name: math}}, spec: {{model: {{policy: {{path: {fixture:?}}}, \
                 {field}: {{path: {:?}}}}}, prompts: {{source: {{path: d.jsonl}}}}, roles: {{reward: {{rules: [{{json: {{}}}}]}}}}}}}}",
                folder.path()
            );
            let job = ppo_crds::parse_manifest(&text, "job.yaml").unwrap();
            let here = Environment::Laptop {
                manifest_folder: "/".into(),
            };
            resolve(&job, &here).unwrap()
        };
        let fields = ["critic", "reference"];
        for field in fields {
            check_models(&config(field)).unwrap();
        }
        let other = r#"{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}"#;
        std::fs::write(folder.path().join("config.json"), other).unwrap();
        for field in fields {
            let words = check_models(&config(field)).unwrap_err().to_string();
            assert!(
                words.starts_with(&format!("model.{field}: ")) && words.contains("supported are Llama"),
                "{words}"
            );
        }
        let score = include_str!("../tests/fixtures/reward/config.json");
        std::fs::write(folder.path().join("config.json"), score).unwrap();
        check_models(&config("critic")).unwrap();
        let words = check_models(&config("reference")).unwrap_err().to_string();
        let said = words.starts_with("model.reference: ") && words.contains("is no language model");
        assert!(said, "{words}");
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
    fn a_path_that_is_the_name_of_a_model_of_the_hub_is_answered_with_how_that_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let why = |path: &str| {
            shape(&Location::Path(folder.path().join(path)))
                .unwrap_err()
                .to_string()
        };
        let words = why("Qwen/Qwen3-0.6B");
        assert!(
            words.ends_with("write `hub: {id: Qwen/Qwen3-0.6B}` in place of `path`"),
            "{words}"
        );
        std::fs::create_dir(folder.path().join("models")).unwrap();
        for path in ["models/m", "no/such/folder", "./m"] {
            assert!(!why(path).contains("hub:"), "{path}: {}", why(path));
        }
        let here = shape(&Location::Path("Qwen/Qwen3-0.6B".into()))
            .unwrap_err()
            .to_string();
        assert!(here.contains("hub: {id: Qwen/Qwen3-0.6B}"), "{here}");
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
