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
        "python3 -m recipe.reward_queue.main data.train_batch_size=64",
        "CUDA_VISIBLE_DEVICES=0 python3 -m recipe.reward_queue.main data.train_batch_size=64",
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

#[test]
fn what_is_not_read_need_not_be_known() {
    let script = "W=$(pwd)\npython -m openrlhf.cli.train_ppo_ray --pretrain a/b --remote_rm_url http://x/y \
                  --prompt_data /d.jsonl --save_path $W/out";
    converted(Framework::Openrlhf, script);
    let error = convert(
        Framework::Openrlhf,
        &script.replace("--save_path", "--ckpt_path"),
        &nothing,
    )
    .unwrap_err();
    assert!(error.to_string().starts_with("$W in `--ckpt_path $W/out`"), "{error}");
}

#[test]
fn all_that_is_not_known_is_named_at_once_and_can_be_given_from_outside() {
    let script = "W=$(pwd)\nOUT=$W/out\npython -m openrlhf.cli.train_ppo_ray --pretrain a/b --remote_rm_url http://x/y \
                  --prompt_data $W/d.jsonl --ckpt_path $OUT --seed $(date)";
    let error = convert(Framework::Openrlhf, script, &nothing).unwrap_err().to_string();
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines.len(), 3, "{error}");
    let command = "$(...) in `--seed $(...)` is not known here: run it yourself and write its result";
    for (line, start) in lines
        .iter()
        .zip(["$W in `--prompt_data", "$W in `--ckpt_path", command])
    {
        assert!(line.starts_with(start), "{line}");
    }
    let given = |name: &str| (name == "W").then(|| "/home/me".to_owned());
    let spec = convert(Framework::Openrlhf, &script.replace("$(date)", "1"), &given)
        .unwrap()
        .job
        .spec;
    assert_eq!(spec.checkpoint.path.as_deref(), Some("/home/me/out"));
}

/// As verl's examples of August 2026 begin and end (examples/ppo_trainer/run_qwen3_8b_fsdp.sh).
const BY_UV: &str = r#"
DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
INFER_BACKEND=${INFER_BACKEND:-vllm}
DATA=(
    data.train_files="['/data/gsm8k/train.parquet', '/data/math/train.parquet']"
    data.train_batch_size=${TRAIN_BATCH_SIZE:-512}
)
LAUNCH=(python3)
RAY=(ray_kwargs.ray_init.runtime_env.py_executable=null)
if [ "${VERL_USE_UV:-1}" != 0 ] && [ "${DEVICE:-gpu}" = gpu ] && { [ "$INFER_BACKEND" = vllm ] || [ "$INFER_BACKEND" = sglang ]; }; then
    UV_EXTRAS=(--extra "${INFER_BACKEND}" --extra fsdp)
    LAUNCH=(uv run --frozen --all-packages "${UV_EXTRAS[@]}" python3)
    RAY=(ray_kwargs.ray_init.runtime_env.py_executable="uv -v run --frozen ${UV_EXTRAS[*]}")
fi
"${LAUNCH[@]}" -m verl.trainer.main_ppo \
    "${DATA[@]}" \
    "${RAY[@]}" \
    "${@:2}"
"#;

#[test]
fn a_launcher_that_only_the_machine_decides_is_not_asked_for() {
    for script in [
        BY_UV.to_owned(),
        BY_UV.replace("-m verl.trainer.main_ppo", "-m verl.trainer.main_ppo_sync"),
    ] {
        let spec = converted(Framework::Verl, &script).job.spec;
        assert_eq!(spec.batch.rollout_batch_size, 512);
        let files = ["/data/gsm8k/train.parquet", "/data/math/train.parquet"];
        assert_eq!(spec.prompts.source.paths.unwrap(), files);
    }
    let direct = "uv run --frozen python -m verl.trainer.main_ppo data.train_batch_size=512";
    assert_eq!(
        converted(Framework::Verl, direct).job.spec.batch.rollout_batch_size,
        512
    );
}

#[test]
fn the_main_ppo_of_another_package_takes_the_settings_of_verls_own() {
    for command in [
        "-m verl.experimental.transfer_queue.main_ppo --config-name='transfer_queue_ppo_trainer'",
        "-m recipe.partial_rollout.main_ppo +async_training.partial_rollout=True",
        "-m recipe.dynamo.main_dynamo actor_rollout_ref.rollout.name=dynamo",
        "main_ppo_split.py",
        "-m recipe.dapo.main_dapo --config-path /w/recipe/qat/config --config-name dapo_qat",
    ] {
        let script = format!("mkdir -p ./logs/main_ppo\npython3 {command} data.train_batch_size=256");
        let conversion = converted(Framework::Verl, &script);
        assert_eq!(conversion.job.spec.batch.rollout_batch_size, 256, "{command}");
    }
    let partial = "python3 -m recipe.partial_rollout.main_ppo +async_training.partial_rollout=True";
    let conversion = converted(Framework::Verl, partial);
    let said = |note: &Note| note.subject == "async_training.partial_rollout";
    assert!(conversion.notes.iter().any(said), "{:?}", conversion.notes);
}

