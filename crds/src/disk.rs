//! What a run leaves on the disk that its checkpoints go to, estimated from the models' shapes.

use serde::Serialize;

use crate::memory::{Shapes, checkpoint_bytes, result_bytes};
use crate::run_config::RunConfig;

/// What a run needs of the disk that its checkpoints go to, beside records and samples, which are small. A run without a claim or path for
/// them leaves it in its folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    /// Bytes of a checkpoint: weights and optimizer state of all that learns.
    pub checkpoint: u64,
    /// Checkpoints that there are at once: those that are kept, the best one, and one that is being written.
    pub checkpoints: u64,
    /// Bytes of the trained model, which the end of the run writes.
    pub model: u64,
    /// Bytes in all.
    pub total: u64,
}

impl Disk {
    /// Of a run with these models.
    pub fn of(config: &RunConfig, shapes: &Shapes) -> Self {
        let kept = (config.checkpoint.keep as u64).saturating_add(u64::from(config.checkpoint.keep_best));
        let (checkpoint, checkpoints) = (checkpoint_bytes(config, shapes), kept.saturating_add(1));
        let model = result_bytes(config, shapes);
        Self {
            checkpoint,
            checkpoints,
            model,
            total: checkpoint.saturating_mul(checkpoints).saturating_add(model),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::tests::job;
    use crate::memory::tests::LLAMA_8B;
    use crate::{Environment, resolve};

    #[test]
    fn a_disk_has_room_for_what_is_kept_the_best_one_and_one_that_is_being_written() {
        let disk = |checkpoint: &str| {
            let job = job(checkpoint, "reward: {rules: [{json: {}}]}");
            let config = resolve(&job, &Environment::cluster()).unwrap();
            let shapes = Shapes {
                policy: LLAMA_8B,
                critic: None,
                reward: None,
            };
            Disk::of(&config, &shapes)
        };
        let usual = disk("");
        assert_eq!(
            usual.checkpoint,
            12 * (LLAMA_8B.parameters() + LLAMA_8B.trunk_parameters())
        );
        assert_eq!(usual.checkpoints, 5);
        assert_eq!(usual.total, 5 * usual.checkpoint + 2 * LLAMA_8B.parameters());
        assert_eq!(disk("checkpoint: {keep: 1, keepBest: false}").checkpoints, 2);
    }
}
