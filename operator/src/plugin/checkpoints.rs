//! What becomes of a job's checkpoints.

use ppo_crds::PpoJob;

/// What who ends the actor's pod should know, in words that follow a sentence; None where the checkpoints outlive it.
pub fn lost_with_pod(job: &PpoJob) -> Option<&'static str> {
    let is_kept = job.spec.outlives_pods();
    (!is_kept).then_some("its checkpoints go with its pod (spec.checkpoint names no claim): it starts at step 0")
}