#[test]
fn a_program_that_trains_otherwise_is_refused_by_its_name_with_what_to_use_instead() {
    let in_a_text = "read -r -d '' training_commands <<EOF\nopenrlhf.cli.train_sft \\\n   --data.max_len 2048\nEOF\n\
                     if [[ ${1} != \"slurm\" ]]; then\n    deepspeed --module $training_commands\nfi";
    for (framework, script, program, instead) in [
        (
            Framework::Verl,
            "torchrun --standalone --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer data.train_files=/d.parquet optim.lr=1e-4",
            "verl.trainer.fsdp_sft_trainer",
            "ppo-worker sft",
        ),
        (
            Framework::Verl,
            "python -m verl.experimental.fully_async_policy.fully_async_main data.train_batch_size=0 data.gen_batch_size=1",
            "verl.experimental.fully_async_policy.fully_async_main",
            "overlap: oneStep",
        ),
        (
            Framework::Verl,
            "python3 -m verl.trainer.main_generation data.path=/d.parquet\npython3 -m verl.trainer.main_eval data.path=/d.parquet",
            "verl.trainer.main_generation",
            "ppo-worker rollout",
        ),
        (
            Framework::Verl,
            "python3 -m recipe.spin.main_spin data.train_batch_size=64",
            "recipe.spin.main_spin",
            "algorithm.adv_estimator",
        ),
        (
            Framework::Verl,
            "python3 -m recipe.gvpo.gvpo_main_ppo data.train_batch_size=64",
            "recipe.gvpo.gvpo_main_ppo",
            "its own",
        ),
        (
            Framework::Openrlhf,
            in_a_text,
            "openrlhf.cli.train_sft",
            "ppo-worker sft",
        ),
        (
            Framework::Openrlhf,
            "deepspeed --module openrlhf.cli.train_rm --pretrain a/b",
            "openrlhf.cli.train_rm",
            "ppo-worker rm",
        ),
        (
            Framework::Openrlhf,
            "deepspeed --module openrlhf.cli.train_dpo --pretrain a/b",
            "openrlhf.cli.train_dpo",
            "not train by PPO",
        ),
        (
            Framework::Trl,
            "trl sft --model_name_or_path a/b --dataset_name c/d",
            "trl sft",
            "ppo-worker sft",
        ),
        (
            Framework::Trl,
            "python examples/scripts/reward_modeling.py --lr 1",
            "examples/scripts/reward_modeling.py",
            "ppo-worker rm",
        ),
        (
            Framework::Trl,
            "accelerate launch examples/scripts/async_grpo.py",
            "examples/scripts/async_grpo.py",
            "overlap: oneStep",
        ),
    ] {
        let error = convert(framework, script, &nothing).unwrap_err();
        let ConvertError::OtherProgram { program: named, .. } = &error else {
            panic!("{script}: {error}");
        };
        assert_eq!(named, program, "{script}");
        assert!(error.to_string().contains(instead), "{script}: {error}");
    }
}

#[test]
fn a_script_that_also_trains_otherwise_is_converted_by_its_ppo() {
    let script = "torchrun -m verl.trainer.fsdp_sft_trainer data.train_batch_size=8\n\
                  python3 -m verl.trainer.main_ppo data.train_batch_size=256\n\
                  python3 -m verl.model_merger merge --backend fsdp";
    assert_eq!(
        converted(Framework::Verl, script).job.spec.batch.rollout_batch_size,
        256
    );
}

#[test]
fn of_commands_in_branches_the_one_that_is_run_is_converted() {
    let prompts = |mode: &str| {
        let main = "python3 -m verl.trainer.main_ppo data.train_batch_size";
        let script = format!("MODE={mode}\nif [ \"$MODE\" = fsdp ]; then\n {main}=256\nelse\n {main}=512\nfi");
        convert(Framework::Verl, &script, &nothing).map(|conversion| conversion.job.spec.batch.rollout_batch_size)
    };
    assert_eq!([prompts("fsdp"), prompts("megatron")], [Ok(256), Ok(512)]);
    assert_eq!(prompts("$(detect)"), Err(ConvertError::Several("verl")));
    // What the script's own arguments would choose is there for whoever gives them.
    let by_argument = "case \"$1\" in\n train) python3 -m verl.trainer.main_ppo data.train_batch_size=256 ;;\nesac";
    assert_eq!(
        converted(Framework::Verl, by_argument)
            .job
            .spec
            .batch
            .rollout_batch_size,
        256
    );
}

