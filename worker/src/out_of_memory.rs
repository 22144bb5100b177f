//! Memory ran out, the most likely end of a run on a GPU: what would have helped, by what the process was at.

use crate::telemetry::Stage;

/// How libtorch (`CUDACachingAllocator.cpp`, `alloc_cpu.cpp`), CUDA and cuBLAS say it.
const WORDS: [&str; 4] = [
    "CUDA out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
];

/// Of updates, and of the passes before them, of which the first is kept for the first update.
const TRAINING: &str = "Less memory takes a smaller batch.microTrainBatchSize (or batch.microRolloutBatchSize), \
    model.activationCheckpointing: true, a shorter generation.maxNewTokens, more ranks (roles.actor.nodes x gpusPerNode, which share \
    optimizer state and gradients), model.adapter";
/// Of passes without gradients.
const FORWARD: &str = "Less memory takes a smaller batch.microRolloutBatchSize, or a shorter generation.maxNewTokens";
/// Of the rollout engine.
const ENGINE: &str = "Leave the rollout engine less for its key/value cache (roles.rollout.kvCacheMebibytes; of a server of its own \
    --kv-cache-mebibytes), or give it a GPU of its own";
/// Of models as such.
const MODEL: &str =
    "Less memory takes a smaller model, bfloat16 (model.dtype, or the role's own dtype), or model.adapter";

/// What would help, where `words` say that memory ran out.
pub fn advice(words: &str) -> Option<String> {
    WORDS.iter().any(|said| words.contains(said)).then(|| {
        let helps = remedy(words);
        format!("{helps}; `ppo-worker plan -f` estimates what each role takes")
    })
}

fn remedy(words: &str) -> &'static str {
    let at = |stage: Stage| words.contains(&format!("{} of step", stage.name()));
    let training = [
        Stage::OldLogprobs,
        Stage::Values,
        Stage::UpdateActor,
        Stage::UpdateCritic,
    ];
    if training.into_iter().any(at) {
        TRAINING
    } else if at(Stage::Reference) {
        FORWARD
    } else if words.contains("rollout engine") {
        ENGINE
    } else if at(Stage::Score) {
        FORWARD
    } else {
        MODEL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: &str = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB";

    fn helps(words: &str) -> String {
        advice(words).unwrap()
    }

    #[test]
    fn what_helps_depends_on_the_stage_in_which_memory_ran_out() {
        let update = helps(&format!("{}: {GPU}", Stage::UpdateCritic.of_step(3)));
        assert!(
            update.contains("microTrainBatchSize") && update.contains("plan -f"),
            "{update}"
        );
        let forward = helps(&format!("{}: {GPU}", Stage::Reference.of_step(3)));
        assert!(forward.contains("a smaller batch.microRolloutBatchSize"), "{forward}");
        let drawing = helps(&format!(
            "{}: the rollout engine failed: {GPU}",
            Stage::Generate.of_step(3)
        ));
        assert!(drawing.contains("kvCacheMebibytes"), "{drawing}");
        let loading = helps(&format!("model.safetensors: {GPU}"));
        assert!(loading.contains("bfloat16"), "{loading}");
    }

    #[test]
    fn other_errors_need_no_advice_on_memory() {
        assert_eq!(advice("the disk is full"), None);
    }
}
