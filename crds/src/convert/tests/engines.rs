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
    assert!(says(
        &conversion,
        &format!("{rollout}.quantization"),
        "roles.rollout.dtype"
    ));
    assert!(says(&conversion, &format!("{rollout}.over_sample_rate"), "waited for"));
    assert!(says(
        &conversion,
        &format!("{rollout}.repetition_penalty=1.1"),
        "1.1 is not available; the job uses 1.0"
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
fn each_of_verls_roles_keeps_its_number_format() {
    use crate::spec::DType::{Bfloat16, Float32};
    let of = |flags: &str| {
        let spec = verl(flags).job.spec;
        let roles = spec.roles;
        let reward = roles.reward.model.and_then(|model| model.dtype);
        (spec.model.dtype, roles.rollout.dtype, roles.reference.dtype, reward)
    };
    let (actor, reference) = (
        "actor_rollout_ref.actor.fsdp_config",
        "actor_rollout_ref.ref.fsdp_config",
    );
    let (kl, engines) = (
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.rollout.dtype",
    );
    let reward = "reward.reward_model.enable=True reward.reward_model.model_path=/rm";
    assert_eq!(of(kl), (Bfloat16, None, None, None));
    assert_eq!(of(&format!("{engines}=float32")), (Bfloat16, Some(Float32), None, None));
    assert_eq!(
        of(&format!(
            "{kl} {reference}.dtype=float32 {reward} reward.reward_model.rollout.dtype=float32"
        )),
        (Bfloat16, None, Some(Float32), Some(Float32))
    );
    // The others' default is not the actor's.
    let (given, default) = (Some(Float32), Some(Bfloat16));
    assert_eq!(of(&format!("{actor}.dtype=float32")), (Float32, default, None, None));
    assert_eq!(
        of(&format!("{kl} +{actor}.mixed_precision.param_dtype=fp32 {reward}")),
        (Float32, default, default, default)
    );
    assert_eq!(
        of(&format!(
            "{kl} {actor}.dtype=float32 {engines}=float32 {reference}.dtype=fp32"
        )),
        (Float32, given, given, None)
    );
    // An adapter's reference is the actor, and without a KL there is none.
    let lora = "actor_rollout_ref.model.lora_rank=8";
    for flags in [
        format!("{reference}.dtype=float32"),
        format!("{kl} {lora} {reference}.dtype=float32"),
    ] {
        assert_eq!(of(&flags), (Bfloat16, None, None, None), "{flags}");
    }
    // What verl keeps the weights in behind it, which is float32 here.
    for kept in ["fp32", "bfloat16"] {
        let conversion = verl(&format!("{actor}.model_dtype={kept}"));
        assert_eq!(conversion.job.spec.model.dtype, Bfloat16);
        let told = |note: &Note| note.subject.contains("model_dtype") && note.message.contains("master weights");
        assert!(conversion.notes.iter().any(told), "{:?}", conversion.notes);
    }
    let half = verl(&format!("{actor}.dtype=float16"));
    assert!(says(
        &half,
        &format!("{actor}.dtype=float16"),
        "float16 is not available (these are: bfloat16, "
    ));
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
fn an_estimator_that_is_not_here_says_which_is_nearest_and_takes_its_place() {
    use crate::spec::Estimator;
    for (theirs, samples, ours) in [
        ("remax", 4, Estimator::Rloo),
        ("remax", 1, Estimator::ReinforcePlusPlus),
        ("gpg", 5, Estimator::DrGrpo),
        ("opo", 8, Estimator::DrGrpo),
        ("grpo_passk", 8, Estimator::Grpo),
        ("gdpo", 4, Estimator::Grpo),
        ("optimal_token_baseline", 8, Estimator::Rloo),
        ("tir_optimal_token_baseline", 8, Estimator::Rloo),
    ] {
        let flags = format!("algorithm.adv_estimator={theirs} actor_rollout_ref.rollout.n={samples}");
        let conversion = verl(&flags);
        assert_eq!(conversion.job.spec.algorithm.advantage.estimator, ours, "{flags}");
        let about = |note: &&Note| note.subject.starts_with("algorithm.adv_estimator");
        let said: Vec<&Note> = conversion.notes.iter().filter(about).collect();
        let [note] = said.as_slice() else {
            panic!("{flags}: {said:?}");
        };
        let start = format!("is {theirs}, which is not here: ");
        assert!(
            note.message.starts_with(&start) && note.message.contains("is nearest"),
            "{note:?}"
        );
    }
    for name in ["gae", "rloo_vectorized actor_rollout_ref.rollout.n=2"] {
        let conversion = verl(&format!("algorithm.adv_estimator={name}"));
        assert!(
            !says(&conversion, "algorithm.adv_estimator", ""),
            "{:?}",
            conversion.notes
        );
    }
}

#[test]
fn an_estimator_that_nobody_knows_has_to_be_replaced() {
    let conversion = verl("algorithm.adv_estimator=my_own");
    let replace = |note: &Note| {
        note.kind == NoteKind::Missing
            && note.subject == "spec.algorithm.advantage.estimator"
            && note.message.starts_with("my_own is not here")
    };
    assert!(conversion.notes.iter().any(replace), "{:?}", conversion.notes);
    assert!(
        conversion.manifest.contains("estimator: gae"),
        "{}",
        conversion.manifest
    );
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

#[test]
fn a_run_that_generates_one_step_ahead_elsewhere_does_so_here_and_corrects_as_it_did() {
    use crate::spec::Overlap;
    let check = |framework, command: &str, overlap: Overlap, cap: Option<f64>| {
        let spec = converted(framework, command).job.spec;
        let corrects = spec.algorithm.truncated_importance_sampling;
        assert_eq!((spec.overlap, corrects), (overlap, cap), "{command}");
        spec
    };
    let openrlhf = |flags: &str, overlap, cap| {
        let command = format!("--pretrain a/b {flags}");
        check(Framework::Openrlhf, &command, overlap, cap);
    };
    let corrected = "--enable_vllm_is_correction --vllm_is_truncated_threshold 0 3";
    openrlhf("", Overlap::None, None);
    openrlhf("--async_train --async_queue_size 1", Overlap::OneStep, Some(0.0));
    openrlhf(
        &format!("--train.async_enable {corrected}"),
        Overlap::OneStep,
        Some(3.0),
    );
    openrlhf(corrected, Overlap::None, Some(3.0));

    let verl = |program: &str, flags: &str, overlap, cap| {
        let gpus = "rollout.nnodes=1 rollout.n_gpus_per_node=4 trainer.n_gpus_per_node=8";
        let split = "actor_rollout_ref.rollout.tensor_model_parallel_size=2";
        let command = format!("python3 -m {program} {gpus} {split} {flags}");
        let roles = check(Framework::Verl, &command, overlap, cap).roles;
        assert_eq!((roles.rollout.replicas, roles.actor.gpus_per_node), (2, 8), "{command}");
    };
    let corrected = "algorithm.rollout_correction.rollout_is=token";
    verl("verl.trainer.main_ppo", "", Overlap::None, None);
    verl("recipe.one_step_off_policy.main_ppo", "", Overlap::OneStep, Some(0.0));
    verl(
        "verl.experimental.one_step_off_policy.main_ppo",
        corrected,
        Overlap::OneStep,
        Some(2.0),
    );
    // There PPO's ratio is to the policy that drew, unless it is told otherwise.
    let recipe = |package: &str| format!("{package}.one_step_off_policy.main_ppo");
    let bypass = |value: &str| format!("algorithm.rollout_correction.bypass_mode={value}");
    verl(&recipe("verl.experimental"), "", Overlap::OneStep, None);
    verl(
        &recipe("verl.experimental"),
        &bypass("False"),
        Overlap::OneStep,
        Some(0.0),
    );
    verl(&recipe("recipe"), &bypass("True"), Overlap::OneStep, None);
}
