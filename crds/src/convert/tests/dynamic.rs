//! Groups of equal scores, which OpenRLHF and verl's DAPO leave out.

use super::*;

/// The greatest number of draws, and what is said of a setting.
fn of(framework: Framework, flags: &str, subject: &str) -> (Option<u32>, Option<String>) {
    let conversion = converted(framework, flags);
    let about = |note: &&Note| note.subject == subject;
    let said = conversion.notes.iter().find(about).map(|note| note.message.clone());
    let sampling = conversion.job.spec.batch.dynamic_sampling;
    (sampling.map(|sampling| sampling.max_draws), said)
}

#[test]
fn openrlhfs_dynamic_filtering_leaves_out_groups_of_equal_scores() {
    let base = "--pretrain a/b --remote_rm_url http://x/y --prompt_data /d.jsonl --n_samples_per_prompt 8";
    let range = |flags: &str| {
        let flags = format!("{base} --advantage_estimator group_norm {flags}");
        of(Framework::Openrlhf, &flags, "algo.dynamic_filtering_range")
    };
    assert_eq!(range(""), (None, None));
    let (draws, said) = range("--dynamic_filtering");
    assert_eq!(draws, Some(10));
    assert!(said.unwrap().contains("their mean is 0 or 1"));
    let (draws, said) = range("--dynamic_filtering --dynamic_filtering_reward_range 0.2 0.8");
    assert_eq!(draws, Some(10));
    assert!(said.unwrap().contains("not between 0.2 and 0.8"));
    assert_eq!(range("--dynamic_filtering --async_train").0, Some(10));
    let flags = format!("{base} --algo.dynamic_filtering_enable --advantage_estimator reinforce");
    let (draws, said) = of(Framework::Openrlhf, &flags, "algo.dynamic_filtering_enable");
    assert_eq!(draws, None);
    assert!(said.unwrap().contains("compare the samples of a prompt"));
}

#[test]
fn verls_batches_of_generation_bound_the_draws_of_a_step() {
    let draws = |flags: &str| {
        let base = "algorithm.filter_groups.enable=True actor_rollout_ref.rollout.n=4 data.train_batch_size=512";
        let flags = format!("{base} algorithm.adv_estimator=grpo {flags}");
        let (draws, said) = of(Framework::Verl, &flags, "batch.dynamicSampling.maxDraws");
        assert!(said.unwrap().contains("verl ends the run"), "{flags}");
        draws.unwrap()
    };
    let most = "algorithm.filter_groups.max_num_gen_batches";
    assert_eq!(draws(""), 10);
    assert_eq!(draws(&format!("{most}=0 data.gen_batch_size=1536")), 10);
    assert_eq!(draws(&format!("{most}=7")), 7);
    assert_eq!(draws(&format!("{most}=10 data.gen_batch_size=1536")), 30);
    assert_eq!(draws(&format!("{most}=3 data.gen_batch_size=700")), 5);
    assert_eq!([draws(&format!("{most}=1")), draws(&format!("{most}=5000"))], [2, 1000]);
    let gae = of(
        Framework::Verl,
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.enable",
    );
    assert!(gae.0.is_none() && gae.1.is_some(), "{gae:?}");
}
