//! TRL's `--config FILE`, whose keys are flags, and configurations in Python.

use super::*;

/// As open-r1's recipes have it.
const RECIPE: &str = r#"
model_name_or_path: org/model
torch_dtype: bfloat16
dataset_name: /data/math.jsonl
dataset_prompt_column: problem
system_prompt: "You are\nhelpful."
env:
  WANDB_MODE: offline
bf16: true
use_vllm: true
do_eval: false
gradient_accumulation_steps: 4
gradient_checkpointing_kwargs:
  use_reentrant: false
learning_rate: 2.0e-05
lr_scheduler_type: cosine
max_steps: -1
num_generations: 16
per_device_train_batch_size: 16
push_to_hub: false
report_to:
- wandb
reward_funcs:
- accuracy
- format
reward_weights: [1.0, 0.5]
benchmarks: []
warmup_ratio: 0.1
"#;

fn with_file(command: &str, text: Result<&str, &str>) -> Result<Conversion, ConvertError> {
    let read = |path: &str| {
        assert_eq!(path, "recipes/grpo.yaml");
        text.map(str::to_owned).map_err(str::to_owned)
    };
    convert_with_files(Framework::Trl, command, &nothing, &read)
}

#[test]
fn the_keys_of_trls_file_are_flags_of_which_the_command_lines_win() {
    for command in [
        "trl grpo --learning_rate 1e-6 --config recipes/grpo.yaml",
        "accelerate launch --num_processes=1 src/open_r1/grpo.py --config=recipes/grpo.yaml --learning_rate 1e-6",
    ] {
        let conversion = with_file(command, Ok(RECIPE)).unwrap_or_else(|error| panic!("{error}"));
        let spec = &conversion.job.spec;
        assert_eq!(spec.model.policy.hub.as_ref().unwrap().id, "org/model");
        assert_eq!(spec.prompts.prompt_field, "problem");
        assert_eq!(spec.optimizer.actor_learning_rate, 1e-6);
        assert_eq!(spec.optimizer.warmup_ratio, Some(0.1));
        assert_eq!(
            (spec.batch.n_samples_per_prompt, spec.batch.train_batch_size),
            (16, Some(64))
        );
        assert!(spec.roles.reward.rules[0].math_match.is_some());
        let said = |subject: &str| conversion.notes.iter().any(|note| note.subject == subject);
        assert!(
            said("reward_funcs") && said("system_prompt") && !said("env"),
            "{:?}",
            conversion.notes
        );
    }
}

#[test]
fn a_file_of_trls_that_cannot_be_read_is_named() {
    let command = "trl grpo --config recipes/grpo.yaml";
    let error = |text| with_file(command, text).unwrap_err().to_string();
    let missing = error(Err("No such file or directory (os error 2)"));
    assert!(
        missing.starts_with("--config recipes/grpo.yaml cannot be read: No such file"),
        "{missing}"
    );
    assert!(error(Ok("- a\n- b")).contains("cannot be read: "));
    assert!(error(Ok("learning_rat: 1")).contains("the nearest is learning_rate"));
    let unknown = convert(Framework::Trl, "trl grpo --config $RECIPES/a.yaml", &nothing).unwrap_err();
    assert!(
        unknown
            .to_string()
            .starts_with("$RECIPES in `--config $RECIPES/a.yaml`"),
        "{unknown}"
    );
}

#[test]
fn a_configuration_in_python_is_answered_with_how_to_give_it() {
    let script = "from trl import GRPOConfig, GRPOTrainer\n\nargs = GRPOConfig(output_dir=\"x\", learning_rate=1e-6)\n";
    let error = convert(Framework::Trl, script, &nothing).unwrap_err().to_string();
    assert!(
        error.starts_with("`GRPOConfig(...)` is Python, which is not read"),
        "{error}"
    );
    assert!(error.contains("flags of the same names behind `trl grpo`"), "{error}");
}

#[test]
fn a_configuration_that_a_comment_names_is_none() {
    let script = "# the flags are those of GRPOConfig(...)\ntrl grpo --model_name_or_path a/b --num_processes 8";
    assert_eq!(
        converted(Framework::Trl, script).job.metadata.name.as_deref(),
        Some("trl-grpo")
    );
}
