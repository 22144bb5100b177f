//! Rules of the batch arithmetic.

use super::*;
use crate::fill;

#[test]
fn a_batch_that_does_not_divide_is_told_the_nearest_ones_that_fit() {
    let text = one(
        "batch: {rolloutBatchSize: 32, nSamplesPerPrompt: 4, trainBatchSize: 48}",
        RULE,
    );
    let expected =
        "spec.batch.trainBatchSize: 48 does not divide the 128 samples of a step (32 prompts x 4); use 32 or 64";
    assert_eq!(text, expected);
}

#[test]
fn engines_that_cannot_share_the_prompts_are_told_both_numbers_that_could_change() {
    let text = one(
        "batch: {rolloutBatchSize: 32}",
        &format!("rollout: {{replicas: 3}}, {RULE}"),
    );
    let expected = "spec.batch.rolloutBatchSize: 32 prompts cannot be shared equally by 3 engines; use 30 or 33, or \
                    spec.roles.rollout.replicas: 2 or 4";
    assert_eq!(text, expected);
}

#[test]
fn an_accumulation_that_is_not_whole_is_written_out() {
    let text = one(
        "batch: {rolloutBatchSize: 32, trainBatchSize: 32, microTrainBatchSize: 3}",
        &format!("actor: {{gpusPerNode: 8}}, {RULE}"),
    );
    assert_eq!(
        text,
        "spec.batch.microTrainBatchSize: accumulation = 32 / (3 x 8 ranks) is not whole; use 2 or 4"
    );
}

#[test]
fn a_micro_batch_is_not_held_against_a_batch_that_has_to_change() {
    let text = one(
        "batch: {rolloutBatchSize: 96, trainBatchSize: 36, microTrainBatchSize: 5}",
        RULE,
    );
    assert!(
        text.starts_with("spec.batch.trainBatchSize: 36 does not divide"),
        "{text}"
    );
}

#[test]
fn reference_and_reward_model_may_have_any_number_of_ranks() {
    let pods = |reference: u32, reward: u32| {
        let model = "model: {source: {path: /models/reward}}";
        format!("reference: {{gpusPerNode: {reference}}}, reward: {{{model}, placement: {{nodes: {reward}}}}}")
    };
    let batch = "batch: {rolloutBatchSize: 32, microRolloutBatchSize: 16}";
    assert_eq!(texts(batch, &pods(3, 5)), [""; 0]);
    let filled = |reference, reward| {
        let job = job("batch: {rolloutBatchSize: 32}", &pods(reference, reward));
        fill(&job).spec.batch
    };
    assert_eq!(filled(3, 7), filled(1, 1));
}

#[test]
fn dynamic_sampling_is_for_who_compares_a_group() {
    let said = |blocks: &str| {
        let job = job(blocks, RULE);
        problems(&job)
            .into_iter()
            .map(|problem| problem.to_string())
            .collect::<Vec<_>>()
    };
    let batch = "batch: {nSamplesPerPrompt: 4, dynamicSampling: {}}";
    let grpo = "algorithm: {advantage: {estimator: grpo}}";
    assert_eq!(said(&format!("{batch}\n  {grpo}")), [""; 0]);
    assert_eq!(said(&format!("{batch}\n  {grpo}\n  overlap: oneStep")), [""; 0]);
    let gae = said(batch);
    assert!(
        gae.len() == 1 && gae[0].starts_with("spec.batch.dynamicSampling: is for"),
        "{gae:?}"
    );
}
