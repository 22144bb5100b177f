//! Where a converted job's scores come from.

use super::*;

fn said(conversion: &Conversion, subject: &str, message: &str) -> bool {
    let is = |note: &Note| note.subject == subject && note.message.contains(message);
    conversion.notes.iter().any(is)
}

#[test]
fn verls_reward_model_is_found_below_its_names_of_0_8_and_those_before() {
    let new = "reward.num_workers=8 reward.reward_model.enable=True reward.reward_model.model_path=org/rm \
               reward.reward_model.rollout.name=vllm reward.reward_model.enable_resource_pool=False";
    let old = "reward_model.enable=True reward_model.model.path=org/rm";
    for flags in [new, old] {
        let flags = format!("actor_rollout_ref.model.path=/m data.train_files=/d.parquet {flags}");
        let conversion = converted(Framework::Verl, &flags);
        let reward = &conversion.job.spec.roles.reward;
        let source = &reward.model.as_ref().unwrap().source;
        assert_eq!(source.hub.as_ref().unwrap().id, "org/rm");
        assert!(reward.remote.is_none() && conversion.job.spec.prompts.label_field.is_none());
        let python = conversion
            .notes
            .iter()
            .any(|note| note.message.contains("it is Python"));
        assert!(!python, "{:?}", conversion.notes);
    }
}

#[test]
fn verls_reward_model_has_the_gpus_of_its_pool_or_as_many_as_the_actor() {
    let of = |flags: &str| {
        let flags = format!(
            "actor_rollout_ref.model.path=/m trainer.nnodes=2 trainer.n_gpus_per_node=4 reward.reward_model.enable=True \
             reward.reward_model.model_path=/rm {flags}"
        );
        let placement = converted(Framework::Verl, &flags).job.spec.roles.reward.placement;
        (placement.nodes, placement.gpus_per_node)
    };
    assert_eq!(of(""), (2, 4));
    let pool = "reward.reward_model.enable_resource_pool=True reward.reward_model.nnodes=1";
    assert_eq!(of(pool), (1, 8));
    assert_eq!(of(&format!("{pool} reward.reward_model.n_gpus_per_node=2")), (1, 2));
    let without = converted(Framework::Verl, "actor_rollout_ref.model.path=/m trainer.nnodes=2");
    assert_eq!(without.job.spec.roles.reward.placement.nodes, 1);
}

#[test]
fn verls_reward_in_python_has_to_be_served() {
    for name in [
        "reward.custom_reward_function.path",
        "custom_reward_function.path",
        "sandbox_fusion.url",
    ] {
        let conversion = converted(
            Framework::Verl,
            &format!("actor_rollout_ref.model.path=/m {name}=/f.py"),
        );
        assert!(said(&conversion, name, "serve it over HTTP"), "{:?}", conversion.notes);
        assert!(conversion.job.spec.roles.reward.remote.is_some());
    }
}

#[test]
fn verls_overlong_buffer_has_its_names_of_0_8_too() {
    let buffer = "+reward.reward_kwargs.overlong_buffer_cfg";
    let flags = format!(
        "data.max_response_length=8192 reward.reward_manager.name=dapo {buffer}.enable=True {buffer}.len=4096 \
         {buffer}.penalty_factor=0.5 +reward.reward_kwargs.max_resp_len=8192 {buffer}.log=False"
    );
    let conversion = converted(Framework::Verl, &flags);
    let [rule] = conversion.job.spec.roles.reward.rules.as_slice() else {
        panic!("{:?}", conversion.job.spec.roles.reward.rules)
    };
    let length = rule.length.as_ref().unwrap();
    assert_eq!(
        (rule.weight, length.min, length.max, length.slope),
        (-0.5, 8192, 8192, 4096)
    );
}

#[test]
fn openrlhf_reads_no_reward_model_beside_a_remote_one_or_an_agent() {
    let of = |flags: &str| {
        let flags = format!("--pretrain a/b --reward_pretrain c/d --prompt_data /d.jsonl {flags}");
        let conversion = converted(Framework::Openrlhf, &flags);
        let spec = &conversion.job.spec;
        let said = said(&conversion, "reward.model_name_or_path", "reads no reward model");
        (spec.roles.reward.model.is_some(), spec.model.critic.is_some(), said)
    };
    assert_eq!(of(""), (true, true, false));
    assert_eq!(of("--remote_rm_url http://x/y"), (false, false, true));
    assert_eq!(of("--train.agent_func_path /agent.py"), (false, false, true));
}

