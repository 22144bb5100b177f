//! What of a framework's loss has a place here.

use super::*;
use crate::spec::KlPlacement;

fn verl(flags: &str) -> Conversion {
    converted(Framework::Verl, &format!("actor_rollout_ref.model.path=/m {flags}"))
}

#[test]
fn a_kl_of_verls_with_the_coefficient_0_leaves_room_for_the_other() {
    let of = |loss: &str, reward: &str| {
        let conversion = verl(&format!(
            "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef={loss} algorithm.use_kl_in_reward=True \
             algorithm.kl_ctrl.kl_coef={reward}"
        ));
        let both = |note: &Note| note.message.contains("acts in one place");
        let said = conversion.notes.iter().any(both);
        let kl = conversion.job.spec.algorithm.kl;
        (kl.coef, kl.placement, said)
    };
    assert_eq!(of("0", "0.02"), (Some(0.02), Some(KlPlacement::Reward), false));
    assert_eq!(of("0.01", "0.0"), (Some(0.01), Some(KlPlacement::Loss), false));
    assert_eq!(of("0.01", "0.02"), (Some(0.01), Some(KlPlacement::Loss), true));
    assert_eq!(of("0", "0"), (Some(0.0), None, false));
}

#[test]
fn a_plus_behind_verls_estimate_of_the_kl_is_k2_in_the_loss_and_nothing_in_the_reward() {
    use crate::spec::KlEstimator::{Abs, K1, K2, K3};
    let of = |flags: String| {
        let conversion = verl(&flags);
        let said = |note: &Note| note.message.contains("only the KL in the logs differs");
        let kl = &conversion.job.spec.algorithm.kl;
        (kl.estimator, conversion.notes.iter().any(said))
    };
    let actor = "actor_rollout_ref.actor";
    let loss = |word: &str| of(format!("{actor}.use_kl_loss=True {actor}.kl_loss_type={word}"));
    for word in ["k1+", "kl+", "abs+", "low_var_kl+", "k3+"] {
        assert_eq!(loss(word), (Some(K2), true), "{word}");
    }
    assert_eq!(loss("mse+"), (Some(K2), false));
    assert_eq!([loss("k3"), loss("abs")], [(Some(K3), false), (Some(Abs), false)]);
    let reward = |word: &str| of(format!("algorithm.use_kl_in_reward=True algorithm.kl_penalty={word}"));
    assert_eq!([reward("k3+"), reward("kl+")], [(Some(K3), false), (Some(K1), false)]);
}

#[test]
fn what_a_job_has_in_place_of_a_word_that_is_not_here_is_said_in_plain_words() {
    let said = |framework, flags: &str, message: &str| {
        let notes = converted(framework, flags).notes;
        assert!(notes.iter().any(|note| note.message == message), "{notes:?}");
    };
    let mode = "actor_rollout_ref.model.path=/m actor_rollout_ref.actor.policy_loss.loss_mode=gpg";
    let message = "gpg is not available (these are: vanilla, gspo, cispo); see that algorithm.ratio and algorithm.surrogate are what you want";
    said(Framework::Verl, mode, message);
    let ppo = "ppo.py --sft_model_path /m --reward_model_path /rm --dataset_name /d.jsonl --stop_token period";
    said(Framework::Trl, ppo, "period is not available; the job uses eos");
    let grpo = "trl grpo --model_name_or_path /m --dataset_name /d.jsonl --repetition_penalty 1.05";
    said(Framework::Trl, grpo, "1.05 is not available; the job uses 1.0");
    let aggregation = "actor_rollout_ref.model.path=/m actor_rollout_ref.actor.loss_agg_mode=seq-mean";
    let message = "seq-mean is not available (these are: token-mean, seq-mean-token-mean, seq-mean-token-sum, seq-mean-token-sum-norm, token-sum); \
                   see that algorithm.aggregation is what you want";
    said(Framework::Verl, aggregation, message);
    let manifest = converted(Framework::Verl, "actor_rollout_ref.model.path=/m").manifest;
    assert!(
        manifest.contains("coef: 0.0") && manifest.contains("# no KL is switched on"),
        "{manifest}"
    );
}

