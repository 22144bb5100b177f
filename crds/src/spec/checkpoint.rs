//! `spec.checkpoint`, `spec.telemetry`: what a run leaves behind.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When and where the run's whole state is saved. A checkpoint holds everything an exact resume needs: weights, optimizer, KL coefficient
/// and the number of steps, which with the seed says all that is random and where in the data the run is. At most one of `path`, `pvc`,
/// `volumeClaim`.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CheckpointSpec {
    /// Folder on a disk, in which checkpoints go into a folder of the job's name; on one machine a relative path starts at the manifest's
    /// folder, on a cluster it is absolute and lies in a volume that `roles.actor.template` mounts. Default: `checkpoints` below the run's
    /// folder.
    /// OpenRLHF `ckpt.path`, verl `trainer.default_local_dir`, TRL `output_dir`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub path: Option<String>,
    /// Name of a PersistentVolumeClaim of the job's namespace; checkpoints, records and the trained model go into a
    /// folder of the job's name. Clusters only, where a run that has neither a claim nor a `path` in a mounted volume goes with its actor
    /// pod, and its model too. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub pvc: Option<String>,
    /// A PersistentVolumeClaim that the operator makes for the job, `<job>-checkpoints`. It stays when the job is deleted:
    /// checkpoints are what the run was for. Clusters only. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_claim: Option<VolumeClaimSpec>,
    /// Save every so many steps; 0 saves only at the end and on SIGTERM. 0 to 1000000000. Default 20. OpenRLHF
    /// `ckpt.save_steps`, verl `trainer.save_freq`, TRL `save_steps`.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub every_steps: u64,
    /// Newest checkpoints kept; older ones are deleted. 1 to 1000. Default 3. OpenRLHF `ckpt.max_num`, verl
    /// `trainer.max_actor_ckpt_to_keep`, TRL `save_total_limit`.
    #[schemars(range(min = 1, max = 1000))]
    pub keep: u32,
    /// Keep the best one too: by held-out score where `evaluation` is set, of those whose step was evaluated; else by the mean score of
    /// the samples that its own weights drew. Default true. OpenRLHF `ckpt.best_metric_key`, TRL `load_best_model_at_end`.
    pub keep_best: bool,
}

impl Default for CheckpointSpec {
    fn default() -> Self {
        Self {
            path: None,
            pvc: None,
            volume_claim: None,
            every_steps: 20,
            keep: 3,
            keep_best: true,
        }
    }
}

impl CheckpointSpec {
    /// Name of the claim that checkpoints of the job `name` go to, given or made.
    pub fn claim(&self, name: &str) -> Option<String> {
        let made = || self.volume_claim.as_ref().map(|_| format!("{name}-checkpoints"));
        self.pvc.clone().or_else(made)
    }
}

/// A PersistentVolumeClaim to make.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeClaimSpec {
    /// Size, such as `200Gi`; above 0. A checkpoint of a model of P parameters takes 24 P bytes with a critic, 12 P without, one of an
    /// adapter less; there are `keep` of them, one more with `keepBest`, and one more while it is written. The trained model takes
    /// 2 P more, 4 P in float32.
    #[schemars(
        length(min = 1, max = 32),
        regex(pattern = r"^([0-9]*[1-9][0-9]*(\.[0-9]+)?|[0-9]+\.[0-9]*[1-9][0-9]*)(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$")
    )]
    pub storage: String,
    /// StorageClass. Default: the cluster's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub storage_class_name: Option<String>,
    /// Access modes, one of which writes; several actor pods need `ReadWriteMany`. At most 4. Default `ReadWriteOnce` for one actor pod, else
    /// `ReadWriteMany`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub access_modes: Vec<AccessMode>,
}

/// How a volume may be mounted, in Kubernetes' words.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum AccessMode {
    /// By one node, to read and write.
    ReadWriteOnce,
    /// By many nodes, to read.
    ReadOnlyMany,
    /// By many nodes, to read and write.
    ReadWriteMany,
    /// By one pod, to read and write.
    ReadWriteOncePod,
}

/// What the run writes for people to look at, besides its metrics.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TelemetrySpec {
    /// Write decoded samples (text, score, per-token reward, advantage and KL) every so many steps, of the first and the last too; 0:
    /// never. 0 to 1000000000. Default 10. verl `trainer.rollout_data_dir`, TRL `num_sample_generations`.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub samples_every_steps: u64,
    /// Samples written each time. 0 to 10000. Default 8. verl `trainer.log_val_generations`.
    #[schemars(range(min = 0, max = 10_000))]
    pub samples: u32,
    /// Write TensorBoard event files. Default true. OpenRLHF `logger.tensorboard_dir`, verl `trainer.logger`, TRL
    /// `report_to`.
    pub tensorboard: bool,
}

impl Default for TelemetrySpec {
    fn default() -> Self {
        Self {
            samples_every_steps: 10,
            samples: 8,
            tensorboard: true,
        }
    }
}
