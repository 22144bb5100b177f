//! What else of verl's models, engines and estimators has a place here, and what has none.

use super::*;

fn verl(flags: &str) -> Conversion {
    converted(Framework::Verl, &format!("actor_rollout_ref.model.path=/m {flags}"))
}

fn says(conversion: &Conversion, subject: &str, words: &str) -> bool {
    let is = |note: &Note| note.subject == subject && note.message.contains(words);
    conversion.notes.iter().any(is)
}

#[test]
fn the_gpus_of_verls_pipelines_are_an_engines_too() {
    let rollout = "actor_rollout_ref.rollout";
    let conversion = verl(&format!(
        "{rollout}.tensor_model_parallel_size=2 {rollout}.pipeline_model_parallel_size=2"
    ));
    let engines = &conversion.job.spec.roles.rollout;
    assert_eq!((engines.gpus_per_replica, engines.replicas), (4, 2));
    let pipeline = format!("{rollout}.pipeline_model_parallel_size");
    assert!(
        says(&conversion, &pipeline, "there is no pipeline"),
        "{:?}",
        conversion.notes
    );
    let without = verl(&format!("{pipeline}=1"));
    assert_eq!(without.job.spec.roles.rollout.gpus_per_replica, 2);
    assert!(!says(&without, &pipeline, ""), "{:?}", without.notes);
}

#[test]
fn a_pool_of_verls_engines_is_as_many_engines_here() {
    let rollout = "actor_rollout_ref.rollout";
    let pool = format!("{rollout}.nnodes=4 {rollout}.tensor_model_parallel_size=4 trainer.n_gpus_per_node=8");
    let engines = |flags: &str| {
        let conversion = verl(&format!("{pool} {flags}"));
        let unread = says(&conversion, &format!("{rollout}.nnodes"), "separate_async");
        (conversion.job.spec.roles.rollout.replicas, unread)
    };
    let separate = "trainer.v1.trainer_mode=separate_async";
    assert_eq!(engines(separate), (8, false));
    assert_eq!(engines(&format!("{separate} {rollout}.n_gpus_per_node=4")), (4, false));
    assert_eq!(engines(""), (2, true));
    // The recipe's own default is a node of 8.
    let recipe = "python3 -m recipe.one_step_off_policy.main_ppo trainer.n_gpus_per_node=4";
    assert_eq!(converted(Framework::Verl, recipe).job.spec.roles.rollout.replicas, 4);
}

#[test]
fn what_changes_verls_responses_is_told_of() {
    let rollout = "actor_rollout_ref.rollout";
    let conversion = verl(&format!(
        "{rollout}.quantization=fp8 {rollout}.over_sample_rate=0.1 {rollout}.repetition_penalty=1.1"
    ));
    assert!(says(&conversion, &format!("{rollout}.quantization"), "model.dtype"));
    assert!(says(&conversion, &format!("{rollout}.over_sample_rate"), "waited for"));
    assert!(says(
        &conversion,
        &format!("{rollout}.repetition_penalty=1.1"),
        "is 1.1"
    ));
    let off = verl(&format!(
        "{rollout}.over_sample_rate=0 {rollout}.repetition_penalty=1.0 {rollout}.quantization=null"
    ));
    assert!(
        !off.notes.iter().any(|note| note.subject.starts_with(rollout)),
        "{:?}",
        off.notes
    );
}

#[test]
fn verls_reference_of_its_own_is_one_here() {
    let path = "actor_rollout_ref.ref.model.path";
    let given = format!("+{path}=org/base");
    let kl = "actor_rollout_ref.actor.use_kl_loss=True";
    let reference = verl(&format!("{given} {kl}")).job.spec.model.reference;
    assert_eq!(reference.unwrap().hub.unwrap().id, "org/base");
    let without = verl(&given);
    assert!(without.job.spec.model.reference.is_none() && says(&without, path, "without a KL"));
    let adapted = verl(&format!("{given} {kl} actor_rollout_ref.model.lora_rank=8"));
    assert!(adapted.job.spec.model.reference.is_none() && says(&adapted, path, "with an adapter"));
}

#[test]
fn verls_older_bound_of_importance_weights_is_taken() {
    let cap = |value: &str| {
        let flags = format!("actor_rollout_ref.actor.tis_imp_ratio_cap={value}");
        verl(&flags).job.spec.algorithm.truncated_importance_sampling
    };
    assert_eq!([cap("2.5"), cap("-1")], [Some(2.5), None]);
}

#[test]
fn an_estimator_that_is_not_here_says_what_is_taken_in_its_place() {
    let conversion = verl("algorithm.adv_estimator=remax");
    assert!(
        says(&conversion, "algorithm.adv_estimator", "gae, with a critic"),
        "{:?}",
        conversion.notes
    );
    assert!(!says(
        &verl("algorithm.adv_estimator=gae"),
        "algorithm.adv_estimator",
        ""
    ));
}

#[test]
fn openrlhfs_prompts_have_what_a_response_leaves_of_the_default_length() {
    let lengths = |flags: &str| {
        let spec = converted(Framework::Openrlhf, flags).job.spec;
        (spec.prompts.max_length, spec.generation.max_new_tokens)
    };
    let new = "--actor.model_name_or_path a/b";
    assert_eq!(lengths(new), (1024, 1024));
    assert_eq!(lengths(&format!("{new} --rollout.max_new_tokens 512")), (1536, 512));
    assert_eq!(lengths(&format!("{new} --rollout.max_new_tokens 4096")), (1024, 4096));
    assert_eq!(lengths("--pretrain a/b --max_new_tokens 512"), (1536, 512));
    assert_eq!(lengths("--pretrain a/b --generate_max_len 512"), (1024, 512));
}