#[test]
fn the_bounds_of_a_loss_that_is_not_here_are_left_out() {
    let of = |framework, command: &str| {
        let conversion = converted(framework, command);
        let said = conversion.notes.iter().any(|note| note.subject == "algorithm.clip");
        let clip = conversion.job.spec.algorithm.clip;
        ((clip.policy_low, clip.policy_high, clip.dual), said)
    };
    let actor = "actor_rollout_ref.actor";
    let clip = format!("{actor}.clip_ratio_low=0.0003 {actor}.clip_ratio_high=0.0004 {actor}.clip_ratio_c=10.0");
    let taken = (Some(0.0003), Some(0.0004), Some(10.0));
    let none: (Option<f64>, Option<f64>, Option<f64>) = (None, None, None);
    assert_eq!(of(Framework::Verl, &clip), (taken, false));
    let mode = format!("{actor}.policy_loss.loss_mode");
    assert_eq!(of(Framework::Verl, &format!("{clip} {mode}=vanilla")), (taken, false));
    assert_eq!(of(Framework::Verl, &format!("{clip} {mode}=sapo")), (none, true));
    // Bounds that PPO's ratio cannot have.
    let sapo = format!("{mode}=sapo {actor}.clip_ratio_low=10 {actor}.clip_ratio_high=0.2");
    assert_eq!(of(Framework::Verl, &sapo), (none, true));
    assert_eq!(of(Framework::Verl, &format!("{mode}=gpg")), (none, false));

    let openrlhf = "--pretrain a/b --eps_clip_low_high 3e-4 4e-4 --policy_loss_type";
    let taken = (Some(0.0003), Some(0.0004), None);
    assert_eq!(of(Framework::Openrlhf, &format!("{openrlhf} ppo")), (taken, false));
    assert_eq!(of(Framework::Openrlhf, &format!("{openrlhf} gspo")), (taken, false));
    assert_eq!(of(Framework::Openrlhf, &format!("{openrlhf} cispo")), (none, true));
    let trl = "trl grpo --model_name_or_path /m --dataset_name /d.jsonl --epsilon 3e-4 --epsilon_high 4e-4";
    for (flags, expected) in [
        ("--loss_type dr_grpo --importance_sampling_level token", (taken, false)),
        ("--importance_sampling_level sequence", (taken, false)),
        ("--importance_sampling_level sequence_token", (none, true)),
        ("--loss_type sapo", (none, true)),
    ] {
        assert_eq!(of(Framework::Trl, &format!("{trl} {flags}")), expected, "{flags}");
    }
}

#[test]
fn cispo_of_each_framework_has_its_bounds_whose_upper_one_is_a_ratio_in_trl() {
    use crate::spec::{Aggregation, Ratio, Surrogate};
    let of = |framework, command: &str| {
        let conversion = converted(framework, command);
        let algorithm = conversion.job.spec.algorithm;
        assert_eq!(algorithm.surrogate, Surrogate::Cispo, "{command}");
        let said: Vec<_> = conversion.notes.into_iter().map(|note| note.subject).collect();
        let clip = &algorithm.clip;
        ((clip.policy_low, clip.policy_high, clip.dual), said, algorithm)
    };
    let actor = "actor_rollout_ref.actor";
    let verl = format!("actor_rollout_ref.model.path=/m {actor}.policy_loss.loss_mode=cispo");
    let (clip, said, algorithm) = of(
        Framework::Verl,
        &format!("{verl} {actor}.clip_ratio_low=10 {actor}.clip_ratio_high=0.2"),
    );
    assert_eq!((clip, algorithm.ratio), ((Some(1.0), Some(0.2), None), Ratio::Token));
    let about = |said: &[String], part: &str| said.iter().any(|subject| subject.contains(part));
    assert!(!about(&said, "clip") && !about(&said, "loss_mode"), "{said:?}");
    let (clip, said, _) = of(
        Framework::Verl,
        &format!("{verl} {actor}.clip_ratio_low=0.3 {actor}.clip_ratio_c=5"),
    );
    assert_eq!(clip, (Some(0.3), None, None));
    assert!(about(&said, "clip_ratio_c"), "{said:?}");

    let trl =
        "trl grpo --model_name_or_path /m --dataset_name /d.jsonl --reward_model_name_or_path /rm --loss_type cispo";
    for (flags, high) in [
        ("--epsilon_high 5.0", Some(4.0)),
        ("--epsilon 0.2 --epsilon_high 1.28", Some(0.28)),
        ("--epsilon 3", Some(2.0)),
        ("--epsilon_high 1", Some(0.0)),
        // What its own default does, too: the bound is that of the profile.
        ("--epsilon_high 0.28", None),
        ("", None),
    ] {
        let (clip, said, algorithm) = of(Framework::Trl, &format!("{trl} {flags}"));
        assert_eq!(clip, (Some(1.0), high, None), "{flags}");
        assert_eq!(algorithm.aggregation, Some(Aggregation::TokenMean), "{flags}");
        assert_eq!(about(&said, "algorithm.clip"), high.is_none(), "{flags}: {said:?}");
        assert!(
            !about(&said, "loss_type") && !about(&said, "delta"),
            "{flags}: {said:?}"
        );
    }
    let (clip, said, algorithm) = of(
        Framework::Trl,
        &format!("{trl} --epsilon_high 5 --delta 4 --importance_sampling_level sequence"),
    );
    assert_eq!((clip, algorithm.ratio), ((Some(1.0), Some(4.0), None), Ratio::Sequence));
    assert_eq!(said.iter().filter(|subject| *subject == "delta").count(), 1, "{said:?}");
}

