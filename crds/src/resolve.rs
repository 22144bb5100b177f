//! From the manifest to what runs: every default filled in, every rule checked, every path that of the machine or pod.

use std::path::{Path, PathBuf};

use crate::run_config::{
    Algorithm, Batch, Checkpoint, Clip, DataPaths, Evaluation, Kl, KlController, Location, Model, Prompts, Reward,
    RewardModel, Rollout, RunConfig, RunLength, Score,
};
use crate::spec::{AlgorithmSpec, BatchSpec, DType, DataSource, ModelSource, PpoJob, PpoJobSpec, PvcPath, Role};
use crate::validate::{ValidationErrors, validate};
use crate::{defaults::has_kl, fill};

/// Where the job runs, and so what its paths mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Environment {
    /// All roles on this machine. Claims cannot be mounted; relative paths start at the manifest's folder.
    Laptop {
        /// Folder of the manifest.
        manifest_folder: PathBuf,
    },
    /// Pods. A claim `c` is mounted at `<volumes>/c`; paths are absolute.
    Cluster {
        /// Folder under which the operator mounts claims.
        volumes: PathBuf,
    },
}

impl Environment {
    /// Folder under which the operator mounts claims, by the name of the claim.
    pub const VOLUMES: &str = "/volumes";

    /// The pods of a cluster, with claims under [`Self::VOLUMES`].
    pub fn cluster() -> Self {
        Self::Cluster {
            volumes: Self::VOLUMES.into(),
        }
    }

    /// Where a manifest is meant to run, for `plan`: a cluster when it names a claim or has a pod template, else the machine it lies on.
    pub fn meant_by(job: &PpoJob, manifest_folder: &Path) -> Self {
        if is_for_pods(&job.spec) {
            Self::cluster()
        } else {
            Self::Laptop {
                manifest_folder: manifest_folder.into(),
            }
        }
    }

    /// The machine of a manifest that no cluster takes, and that is for none: it has a relative path, and neither a claim nor a pod template.
    pub fn of_one_machine(job: &PpoJob, manifest_folder: &Path) -> Option<Self> {
        let spec = &job.spec;
        let data = data(spec).flat_map(|source| source.path.iter().chain(source.paths.iter().flatten()));
        let mut paths = models(spec)
            .filter_map(|source| source.path.as_ref())
            .chain(data)
            .chain(&spec.checkpoint.path);
        let relative = paths.any(|path| !path.starts_with('/'));
        (relative && !is_for_pods(spec)).then(|| Self::Laptop {
            manifest_folder: manifest_folder.into(),
        })
    }

    fn path(&self, path: &str) -> PathBuf {
        match self {
            Self::Laptop { manifest_folder } => manifest_folder.join(path),
            Self::Cluster { .. } => path.into(),
        }
    }

    fn claim(&self, claim: &str, path: &str) -> PathBuf {
        let volumes = match self {
            // Refused by `validate`.
            Self::Laptop { manifest_folder } => manifest_folder.as_path(),
            Self::Cluster { volumes } => volumes.as_path(),
        };
        let inside = path.trim_start_matches('/');
        if inside.is_empty() {
            volumes.join(claim)
        } else {
            volumes.join(claim).join(inside)
        }
    }

    fn file(&self, path: Option<&str>, pvc: Option<&PvcPath>) -> PathBuf {
        match (path, pvc) {
            (_, Some(pvc)) => self.claim(&pvc.claim_name, &pvc.path),
            (path, None) => self.path(path.unwrap_or_default()),
        }
    }

    /// Where a model lies there.
    pub fn model(&self, source: &ModelSource) -> Location {
        match &source.hub {
            Some(hub) => Location::Hub {
                id: hub.id.clone(),
                revision: hub.revision.clone(),
            },
            None => Location::Path(self.file(source.path.as_deref(), source.pvc.as_ref())),
        }
    }

    fn data(&self, source: &DataSource) -> DataPaths {
        match &source.paths {
            Some(paths) => paths.iter().map(|path| self.path(path)).collect::<Vec<_>>().into(),
            None => self.file(source.path.as_deref(), source.pvc.as_ref()).into(),
        }
    }
}

fn models(spec: &PpoJobSpec) -> impl Iterator<Item = &ModelSource> {
    let reward = spec.roles.reward.model.as_ref().map(|model| &model.source);
    let model = &spec.model;
    [
        Some(&model.policy),
        model.critic.as_ref(),
        model.reference.as_ref(),
        reward,
    ]
    .into_iter()
    .flatten()
}

fn data(spec: &PpoJobSpec) -> impl Iterator<Item = &DataSource> {
    let held_out = spec.evaluation.as_ref().map(|evaluation| &evaluation.source);
    [Some(&spec.prompts.source), held_out].into_iter().flatten()
}

/// Whether a manifest has what only a cluster knows. Who gives a template means pods: it may be the one thing that says where their paths are.
fn is_for_pods(spec: &PpoJobSpec) -> bool {
    names_a_claim(spec) || Role::ALL.into_iter().any(|role| spec.roles.template(role).is_some())
}

