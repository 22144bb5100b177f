//! `ppo-worker convert` as a person runs it.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::worker::{Running, binary, finish, text};

fn convert(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(binary());
    command.arg("convert").args(arguments).env("MODEL", "/models/sft");
    fed(&mut command, input)
}

/// Runs a command with `input` on its standard input.
fn fed(command: &mut Command, input: &str) -> Output {
    let pipes = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = Running::start(pipes);
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    finish(child)
}

const SCRIPT: &str = "set -x\npython3 -m openrlhf.cli.train_ppo_ray \\\n   --pretrain $MODEL --remote_rm_url http://verifier:5000/get_reward \\\n   \
                      --prompt_data /data/train.jsonl --rollout_batch_size 32 --n_samples_per_prompt 4 --train_batch_size 32 \\\n   \
                      --micro_train_batch_size 1 --micro_rollout_batch_size 2 --advantage_estimator rloo \\\n   \
                      --vllm_num_engines 2 --vllm_tensor_parallel_size 4 --load_in_4bit 2>&1 | tee log.txt\n";

#[test]
fn what_it_prints_can_be_planned() {
    let converted = convert(&["--from", "openrlhf", "-"], SCRIPT);
    assert!(converted.status.success(), "{}", text(&converted.stderr));
    assert!(
        text(&converted.stderr).contains("not translated: load_in_4bit: there is no quantised training"),
        "{}",
        text(&converted.stderr)
    );
    let manifest = text(&converted.stdout);
    assert!(manifest.contains("path: /models/sft"), "{manifest}");
    let planned = fed(Command::new(binary()).args(["plan", "-f", "-"]), &manifest);
    assert!(planned.status.success(), "{}", text(&planned.stderr));
    let planned = text(&planned.stdout);
    for words in [
        "samples per step 128 = 32 prompts x 4 samples",
        "prompts per engine 16 = 32 / 2 engines",
        "samples per engine 64 = 128 / 2 engines",
        "accumulation 4 = 32 / (1 x 8 ranks)",
        "total          4               24",
    ] {
        assert!(planned.contains(words), "{words} is not in\n{planned}");
    }
}

#[test]
fn what_a_cluster_would_refuse_is_told_beside_the_manifest() {
    let saving = SCRIPT.replace("--load_in_4bit", "--ckpt_path /ckpt");
    let converted = convert(&["--from", "openrlhf", "-"], &saving);
    let told = text(&converted.stderr);
    let words = "on a cluster: spec.checkpoint.path: \"/ckpt\" is in no volume that spec.roles.actor.template mounts";
    assert!(told.contains(words), "{told}");
    let json = convert(&["--from", "openrlhf", "--json", "-"], &saving);
    let json = text(&json.stdout);
    assert!(json.contains("\"kind\": \"onCluster\""), "{json}");
    let takes = text(&convert(&["--from", "openrlhf", "-"], SCRIPT).stderr);
    assert!(!takes.contains("on a cluster"), "{takes}");
}

#[test]
fn one_argument_is_a_script_and_several_are_words() {
    let script = convert(
        &[
            "--from",
            "openrlhf",
            "--pretrain '/models/a b' --remote_rm_url http://x/y --prompt_data /d.jsonl",
        ],
        "",
    );
    let words = convert(
        &[
            "--from",
            "openrlhf",
            "--pretrain",
            "/models/a b",
            "--remote_rm_url",
            "http://x/y",
            "--prompt_data",
            "/d.jsonl",
        ],
        "",
    );
    assert!(script.status.success(), "{}", text(&script.stderr));
    assert_eq!(text(&script.stdout), text(&words.stdout));
    assert!(text(&words.stdout).contains("\"/models/a b\""));
}

#[test]
fn a_mistake_ends_with_the_status_of_bad_configuration() {
    let wrong = convert(&["--from", "verl", "data.train_batch_siz=3"], "");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        text(&wrong.stderr).contains("the nearest is data.train_batch_size"),
        "{}",
        text(&wrong.stderr)
    );
    assert!(wrong.stdout.is_empty());
}
