//! Whole scripts: what they set, append and quote, and what is asked of whoever converts them.

use super::*;

const BY_DEVICE: &str = r#"
DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' && echo npu || echo gpu)}
N=${N:-}
EXTRA=()
case "$DEVICE" in
    gpu)
        N=${N:-8}
        ;;
    npu)
        N=16
        EXTRA+=(
            data.train_batch_size=512
            trainer.device=npu
        )
        ;;
    *) echo "no such DEVICE: $DEVICE"; exit 1 ;;
esac
python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=/m trainer.n_gpus_per_node=$N "${EXTRA[@]}"
"#;

#[test]
fn one_variable_that_decides_is_all_that_a_script_asks_for() {
    let error = convert(Framework::Verl, BY_DEVICE, &nothing).unwrap_err().to_string();
    let lines: Vec<&str> = error.lines().collect();
    // What needs nothing here need not be known.
    assert_eq!(lines.len(), 2, "{error}");
    assert!(lines[0].starts_with("$DEVICE in `trainer.n_gpus_per_node="), "{error}");
    assert!(
        lines[1].starts_with("$DEVICE in `data.train_batch_size=512`"),
        "{error}"
    );
    let with = |device: &str| {
        let given = |name: &str| (name == "DEVICE").then(|| device.to_owned());
        let spec = convert(Framework::Verl, BY_DEVICE, &given).unwrap().job.spec;
        (spec.roles.actor.gpus_per_node, spec.batch.rollout_batch_size)
    };
    assert_eq!([with("gpu"), with("npu")], [(8, 1024), (16, 512)]);
}

#[test]
fn a_flag_that_may_have_been_added_is_asked_for_where_it_is_read() {
    let script = |flag: &str| {
        let script = format!(
            "ARGS=\"--model_name_or_path /m --dataset_name /d.jsonl\"\nif nvidia-smi; then\n  ARGS+=\" {flag}\"\nfi\n\
             trl grpo $ARGS --reward_model_name_or_path /rm"
        );
        convert(Framework::Trl, &script, &nothing)
    };
    assert!(script("--log_completions").is_ok());
    let error = script("--learning_rate 1e-6").unwrap_err().to_string();
    assert!(error.starts_with("$ARGS in `--learning_rate 1e-6`"), "{error}");
}

#[test]
fn of_a_name_what_is_known_will_do() {
    let named = |name: &str| {
        let script = format!(
            "NAME=grpo_$(date +%F)\npython3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=/m trainer.experiment_name={name}"
        );
        converted(Framework::Verl, &script).job.metadata.name.unwrap()
    };
    assert_eq!(named("qwen3_8b_$NAME"), "qwen3-8b-grpo");
    assert_eq!(named("$(date +%F)"), "verl-ppo");
}

#[test]
fn another_program_is_no_setting_and_those_that_are_read_are_named() {
    for script in [
        "python3 -m recipe.spin.main_spin data.train_batch_size=64",
        "CUDA_VISIBLE_DEVICES=0 python3 -m recipe.spin.main_spin data.train_batch_size=64",
    ] {
        let error = convert(Framework::Verl, script, &nothing).unwrap_err().to_string();
        assert!(error.starts_with("no verl command"), "{error}");
        assert!(error.contains("main_ppo") && error.contains("main_dapo"), "{error}");
    }
    let entropy = "HYDRA_FULL_ERROR=1 python -m recipe.entropy.main_entropy data.train_batch_size=64 \
                   actor_rollout_ref.actor.ppo_mini_batch_size=64";
    assert_eq!(
        converted(Framework::Verl, entropy).job.spec.batch.rollout_batch_size,
        64
    );
}

#[test]
fn a_command_that_is_quoted_as_a_whole_is_read() {
    let command = "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path a/b --rollout.batch_size 64 \
                   --train.batch_size 32 --reward.remote_url http://x/y --data.prompt_dataset /d.jsonl";
    for script in [
        format!(
            "V=2.12\nsrun -w \"$HOST\" bash -c \\\n\"pip install ray[default]==$V \\\n&& ray job submit \
             --runtime-env-json='{{\\\"working_dir\\\": \\\"/o\\\"}}' -- {command}\" &>> log"
        ),
        format!("ssh host 'cd /work && {command}'"),
        format!("eval \"{command}\""),
        format!("sbatch --wrap \"bash -lc '{command}'\""),
        format!("echo \"starts {command}\"\n{command}"),
    ] {
        let spec = converted(Framework::Openrlhf, &script).job.spec;
        assert_eq!(spec.batch.rollout_batch_size, 64, "{script}");
        assert_eq!(spec.model.policy.hub.unwrap().id, "a/b", "{script}");
    }
}

#[test]
fn what_is_not_known_in_a_quoted_command_is_asked_for() {
    let script = "docker exec c bash -c \"python3 -m openrlhf.cli.train_ppo_ray --pretrain $MODEL\"";
    let error = convert(Framework::Openrlhf, script, &nothing).unwrap_err().to_string();
    assert!(error.starts_with("$MODEL in `bash -c ...`"), "{error}");
}

#[test]
fn dapos_program_is_one_of_verls() {
    for program in [
        "-m recipe.dapo.main_dapo",
        "-m recipe.dapo.src.main_dapo",
        "recipe/dapo/main_dapo.py",
    ] {
        let script = format!(
            "train_prompt_bsz=32\nray job submit --no-wait --working-dir \"${{WORKING_DIR}}\" -- python3 {program} \\\n \
             data.train_batch_size=${{train_prompt_bsz}} data.gen_batch_size=$((train_prompt_bsz * 3)) \\\n \
             algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_mini_batch_size=16 \\\n \
             algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc reward_model.overlong_buffer.enable=True \\\n \
             reward_model.overlong_buffer.len=128 actor_rollout_ref.actor.clip_ratio_high=0.28 trainer.n_gpus_per_node=4"
        );
        let Conversion { job, notes, .. } = converted(Framework::Verl, &script);
        let batch = &job.spec.batch;
        let sizes = (batch.rollout_batch_size, batch.train_batch_size);
        assert_eq!(sizes, (32, Some(64)), "{program}");
        assert_eq!(job.spec.algorithm.clip.policy_high, Some(0.28));
        assert_eq!(batch.dynamic_sampling.map(|sampling| sampling.max_draws), Some(10));
        let by_score =
            |note: &Note| note.subject == "algorithm.filter_groups.metric" && note.message.starts_with("is acc");
        assert!(notes.iter().any(by_score), "{notes:?}");
    }
}