fn names_a_claim(spec: &PpoJobSpec) -> bool {
    spec.checkpoint.claim("").is_some()
        || models(spec).any(|source| source.pvc.is_some())
        || data(spec).any(|source| source.pvc.is_some())
}

/// What runs.
///
/// # Errors
/// All that [`validate`] finds.
pub fn resolve(job: &PpoJob, environment: &Environment) -> Result<RunConfig, ValidationErrors> {
    validate(job, environment)?;
    let job = fill(job);
    let name = job.metadata.name.clone().unwrap_or_default();
    let spec = &job.spec;
    Ok(RunConfig {
        seed: spec.seed,
        length: spec
            .steps
            .map_or(RunLength::Episodes(spec.episodes.unwrap_or(1)), RunLength::Steps),
        model: model(spec, environment),
        prompts: prompts(spec, environment),
        evaluation: evaluation(spec, environment),
        generation: spec.generation.clone(),
        algorithm: algorithm(&spec.algorithm),
        batch: batch(&spec.batch),
        optimizer: spec.optimizer.clone(),
        overlap: spec.overlap,
        rollout: rollout(spec),
        reward: reward(spec, environment),
        checkpoint: checkpoint(&name, spec, environment),
        telemetry: spec.telemetry.clone(),
        name,
    })
}

fn model(spec: &PpoJobSpec, environment: &Environment) -> Model {
    let model = &spec.model;
    Model {
        policy: environment.model(&model.policy),
        critic: model.critic.as_ref().map(|source| environment.model(source)),
        reference: model.reference.as_ref().map(|source| environment.model(source)),
        adapter: model.adapter.clone(),
        dtype: model.dtype,
        reference_dtype: model
            .reference
            .as_ref()
            .and_then(|_| own_dtype(spec, spec.roles.reference.dtype)),
        activation_checkpointing: model.activation_checkpointing,
    }
}

/// A role's number format where it is another than the actor's: a manifest that names the default runs as one that names none.
fn own_dtype(spec: &PpoJobSpec, role: Option<DType>) -> Option<DType> {
    role.filter(|dtype| *dtype != spec.model.dtype)
}

fn prompts(spec: &PpoJobSpec, environment: &Environment) -> Prompts {
    let prompts = &spec.prompts;
    Prompts {
        path: environment.data(&prompts.source),
        prompt_field: prompts.prompt_field.clone(),
        label_field: prompts.label_field.clone(),
        chat_template: prompts.chat_template,
        chat_template_variables: prompts.chat_template_variables.clone().unwrap_or_default(),
        max_length: prompts.max_length as usize,
        shuffle: prompts.shuffle,
    }
}

fn evaluation(spec: &PpoJobSpec, environment: &Environment) -> Option<Evaluation> {
    let evaluation = spec.evaluation.as_ref()?;
    Some(Evaluation {
        path: environment.data(&evaluation.source),
        every_steps: evaluation.every_steps,
        max_prompts: evaluation.max_prompts.map(|count| count as usize),
        temperature: evaluation.temperature,
        n_samples_per_prompt: evaluation.n_samples_per_prompt as usize,
        pass_score: evaluation.pass_score,
        set_field: evaluation.set_field.clone(),
    })
}

/// The maths of a filled spec.
pub(crate) fn algorithm(spec: &AlgorithmSpec) -> Algorithm {
    // A filled block has every value; the fallbacks here are only what the types ask for.
    let off_at_zero = |value: Option<f64>| value.filter(|&value| value != 0.0);
    let adaptive = spec
        .kl
        .controller
        .as_ref()
        .and_then(|controller| controller.adaptive.as_ref());
    Algorithm {
        profile: spec.profile,
        estimator: spec.advantage.estimator,
        gamma: spec.advantage.gamma.unwrap_or(1.0),
        lambda: spec.advantage.lambda.unwrap_or(1.0),
        whiten: spec.advantage.whiten.unwrap_or_default(),
        deviation: spec.advantage.deviation,
        kl: Kl {
            coef: if has_kl(spec) {
                spec.kl.coef.unwrap_or_default()
            } else {
                0.0
            },
            estimator: spec.kl.estimator.unwrap_or_default(),
            placement: spec.kl.placement.unwrap_or_default(),
            controller: adaptive.map_or(KlController::Fixed, |adaptive| KlController::Adaptive {
                target: adaptive.target,
                horizon: adaptive.horizon,
            }),
            clamp: off_at_zero(spec.kl.clamp),
            stop_above: spec.kl.stop_above,
        },
        clip: Clip {
            policy_low: spec.clip.policy_low.unwrap_or_default(),
            policy_high: spec.clip.policy_high.unwrap_or_default(),
            dual: off_at_zero(spec.clip.dual),
            value: off_at_zero(spec.clip.value),
        },
        ratio: spec.ratio,
        surrogate: spec.surrogate,
        score: Score {
            clip: spec.score.clip.as_ref().map(|range| (range.min, range.max)),
            scale: spec.score.scale.unwrap_or(1.0),
            missing_eos_penalty: off_at_zero(spec.score.missing_eos_penalty),
            whiten_rewards: spec.score.whiten_rewards.unwrap_or_default(),
        },
        value_coef: spec.value_coef.unwrap_or_default(),
        entropy_coef: spec.entropy_coef.unwrap_or_default(),
        aggregation: spec.aggregation.unwrap_or_default(),
        mask_truncated: spec.mask_truncated,
        truncated_importance_sampling: off_at_zero(spec.truncated_importance_sampling),
        rollout_correction: spec.rollout_correction,
    }
}

