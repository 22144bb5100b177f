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
fn each_broken_division_is_told_with_values_that_go_with_the_others() {
    let found = texts(
        "batch: {rolloutBatchSize: 96, trainBatchSize: 36, microTrainBatchSize: 5}",
        RULE,
    );
    assert_eq!(
        found,
        [
            "spec.batch.trainBatchSize: 36 does not divide the 96 samples of a step (96 prompts x 1), and no size that fits the step is a multiple of \
             microTrainBatchSize 5 x 1 ranks; with another microTrainBatchSize use 32 or 48",
            "spec.batch.microTrainBatchSize: accumulation = 36 / (5 x 1 ranks) is not whole; use 4",
        ]
    );
    let found = texts(
        "batch: {rolloutBatchSize: 128, trainBatchSize: 48, microTrainBatchSize: 32}",
        RULE,
    );
    assert!(
        found[0].ends_with("; use 32 or 64") && found[1].ends_with("; use 16"),
        "{found:#?}"
    );
}

#[test]
fn ranks_that_cannot_share_a_step_hide_no_other_division() {
    let found = texts(
        "batch: {rolloutBatchSize: 96, trainBatchSize: 36, microTrainBatchSize: 5}",
        &format!("actor: {{gpusPerNode: 5}}, {RULE}"),
    );
    assert_eq!(
        found,
        [
            "spec.batch.rolloutBatchSize: the 96 samples of a step (96 prompts x 1) cannot be shared equally by 5 actor ranks; use 180",
            "spec.batch.trainBatchSize: 36 does not divide the 96 samples of a step (96 prompts x 1), and cannot be shared equally by 5 actor \
             ranks, and no size that fits the step is a multiple of 5 actor ranks",
            "spec.batch.microTrainBatchSize: accumulation = 36 / (5 x 5 ranks) is not whole, whatever this number is: 5 ranks cannot share 36 \
             samples equally",
        ]
    );
}

#[test]
fn numbers_with_which_no_batch_goes_are_named() {
    let found = texts(
        "batch: {rolloutBatchSize: 32, trainBatchSize: 1048583}",
        &format!("rollout: {{replicas: 3}}, {RULE}"),
    );
    assert!(
        found[0].contains("; no number up to 1048576 goes with nSamplesPerPrompt 1, trainBatchSize 1048583, 1 actor ranks, 3 engines; use \
                           spec.roles.rollout.replicas: 2 or 4"),
        "{found:#?}"
    );
}

#[test]
fn a_number_out_of_range_hides_only_the_divisions_it_takes_part_in() {
    let fields = |batch: &str, roles: &str| -> Vec<String> {
        let job = job(&format!("batch: {{{batch}}}"), &format!("{roles}{RULE}"));
        problems(&job).into_iter().map(|problem| problem.field).collect()
    };
    let train = "rolloutBatchSize: 10, trainBatchSize: 3";
    for other in ["ppoEpochs: 0", "microTrainBatchSize: 0", "microRolloutBatchSize: 0"] {
        let (name, _) = other.split_once(':').unwrap();
        assert_eq!(
            fields(&format!("{train}, {other}"), ""),
            [format!("spec.batch.{name}"), "spec.batch.trainBatchSize".into()]
        );
    }
    assert_eq!(
        fields(train, "rollout: {replicas: 0}, "),
        ["spec.roles.rollout.replicas", "spec.batch.trainBatchSize"]
    );
    assert_eq!(
        fields(
            train,
            "reference: {nodes: 0}, actor: {gpusPerNode: 65}, rollout: {minReplicas: 0}, "
        ),
        [
            "spec.roles.actor.gpusPerNode",
            "spec.roles.reference.nodes",
            "spec.roles.rollout.minReplicas",
            "spec.batch.trainBatchSize"
        ]
    );
    assert_eq!(
        fields(
            "rolloutBatchSize: 10, nSamplesPerPrompt: 0, trainBatchSize: 3",
            "rollout: {replicas: 3}, "
        ),
        ["spec.batch.nSamplesPerPrompt", "spec.batch.rolloutBatchSize"]
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