#[test]
fn openrlhfs_overlong_buffer_ends_at_the_longest_sequence_where_responses_have_no_bound_of_their_own() {
    let of = |flags: &str| {
        let flags = format!("--pretrain a/b --reward.overlong_buffer_len 4096 {flags}");
        let spec = converted(Framework::Openrlhf, &flags).job.spec;
        let length = spec.roles.reward.rules[0].length.as_ref().unwrap();
        (length.min, length.max, length.slope)
    };
    assert_eq!(of("--data.max_len 9216"), (9216, 9216, 4096));
    assert_eq!(
        of("--data.max_len 9216 --rollout.max_new_tokens 8192"),
        (8192, 8192, 4096)
    );
}

/// What the length rule of a job scores (`worker/src/reward/rule.rs`), by its weight.
fn scored(spec: &crate::PpoJobSpec, tokens: u32) -> f64 {
    let of = |rule: &crate::spec::RewardRule| {
        let length = rule.length.as_ref()?;
        let outside = length.min.saturating_sub(tokens).max(tokens.saturating_sub(length.max));
        let score = (1.0 - f64::from(outside) / f64::from(length.slope)).max(0.0);
        Some(rule.weight * score)
    };
    spec.roles.reward.rules.iter().filter_map(of).sum()
}

#[test]
fn an_overlong_buffer_scores_what_the_frameworks_score() {
    let buffer = "reward_model.overlong_buffer";
    let verl =
        format!("data.max_response_length=1000 {buffer}.enable=True {buffer}.len=400 {buffer}.penalty_factor=0.5");
    let openrlhf = "--pretrain a/b --max_new_tokens 1000 --overlong_buffer_len 400 --overlong_penalty_factor 0.5";
    for (framework, flags) in [(Framework::Verl, verl.as_str()), (Framework::Openrlhf, openrlhf)] {
        let spec = converted(framework, flags).job.spec;
        // -(tokens - (longest - buffer)) / buffer x factor, at most 0 (dapo.py in verl, length_penalty.py in OpenRLHF).
        for (tokens, score) in [(1, 0.0), (600, 0.0), (700, -0.125), (900, -0.375), (1000, -0.5)] {
            assert_eq!(scored(&spec, tokens), score, "{framework:?}, {tokens}");
        }
    }
}

#[test]
fn a_buffer_longer_than_any_response_is_refused() {
    let openrlhf = "--pretrain a/b --max_new_tokens 1024 --overlong_buffer_len 4096";
    let buffer = "reward_model.overlong_buffer";
    let verl = format!("data.max_response_length=1024 {buffer}.enable=True {buffer}.len=4096");
    for (framework, flags) in [(Framework::Openrlhf, openrlhf), (Framework::Verl, verl.as_str())] {
        let error = convert(framework, flags, &nothing).unwrap_err().to_string();
        assert!(error.contains("4096: is more than the 1024 tokens"), "{error}");
    }
}

#[test]
fn verls_overlong_buffer_is_a_length_rule_beside_the_reward_that_is_missing() {
    let buffer = "+reward_model.reward_kwargs.overlong_buffer_cfg";
    let flags = format!(
        "data.max_response_length=8192 reward_model.reward_manager=dapo {buffer}.enable=True {buffer}.len=4096 {buffer}.penalty_factor=0.5"
    );
    let conversion = converted(Framework::Verl, &flags);
    let rules = &conversion.job.spec.roles.reward.rules;
    assert_eq!(rules.len(), 1);
    let length = rules[0].length.as_ref().unwrap();
    let scores = (rules[0].weight, length.min, length.max, length.slope);
    assert_eq!(scores, (-0.5, 8192, 8192, 4096));
    assert!(conversion.notes.iter().any(|note| note.subject == "spec.roles.reward"));
    let off = converted(Framework::Verl, &flags.replace("enable=True", "enable=False"));
    assert!(off.job.spec.roles.reward.rules.is_empty());
}

#[test]
fn dapos_overlong_buffer_has_its_first_names_too() {
    let buffer = "custom_reward_function.overlong_buffer";
    let flags = format!(
        "data.max_response_length=16384 {buffer}.enable=True {buffer}.len=1024 {buffer}.penalty_factor=1.0 \
         custom_reward_function.train.path=verl/utils/reward_score/codev.py"
    );
    let conversion = converted(Framework::Verl, &flags);
    let [rule] = conversion.job.spec.roles.reward.rules.as_slice() else {
        panic!("{:?}", conversion.job.spec.roles.reward.rules)
    };
    let length = rule.length.as_ref().unwrap();
    assert_eq!(
        (rule.weight, length.min, length.max, length.slope),
        (-1.0, 16384, 16384, 1024)
    );
    assert!(!conversion.notes.iter().any(|note| note.subject.starts_with(buffer)));
    assert!(said(
        &conversion,
        "custom_reward_function.train.path",
        "serve it over HTTP"
    ));
}

