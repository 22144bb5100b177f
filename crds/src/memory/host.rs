//! Memory of its node that a pod with GPUs takes. A pod without any computes there: what its rank holds is all of it.
//!
//! Files that are mapped or written lie in the page cache, which the kernel takes back: it is not counted. No optimizer state is kept here.

use serde::Serialize;

use super::{ModelShape, Part, Shapes, bytes, most_changed, part, product, sends_changes, total};
use crate::geometry::{Geometry, RoleGeometry};
use crate::run_config::RunConfig;
use crate::spec::{DType, Engine, Role};

/// Of a process that has loaded libtorch's CUDA part: what libraries, CUDA's context and NCCL take, 2 to 3 GiB.
const PROCESS: u64 = 3 << 30;

/// Through which weights go to a GPU: pieces of 32 MiB, of which a few are under way (`native/device.rs` of the worker). libtorch keeps them.
const PINNED: u64 = 4 * (32 << 20);

/// What is here at once of a checkpoint that a rank writes (`model/shard_file.rs` of the worker).
const WRITTEN: u64 = 33 << 20;

/// Of a token of a step's samples: its id, log-probabilities and version, and what the stages say of it, in float32.
const TOKEN: u64 = 48;

/// What a pod takes of its node's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostMemory {
    /// What the memory holds.
    pub parts: Vec<Part>,
    /// Bytes in all.
    pub total: u64,
}

/// Of each pod of a role. None: it has no GPU.
pub(super) fn of(config: &RunConfig, geometry: &Geometry, shapes: &Shapes, pods: &RoleGeometry) -> Option<HostMemory> {
    let gpus = pods.gpus_per_pod;
    if gpus == 0 {
        return None;
    }
    let parts = match pods.role {
        Role::Rollout => rollout(config, shapes, gpus),
        Role::Actor => actor(config, geometry, shapes, gpus),
        Role::Reference => reader(&shapes.policy, config.dtype(pods.role), gpus),
        Role::Reward => reader(&shapes.reward.unwrap_or(shapes.policy), config.dtype(pods.role), gpus),
    };
    Some(HostMemory {
        total: total(&parts),
        parts,
    })
}

/// The builtin engine computes on one GPU, and gathers new weights here until they are whole (`engine/staging.rs` of the worker). vLLM has a
/// process for each GPU, and what else it takes is its own affair.
fn rollout(config: &RunConfig, shapes: &Shapes, gpus: u64) -> Vec<Part> {
    if config.rollout.engine == Engine::Vllm {
        return vec![part("vLLM's processes, at least", product(&[gpus, PROCESS]))];
    }
    let (sent, own) = (config.model.dtype, config.dtype(Role::Rollout));
    let weights = product(&[shapes.policy.parameters(), bytes(own)]);
    let mut parts = vec![
        part("process with CUDA", PROCESS),
        part("pinned memory", PINNED),
        part("policy weights that arrive", weights),
    ];
    if sent != own {
        parts.push(part(
            "weight that is converted",
            product(&[shapes.policy.largest_weight(), bytes(sent)]),
        ));
    }
    parts
}

/// A process for each GPU.
fn actor(config: &RunConfig, geometry: &Geometry, shapes: &Shapes, gpus: u64) -> Vec<Part> {
    // Several engines read beside each other, and the largest tensors are the first (`rollout/weights/source.rs`).
    let sent = match config.rollout.replicas > 1 && !shapes.policy.tied {
        true => 2,
        false => 1,
    };
    let number = bytes(config.model.dtype);
    let processes = match gpus {
        1 => "process with CUDA".to_owned(),
        _ => format!("{gpus} processes with CUDA"),
    };
    let mut parts = vec![
        part(&processes, product(&[gpus, PROCESS])),
        part("pinned memory", product(&[gpus, PINNED])),
        part("checkpoint being written", product(&[gpus, WRITTEN])),
        part(
            "weights sent to engines",
            product(&[sent, shapes.policy.largest_weight(), number]),
        ),
        part(
            "samples of a step",
            product(&[gpus, geometry.samples_per_step, config.longest_sequence() as u64, TOKEN]),
        ),
    ];
    if sends_changes(config) {
        let marks = shapes.policy.parameters().div_ceil(8);
        parts.push(part("changed weights, at most", marks + most_changed(&shapes.policy)));
    }
    parts
}

/// One process has a copy of its model on each GPU, and hashes one of them weight by weight.
fn reader(shape: &ModelShape, dtype: DType, gpus: u64) -> Vec<Part> {
    vec![
        part("process with CUDA", PROCESS),
        part("pinned memory", product(&[gpus, PINNED])),
        part(
            "weight that is hashed",
            product(&[shape.largest_weight(), bytes(dtype)]),
        ),
    ]
}