#[test]
fn gspo_of_each_framework_is_the_ratio_of_sequences_with_the_bounds_that_it_is_given() {
    use crate::spec::Ratio;
    let of = |framework, command: &str| {
        let conversion = converted(framework, command);
        let algorithm = conversion.job.spec.algorithm;
        let said: Vec<_> = conversion.notes.into_iter().map(|note| note.subject).collect();
        (algorithm, said)
    };
    let actor = "actor_rollout_ref.actor";
    let verl = format!(
        "actor_rollout_ref.model.path=/m {actor}.policy_loss.loss_mode=gspo {actor}.clip_ratio_low=0.0003 {actor}.clip_ratio_high=0.0004 \
         {actor}.clip_ratio_c=10.0 {actor}.loss_agg_mode=seq-mean-token-mean"
    );
    let (algorithm, said) = of(Framework::Verl, &verl);
    let clip = algorithm.clip;
    assert_eq!(
        (algorithm.ratio, clip.policy_low, clip.policy_high, clip.dual),
        (Ratio::Sequence, Some(0.0003), Some(0.0004), None)
    );
    assert!(said.iter().any(|subject| subject.contains("clip_ratio_c")), "{said:?}");

    let openrlhf = "--actor.model_name_or_path a/b --actor.policy_loss_type gspo --actor.dual_clip 3 \
                    --algo.advantage.is_correction_level seq --algo.advantage.is_correction_gating binary_kl \
                    --algo.advantage.is_correction_threshold 3e-3";
    let (algorithm, said) = of(Framework::Openrlhf, openrlhf);
    assert_eq!((algorithm.ratio, algorithm.clip.dual), (Ratio::Sequence, Some(3.0)));
    assert_eq!(algorithm.truncated_importance_sampling, Some(2.0));
    assert!(
        !said.iter().any(|subject| subject.contains("is_correction")),
        "{said:?}"
    );

    let trl = "trl grpo --model_name_or_path /m --dataset_name /d.jsonl --reward_model_name_or_path /rm --loss_type grpo \
               --importance_sampling_level";
    for (level, ratio) in [("sequence", Ratio::Sequence), ("token", Ratio::Token)] {
        let (algorithm, said) = of(Framework::Trl, &format!("{trl} {level}"));
        assert_eq!(algorithm.ratio, ratio);
        assert_eq!(
            algorithm.aggregation,
            Some(crate::spec::Aggregation::SequenceMeanTokenMean)
        );
        assert!(
            !said.iter().any(|subject| subject.contains("importance_sampling_level")),
            "{said:?}"
        );
    }
}

#[test]
fn verls_weight_decay_is_of_matrices_alone_here_which_is_said_where_there_is_one() {
    let of = |decay: &str| {
        let conversion = verl(&format!("actor_rollout_ref.actor.optim.weight_decay={decay}"));
        let said = |note: &Note| note.message.contains("norms and biases");
        (
            conversion.job.spec.optimizer.weight_decay,
            conversion.notes.iter().any(said),
        )
    };
    assert_eq!(of("0.1"), (0.1, true));
    assert_eq!(of("0.0"), (0.0, false));
}

