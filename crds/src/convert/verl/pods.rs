//! verl's GPUs: all roles share them, but for pools that engines or a reward model may have to themselves.

use super::kl::has_kl;
use crate::convert::draft::{Draft, WrongValue};

/// Those that are shared, which are the actor's.
pub(super) fn shared(draft: &Draft) -> Result<u64, WrongValue> {
    let nodes = draft.count("trainer.nnodes")?.unwrap_or(1);
    Ok(nodes.saturating_mul(of_a_node(draft)?))
}

fn of_a_node(draft: &Draft) -> Result<u64, WrongValue> {
    Ok(draft.count("trainer.n_gpus_per_node")?.unwrap_or(8))
}

/// What engines have to themselves: in the recipe that generates one step ahead, and with `separate_async`
/// (verl/trainer/ppo/v1/trainer_separate_async.py).
fn of_engines(draft: &mut Draft) -> Result<Option<u64>, WrongValue> {
    let (nodes, each) = ("rollout.nnodes", "rollout.n_gpus_per_node");
    if draft.has("overlap") || draft.is_given(nodes) || draft.is_given(each) {
        // The defaults of one_step_off_ppo_trainer.yaml.
        let nodes = draft.count(nodes)?.unwrap_or(1);
        return Ok(Some(nodes.saturating_mul(draft.count(each)?.unwrap_or(8))));
    }
    let (pool, mode) = ("actor_rollout_ref.rollout.nnodes", "trainer.v1.trainer_mode");
    let Some(nodes) = draft.count(pool)?.filter(|nodes| *nodes > 0) else {
        return Ok(None);
    };
    if draft.text(mode).as_deref() != Some("separate_async") {
        draft.leave(
            pool,
            &format!("counts only with {mode}=separate_async: the engines share the actor's GPUs"),
        );
        return Ok(None);
    }
    let each = match draft.count("actor_rollout_ref.rollout.n_gpus_per_node")? {
        Some(each) => each,
        None => of_a_node(draft)?,
    };
    Ok(Some(nodes.saturating_mul(each)))
}

/// Engines have their own GPUs here, as many as they have there.
pub(super) fn engines(draft: &mut Draft) -> Result<(), WrongValue> {
    let (name, pipeline) = (
        "actor_rollout_ref.rollout.tensor_model_parallel_size",
        "actor_rollout_ref.rollout.pipeline_model_parallel_size",
    );
    let stages = draft.count(pipeline)?.unwrap_or(1).max(1);
    let each = draft.count(name)?.unwrap_or(2).max(1).saturating_mul(stages);
    let mut source = draft.source(name);
    if stages > 1 {
        source = format!("{source} x {}", draft.source(pipeline));
        let why = format!(
            "there is no pipeline: vLLM splits every layer over all {each} GPUs of an engine, which must divide the model's attention heads"
        );
        draft.leave(pipeline, &why);
    }
    let own = of_engines(draft)?;
    let all = match own {
        Some(own) => own,
        None => shared(draft)?,
    };
    let engine = "actor_rollout_ref.rollout.name";
    draft.set("roles.rollout.engine", "vllm", &draft.source(engine));
    draft.set("roles.rollout.gpusPerReplica", each, &source);
    draft.set(
        "roles.rollout.replicas",
        (all / each).max(1),
        &format!("{all} GPUs / {each}"),
    );
    if let Some(other) = draft.text(engine).filter(|engine| engine != "vllm") {
        let why = format!("{other} is not here; vllm takes its place (roles.rollout.engine)");
        draft.leave(engine, &why);
    }
    // Where the reference stands is nobody's setting in verl.
    if has_kl(draft) {
        as_the_actor(draft, "roles.reference");
    }
    let sharing = match own {
        Some(_) => "actor, reference and a reward model",
        None => "actor, reference, engines and a reward model",
    };
    let why = format!(
        "{sharing} share GPUs in verl and have their own here: make roles.*.gpusPerNode and replicas smaller to take as many as before"
    );
    draft.leave("verl's shared GPUs", &why);
    Ok(())
}

/// A reward model has GPUs of its own with `enable_resource_pool`.
pub(super) fn reward_model(draft: &mut Draft) -> Result<(), WrongValue> {
    let placement = "roles.reward.placement";
    if !draft.truth("reward.reward_model.enable_resource_pool")? {
        as_the_actor(draft, placement);
        return Ok(());
    }
    for (at, name) in [("nodes", "nnodes"), ("gpusPerNode", "n_gpus_per_node")] {
        let name = format!("reward.reward_model.{name}");
        if let Some(count) = draft.count(&name)?.filter(|count| *count > 0) {
            draft.set(&format!("{placement}.{at}"), count, &draft.source(&name));
        }
    }
    Ok(())
}

fn as_the_actor(draft: &mut Draft, placement: &str) {
    for at in ["nodes", "gpusPerNode"] {
        if let Some(count) = draft.get(&format!("roles.actor.{at}")).cloned() {
            draft.set(&format!("{placement}.{at}"), count, "the actor's");
        }
    }
}
