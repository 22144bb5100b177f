//! Defaults that newer versions of TRL have changed, where the flags do not say: the older one is taken, which is said.

use crate::convert::draft::{Draft, WrongValue};

/// Of PPO.
pub(super) fn learning_rate(draft: &mut Draft) {
    unless_given(
        draft,
        &["learning_rate"],
        "learning_rate is 5e-5 up to 0.28, which is taken, and 3e-6 since 0.29: with a newer version give \
         optimizer.actorLearningRate and criticLearningRate",
    );
}

/// Where vLLM runs (grpo_config.py of 0.29 and 1.0).
pub(super) fn where_vllm_runs(draft: &mut Draft) {
    unless_given(
        draft,
        &["vllm_mode"],
        "vllm_mode is server up to 0.29, which is taken: one engine; since 1.0 it is colocate, an engine on each process' GPU: with a newer \
         version give roles.rollout.replicas",
    );
}

/// What vLLM's correction is where no flag is given that only newer versions have (grpo_config.py of 0.24 to 1.16).
pub(super) fn correction(draft: &mut Draft) {
    draft.leave(
        "TRL's default",
        "vLLM's correction truncates a token's ratio, at 2 unless given, up to 0.25, which is taken \
         (algorithm.truncatedImportanceSampling); since 0.26 it leaves out sequences whose ratio is above 3: with a newer version give \
         algorithm.rolloutCorrection: {level: sequence, outside: mask, high: 3} instead",
    );
}

/// Of the KL's estimate; without a KL it has nothing to act on.
pub(super) fn weight_of_kl(draft: &mut Draft) -> Result<(), WrongValue> {
    if draft.number("beta")?.is_some_and(|beta| beta != 0.0) {
        unless_given(
            draft,
            &["use_bias_correction_kl"],
            "use_bias_correction_kl is true since 1.10, which weighs the estimate of the KL by the ratio; here it has no weight, as up \
             to 1.9",
        );
    }
    Ok(())
}

/// Of prompts and responses.
pub(super) fn lengths(draft: &mut Draft) {
    unless_given(
        draft,
        &["max_prompt_length"],
        "max_prompt_length is 512 up to 0.27, and there is no bound since 0.28: give prompts.maxLength as your data needs",
    );
    unless_given(
        draft,
        &["max_completion_length"],
        "max_completion_length is 256 up to 1.9, which is taken, and 512 since 1.10: with a newer version give \
         generation.maxNewTokens",
    );
}

fn unless_given(draft: &mut Draft, names: &[&str], why: &str) {
    if !names.iter().all(|name| draft.is_given(name)) {
        draft.leave("TRL's default", why);
    }
}
