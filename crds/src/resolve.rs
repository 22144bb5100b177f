//! From the manifest to what runs: every default filled in, every rule checked, every path that of the machine or pod.

use crate::fill;
use crate::run_config::{
    Algorithm, Batch, Checkpoint, Evaluation, Model, Prompts, Reward, RewardModel, Rollout, RunConfig, RunLength,
};
use crate::spec::{BatchSpec, DType, PpoJob, PpoJobSpec};
use crate::validate::{ValidationErrors, validate};

pub use crate::environment::Environment;

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
        algorithm: Algorithm::of(&spec.algorithm),
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
    use std::path::Path;

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
