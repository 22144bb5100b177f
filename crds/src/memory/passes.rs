//! What the passes of an actor's step keep and work with, at the moment when that is most.

use super::model_shape::{product, sum};
use super::{FLOAT32, ModelShape, Part, part, total};
use super::{activations, bytes, is_on_gpu, keeps_critic_pass, most_logits, scored_activations, scored_logits};
use crate::geometry::Geometry;
use crate::run_config::RunConfig;
use crate::spec::Role;

/// Of scoring and updating the one that takes more.
pub(super) fn largest(
    config: &RunConfig,
    geometry: &Geometry,
    policy: &ModelShape,
    critic: Option<&ModelShape>,
) -> Vec<Part> {
    let updating = updating(config, geometry, policy, critic);
    let scoring = scoring(config, geometry, policy, critic);
    match total(&scoring) > total(&updating) {
        true => scoring,
        false => updating,
    }
}

/// The most that is alive at once in an update: what the passes keep, and, one after the other, logits and what a layer's backward pass
/// works with.
fn updating(config: &RunConfig, geometry: &Geometry, policy: &ModelShape, critic: Option<&ModelShape>) -> Vec<Part> {
    let pass = activations(config, policy);
    let of_critic = critic.map_or(0, |critic| activations(config, critic));
    let critic_waits = critic.is_some_and(|critic| keeps_critic_pass(config, critic, geometry.actor_ranks));
    let kept = match critic_waits {
        true => part("activations of two passes", pass.saturating_add(of_critic)),
        false => part("activations of one pass", pass.max(of_critic)),
    };
    let mut head = vec![part(
        "logits and their gradient",
        actor_logits(config, geometry, policy),
    )];
    if geometry.actor_ranks > 1 && config.model.adapter.is_none() {
        // Several ranks sum a gradient when it is whole; a rank alone adds each slice of it to its gradients.
        head.push(part("output head's gradient", head_gradient(config, geometry, policy)));
    }
    let backward = |shape: &ModelShape| backward_of_layer(config, geometry, shape);
    let layer = backward(policy).max(critic.map_or(0, backward));
    let then = match layer > total(&head) {
        true => vec![part("backward pass of a layer", layer)],
        false => head,
    };
    std::iter::once(kept).chain(then).collect()
}

/// While old log-probabilities and values are computed in pieces of `microRolloutBatchSize`: a piece's beside those that are kept already
/// (`Pieces::compute_keeping` of the worker). Nothing where the kept passes are of all samples.
fn scoring(config: &RunConfig, geometry: &Geometry, policy: &ModelShape, critic: Option<&ModelShape>) -> Vec<Part> {
    let ranks = geometry.actor_ranks;
    let keeps = config.keeps_first_pass(ranks);
    if keeps && config.batch.train_batch_size as u64 >= geometry.samples_per_step {
        return Vec::new();
    }
    let kept_by_policy = if keeps { activations(config, policy) } else { 0 };
    let of_policy = kept_by_policy.saturating_add(scored_activations(config, policy, config.model.dtype));
    let then = critic.map_or(0, |critic| {
        let waits = keeps_critic_pass(config, critic, ranks);
        let kept_by_critic = if waits { activations(config, critic) } else { 0 };
        sum(&[
            kept_by_policy,
            kept_by_critic,
            scored_activations(config, critic, config.model.dtype),
        ])
    });
    vec![
        part("activations while scoring", of_policy.max(then)),
        part("logits and their gradient", actor_logits(config, geometry, policy)),
    ]
}

/// Logits of the response's tokens and their gradient, which go by in slices where they are many.
fn actor_logits(config: &RunConfig, geometry: &Geometry, policy: &ModelShape) -> u64 {
    let response = product(&[
        config.batch.micro_train_batch_size as u64,
        u64::from(config.generation.max_new_tokens),
    ]);
    product(&[2, response, policy.vocab, FLOAT32])
        .max(scored_logits(config, policy))
        .min(most_logits(geometry, Role::Actor))
}

/// The gradient of the output projection: slices of logits add up in float32 on a GPU, on a CPU in the model's numbers (`TokenLogprobs` in
/// `native/training_stock.cpp` and `native/training_logprobs.cpp` of the worker).
fn head_gradient(config: &RunConfig, geometry: &Geometry, policy: &ModelShape) -> u64 {
    let number = match is_on_gpu(geometry, Role::Actor) {
        true => FLOAT32,
        false => bytes(config.model.dtype),
    };
    product(&[policy.vocab, policy.hidden, number])
}

/// What the backward pass of one layer works with over a micro-batch, beside what the forward pass kept: of the longest samples, or of as many
/// tokens in more of them (`Room` in `actor/packing.rs` of the worker).
fn backward_of_layer(config: &RunConfig, geometry: &Geometry, shape: &ModelShape) -> u64 {
    let fewest = config.batch.micro_train_batch_size as u64;
    let most = (config.batch.train_batch_size as u64 / geometry.actor_ranks.max(1)).max(fewest);
    let tokens = product(&[fewest, config.longest_sequence() as u64]);
    let attention = |sequences| shape.attention_backward_bytes(tokens, sequences, config.model.dtype);
    let mlp = shape.mlp_backward_bytes(tokens, config.model.dtype);
    match is_on_gpu(geometry, Role::Actor) {
        true => mlp.max(attention(fewest)).max(attention(most)),
        // The worker's own kernel has a block of queries at a time, and each of its threads copies of one head of keys and values: less than the
        // feed-forward layer took, which is gone by then.
        false => mlp,
    }
}