fn batch(spec: &BatchSpec) -> Batch {
    let size = |size: Option<u32>| size.unwrap_or(1) as usize;
    Batch {
        rollout_batch_size: spec.rollout_batch_size as usize,
        n_samples_per_prompt: spec.n_samples_per_prompt as usize,
        micro_rollout_batch_size: size(spec.micro_rollout_batch_size),
        train_batch_size: size(spec.train_batch_size),
        micro_train_batch_size: size(spec.micro_train_batch_size),
        ppo_epochs: spec.ppo_epochs as usize,
        max_draws: spec.dynamic_sampling.map(|sampling| u64::from(sampling.max_draws)),
    }
}

fn rollout(spec: &PpoJobSpec) -> Rollout {
    let rollout = &spec.roles.rollout;
    Rollout {
        engine: rollout.engine,
        replicas: rollout.replicas as usize,
        min_replicas: rollout.min_replicas as usize,
        block_size: rollout.block_size as usize,
        max_batch_tokens: rollout.max_batch_tokens as usize,
        max_sequences: rollout.max_sequences as usize,
        kv_cache_mebibytes: rollout.kv_cache_mebibytes,
        dtype: own_dtype(spec, rollout.dtype),
    }
}

fn reward(spec: &PpoJobSpec, environment: &Environment) -> Reward {
    let reward = &spec.roles.reward;
    let model = reward.model.as_ref();
    Reward {
        model: model.map(|model| RewardModel {
            source: environment.model(&model.source),
            weight: model.weight,
            dtype: own_dtype(spec, model.dtype),
        }),
        rules: reward.rules.clone(),
        remote: reward.remote.clone(),
    }
}

fn checkpoint(name: &str, spec: &PpoJobSpec, environment: &Environment) -> Checkpoint {
    let checkpoint = &spec.checkpoint;
    let claim = checkpoint.claim(name).map(|claim| environment.claim(&claim, ""));
    let shared = claim.or_else(|| checkpoint.path.as_ref().map(|path| environment.path(path)));
    Checkpoint {
        // Another job may be given the same one.
        path: shared.map(|shared| shared.join(name)),
        every_steps: checkpoint.every_steps,
        keep: checkpoint.keep as usize,
        keep_best: checkpoint.keep_best,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_manifest;

    const REWARD: &str = "reward: {rules: [{json: {}}]}";

    fn job(policy: &str, blocks: &str, roles: &str) -> PpoJob {
        let text = format!(
            "{{apiVersion: ppojob.dev/v1alpha1, kind: PpoJob, metadata: {{name: j}}, spec: {{model: {{policy: {{{policy}}}}}, \
             prompts: {{source: {{path: /data/p.jsonl}}}}, {blocks} roles: {{{roles}{REWARD}}}}}}}"
        );
        parse_manifest(&text, "job.yaml").unwrap()
    }

    #[test]
    fn a_manifest_with_a_claim_or_a_pod_template_is_meant_for_a_cluster() {
        let here = Environment::Laptop {
            manifest_folder: "/jobs".into(),
        };
        let meant = |policy: &str, roles: &str| Environment::meant_by(&job(policy, "", roles), Path::new("/jobs"));
        assert_eq!(meant("path: p", ""), here);
        assert_eq!(meant("path: /models/p", ""), here);
        assert_eq!(meant("pvc: {claimName: models, path: p}", ""), Environment::cluster());
        let template = "template: {spec: {nodeSelector: {pool: a}}}";
        for role in ["actor", "reference", "rollout"] {
            let roles = format!("{role}: {{{template}}}, ");
            assert_eq!(meant("path: p", &roles), Environment::cluster(), "{role}");
        }
    }

    #[test]
    fn a_manifest_with_a_template_is_held_to_what_the_operator_would_refuse() {
        let template = "actor: {template: {spec: {nodeSelector: {pool: a}}}}, ";
        let refused = |policy: &str, blocks: &str, roles: &str| {
            let job = job(policy, blocks, roles);
            let meant = Environment::meant_by(&job, Path::new("/jobs"));
            resolve(&job, &meant).err().map(|errors| errors.to_string())
        };
        assert_eq!(refused("path: /models/p", "", template), None);
        let words = refused("path: p", "", template).unwrap();
        assert!(
            words.contains("spec.model.policy.path: ") && words.contains("is relative"),
            "{words}"
        );
        // No volume is mounted there.
        let nowhere = "checkpoint: {path: /nowhere},";
        let words = refused("path: /models/p", nowhere, template).unwrap();
        assert!(words.contains("spec.checkpoint.path: "), "{words}");
        assert_eq!(refused("path: /models/p", nowhere, ""), None);
    }
}