#[test]
fn trls_truncated_completions_are_left_out() {
    let of = |flags: &str| {
        let flags =
            format!("trl grpo --model_name_or_path /m --dataset_name /d.jsonl --reward_model_name_or_path /rm {flags}");
        let conversion = converted(Framework::Trl, &flags);
        let said = |note: &Note| note.subject.contains("mask_truncated");
        (
            conversion.job.spec.algorithm.mask_truncated,
            conversion.notes.iter().any(said),
        )
    };
    assert_eq!(of("--mask_truncated_completions"), (true, false));
    assert_eq!(of("--mask_truncated_completions false"), (false, false));
    assert_eq!(of(""), (false, false));
}

#[test]
fn trls_mean_of_micro_batches_is_not_that_of_an_update() {
    let said = |loss: &str| {
        let flags = format!(
            "trl grpo --model_name_or_path /m --dataset_name /d.jsonl --reward_model_name_or_path /rm --loss_type {loss}"
        );
        let conversion = converted(Framework::Trl, &flags);
        assert_eq!(
            conversion.job.spec.algorithm.aggregation,
            Some(crate::spec::Aggregation::TokenMean)
        );
        conversion.notes.iter().any(|note| note.subject == "loss_type")
    };
    assert!(said("bnpo") && !said("dapo"));
}

#[test]
fn verl_without_a_kl_has_none_and_with_it_in_the_reward_it_is_there() {
    let none = converted(
        Framework::Verl,
        "python -m verl.trainer.main_ppo actor_rollout_ref.model.path=/m",
    );
    assert_eq!(none.job.spec.algorithm.kl.coef, Some(0.0));
    let flags = "actor_rollout_ref.model.path=/m algorithm.use_kl_in_reward=True algorithm.kl_ctrl.type=adaptive \
                 algorithm.kl_ctrl.target_kl=0.2 algorithm.norm_adv_by_std_in_grpo=False algorithm.adv_estimator=grpo \
                 actor_rollout_ref.rollout.n=4";
    let spec = converted(Framework::Verl, flags).job.spec;
    assert_eq!(spec.algorithm.kl.placement, Some(crate::spec::KlPlacement::Reward));
    assert_eq!(spec.algorithm.kl.coef, Some(0.001));
    assert_eq!(spec.algorithm.kl.controller.unwrap().adaptive.unwrap().target, 0.2);
    assert_eq!(spec.algorithm.advantage.estimator, crate::spec::Estimator::DrGrpo);
}

#[test]
fn verls_first_name_of_the_mean_over_tokens_is_taken() {
    use crate::spec::Aggregation;
    let of = |value: &str| {
        let flags = format!("actor_rollout_ref.actor.use_token_level_loss={value}");
        verl(&flags).job.spec.algorithm.aggregation
    };
    assert_eq!(of("True"), Some(Aggregation::TokenMean));
    assert_eq!(of("False"), Some(Aggregation::SequenceMeanTokenMean));
}

#[test]
fn what_openrlhf_has_had_since_0_11_1_is_read() {
    use crate::spec::{Aggregation, Estimator, KlEstimator};
    let flags = "--actor.model_name_or_path a/b --reward.model_name_or_path a/rm --actor.loss_agg_mode seq-mean-token-mean \
                 --algo.advantage.estimator flash_reinforce --algo.kl.use_loss --algo.kl.estimator k3 --algo.kl.unbiased_gradient";
    let conversion = converted(Framework::Openrlhf, flags);
    let spec = &conversion.job.spec;
    assert_eq!(spec.algorithm.aggregation, Some(Aggregation::SequenceMeanTokenMean));
    assert_eq!(spec.algorithm.advantage.estimator, Estimator::ReinforcePlusPlus);
    assert_eq!(spec.algorithm.kl.estimator, Some(KlEstimator::K2));
    assert!(spec.model.critic.is_none());
    for subject in ["algo.advantage.estimator", "algo.kl.unbiased_gradient"] {
        let said = conversion.notes.iter().filter(|note| note.subject.contains(subject));
        assert_eq!(said.count(), 1, "{subject}: {:?}", conversion.notes);
    }
}
