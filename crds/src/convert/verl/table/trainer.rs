//! verl's settings of pods, checkpoints, evaluation and logs.

use crate::convert::row::Read::{Count, CountOrNever, CountOrOff, Data, Folder};
use crate::convert::row::{Row, computed, field, needless, nowhere};

/// Every one of them.
#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    field(&["trainer.nnodes"], &["roles.actor.nodes"], Count),
    field(&["trainer.n_gpus_per_node"], &["roles.actor.gpusPerNode"], Count).or("8"),
    computed(&["trainer.total_epochs"], &["episodes"], "").or("30"),
    computed(&["trainer.total_training_steps"], &["steps"], "counts before total_epochs"),
    field(&["trainer.save_freq"], &["checkpoint.everySteps"], CountOrNever).or("-1"),
    field(&["trainer.max_actor_ckpt_to_keep"], &["checkpoint.keep"], CountOrOff),
    field(&["trainer.default_local_dir"], &["checkpoint.path"], Folder),
    field(&["data.val_files"], &["evaluation.source"], Data),
    computed(&["trainer.test_freq"], &["evaluation.everySteps"], "below 1 there is no evaluation").or("-1"),
    computed(&["data.val_max_samples"], &["evaluation.maxPrompts"], "with evaluation"),
    field(&["trainer.log_val_generations"], &["telemetry.samples"], Count),
    computed(&["trainer.experiment_name"], &["metadata.name"], ""),
    nowhere(
        &["trainer.v1.trainer_mode"],
        "a step is generated before it is learnt from; `overlap: oneStep` generates the next one meanwhile",
    ).off(&["sync"]),
    nowhere(&["trainer.val_only"], "ppo-worker has no run that only evaluates").off(&["false"]),
    nowhere(
        &["trainer.logger"],
        "metrics go to TensorBoard, Prometheus and metrics.jsonl (docs/monitoring.md), under verl's names in \
         TensorBoard",
    ),
    nowhere(
        &["trainer.resume_mode", "trainer.resume_from_path"],
        "a run goes on from the last checkpoint in its own folder, as with auto; `ppo-worker run --fresh` begins anew, as disable does",
    ).off(&["auto"]),
    nowhere(
        &["trainer.val_before_train"],
        "with evaluation.source the evaluation before the first step is always made",
    ).off(&["true"]),
    nowhere(
        &["trainer.checkpoint_callback_class"],
        "it is Python, and nothing is called when a checkpoint is saved: watch its folder (checkpoint.path)",
    ),
    needless(&["trainer.*"], "is Ray's matter, or always so: a run writes samples"),
    needless(
        &["ray_kwargs.*", "ray_init.*", "actor_rollout_ref.profiler.*", "global_profiler.*", "transfer_queue.*", "hydra.*"],
        "is Ray's, hydra's or a profiler's matter",
    ),
    needless(&["skip.*"], "responses are generated anew in every step"),
    nowhere(
        &["config-path", "config-name", "config-dir", "data@*", "model@*", "rollout@*", "reward@*", "algorithm@*"],
        "the file is not read: give what it changes as overrides",
    ),
];