/// As OpenRLHF's train_ppo_llama.sh begins and ends.
const BY_READ: &str = r#"
set -x
DATA=/data/p.jsonl
read -r -d '' training_commands <<EOF
openrlhf.cli.train_ppo_ray \
   --pretrain a/b \
   --remote_rm_url http://x/y --prompt_data $DATA \
   --ckpt_path $W/ckpt --rollout_batch_size 64 --train_batch_size 32
EOF

if [[ ${1} != "slurm" ]]; then
    deepspeed --module $training_commands
fi
"#;

#[test]
fn a_command_that_a_script_reads_from_a_text_of_its_own_is_read() {
    let given = |name: &str| (name == "W").then(|| "/w".to_owned());
    let by_cat = BY_READ
        .replace("read -r -d '' training_commands <<EOF", "training_commands=$(cat <<EOF")
        .replace("\nEOF\n", "\nEOF\n)\n");
    let in_quotes = by_cat.replace("=$(cat", "=\"$(cat").replace("EOF\n)", "EOF\n)\"");
    for script in [BY_READ, &BY_READ.replace("<<EOF", "<<-EOF"), &by_cat, &in_quotes] {
        let spec = convert(Framework::Openrlhf, script, &given).unwrap_or_else(|error| panic!("{error}: {script}"));
        let spec = spec.job.spec;
        assert_eq!(spec.batch.rollout_batch_size, 64, "{script}");
        assert_eq!(spec.prompts.source.path.as_deref(), Some("/data/p.jsonl"));
        assert_eq!(spec.checkpoint.path.as_deref(), Some("/w/ckpt"));
        let error = convert(Framework::Openrlhf, script, &nothing).unwrap_err().to_string();
        assert!(
            error.starts_with("$W in `--ckpt_path $W/ckpt` is not known here"),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    // Nothing is expanded then, a continued line neither.
    let literal = BY_READ.replace("<<EOF", "<<'EOF'").replace(" \\\n", "\n");
    let literal = literal.replace("$DATA", "/data/q.jsonl").replace("$W", "/w");
    let spec = converted(Framework::Openrlhf, &literal).job.spec;
    assert_eq!(spec.prompts.source.path.as_deref(), Some("/data/q.jsonl"));
}

#[test]
fn what_is_not_known_is_quoted_where_it_stands() {
    let script = "WORK_DIR=$(cd x && pwd)\nOUT=/a/${WORK_DIR}/exp\npython -m openrlhf.cli.train_ppo_ray --pretrain a/b --ckpt_path";
    for (value, shown) in [
        ("${WORK_DIR}/exp/ckpt", "$WORK_DIR/exp/ckpt"),
        ("\"$OUT/c\"", "/a/$WORK_DIR/exp/c"),
    ] {
        let error = convert(Framework::Openrlhf, &format!("{script} {value}"), &nothing)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&format!("in `--ckpt_path {shown}` is not known")),
            "{error}"
        );
    }
}

#[test]
fn a_command_in_a_function_has_the_values_of_the_call() {
    let command = "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path a/b --reward.remote_url http://x/y \
                   --data.prompt_dataset /d.jsonl --train.batch_size 32 --rollout.batch_size";
    for script in [
        format!("B=32\ntrain(){{ {command} $B; }}\nB=64\ntrain"),
        format!("main(){{ train \"$@\"; }}\ntrain(){{ {command} $1; }}\nmain 64"),
        format!("small(){{ {command} 32; }}\nlarge(){{ {command} 64; }}\nlarge"),
        format!("train(){{ bash -c \"{command} $*\"; }}\ntrain 64"),
        format!("bash -c '{command} $1' name 64"),
        format!("B=64\nsbatch <<EOF\n#!/bin/bash\n#SBATCH -N 1\n{command} $B\nEOF"),
        format!("cat > job.sh <<'EOF'\n{command} 64\nEOF\nsbatch job.sh"),
        format!("{command} 6\\\n4"),
    ] {
        let spec = converted(Framework::Openrlhf, &script).job.spec;
        assert_eq!(spec.batch.rollout_batch_size, 64, "{script}");
    }
    let asks = format!("train(){{ {command} $1; }}\ntrain \"$@\"");
    let error = convert(Framework::Openrlhf, &asks, &nothing).unwrap_err().to_string();
    assert!(
        error.starts_with("$1 in `--rollout.batch_size $1` is not known here: only the running script"),
        "{error}"
    );
}