#[test]
fn trls_accuracy_reward_is_a_rule_on_the_column_that_it_reads() {
    let of = |flags: &str| {
        let flags = format!("trl grpo --model_name_or_path /m --dataset_name /d.jsonl --num_generations 8 {flags}");
        converted(Framework::Trl, &flags)
    };
    let conversion = of("--reward_funcs accuracy_reward think_format_reward --reward_weights 2 0.5");
    let spec = &conversion.job.spec;
    let [rule] = spec.roles.reward.rules.as_slice() else {
        panic!("{:?}", spec.roles.reward.rules)
    };
    assert_eq!(
        (rule.weight, &rule.extract, rule.math_match.is_some()),
        (2.0, &None, true)
    );
    assert_eq!(spec.prompts.label_field.as_deref(), Some("solution"));
    assert!(spec.roles.reward.remote.is_none());
    assert!(
        said(&conversion, "reward_funcs", "think_format_reward is Python"),
        "{:?}",
        conversion.notes
    );

    let with_model =
        of("--reward_model_name_or_path /rm --reward_funcs reasoning_accuracy_reward --reward_weights 0.25 3");
    let reward = &with_model.job.spec.roles.reward;
    assert_eq!(
        (reward.model.as_ref().unwrap().weight, reward.rules[0].weight),
        (0.25, 3.0)
    );
    assert_eq!(reward.rules[0].extract.as_deref(), Some("(?s).*</think>(.*)"));

    let own = of("--reward_funcs mine.rewards.score");
    assert!(own.job.spec.roles.reward.remote.is_some() && own.job.spec.prompts.label_field.is_none());
    let flags = "trl grpo --model_name_or_path /m --reward_funcs accuracy_reward --reward_weights much";
    let error = convert(Framework::Trl, flags, &nothing).unwrap_err().to_string();
    assert!(error.contains("wants a number, has \"much\""), "{error}");
}

#[test]
fn verls_files_of_mathematics_are_scored_by_final_answers() {
    let of = |flags: &str| converted(Framework::Verl, &format!("actor_rollout_ref.model.path=/m {flags}"));
    let buffer = "reward.reward_kwargs.overlong_buffer_cfg";
    let dapo = of(&format!(
        "data.train_files=/data/dapo-math-17k.parquet data.max_response_length=8192 +{buffer}.enable=True +{buffer}.len=4096"
    ));
    let [length, answer] = dapo.job.spec.roles.reward.rules.as_slice() else {
        panic!("{:?}", dapo.job.spec.roles.reward.rules)
    };
    assert!(length.length.is_some() && answer.math_match.is_some());
    assert!(dapo.job.spec.roles.reward.remote.is_none());
    // As verl's 1 and -1, beside a penalty of full weight.
    assert_eq!(
        (answer.weight, answer.extract.as_deref()),
        (2.0, Some("(?i)answer:(.*)"))
    );
    assert!(
        said(&dapo, "data_source", "differ as verl's 1 and -1 do"),
        "{:?}",
        dapo.notes
    );
    let math = of("data.train_files=/data/math/train.parquet")
        .job
        .spec
        .roles
        .reward
        .rules;
    assert_eq!((math[0].weight, &math[0].extract), (1.0, &None));
    assert!(said(&dapo, "data_source", "mathMatch scores"), "{:?}", dapo.notes);
    for others in [
        "data.train_files=/data/code.parquet",
        "data.train_files=\"['/data/gsm8k/train.parquet','/data/code.parquet']\"",
        "data.train_files=/data/gsm8k/train.parquet reward.custom_reward_function.path=/f.py",
        "data.train_files=/data/gsm8k/train.parquet reward.reward_model.enable=True reward.reward_model.model_path=/rm",
    ] {
        let reward = of(others).job.spec.roles.reward;
        assert!(reward.rules.is_empty(), "{others}: {:?}", reward.rules);
    }
}

#[test]
fn a_right_answer_of_any_length_passes_an_evaluation_and_a_wrong_one_does_not() {
    let buffer = "reward_model.overlong_buffer";
    let of = |file: &str, factor: &str| {
        let flags = format!(
            "actor_rollout_ref.model.path=/m data.train_files=/data/{file}.parquet data.val_files=/data/aime-2024.parquet trainer.test_freq=5 \
             data.max_response_length=8192 {buffer}.enable=True {buffer}.len=4096 {buffer}.penalty_factor={factor}"
        );
        converted(Framework::Verl, &flags)
            .job
            .spec
            .evaluation
            .unwrap()
            .pass_score
    };
    // Right answers of DAPO score 2 - 1 to 2, wrong ones -1 to 0.
    assert_eq!([of("dapo-math-17k", "1.0"), of("dapo-math-17k", "1.5")], [1.0, 0.5]);
    assert_eq!([of("math", "0.9"), of("math", "1.0")], [0.1, 0.01]);
    let plain = "actor_rollout_ref.model.path=/m data.train_files=/data/math.parquet data.val_files=/data/math.parquet trainer.test_freq=5";
    assert!(!converted(Framework::Verl, plain).manifest.contains("passScore"));
}
