//! A run that is stopped, politely or not, goes on where it was and ends with the same bits.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ppo_crds::report::exit_code;
use serde_json::{Value, json};
use worker::{Bench, Running, check_same_files, finish, signal, text, wait_for, with_another_weight};

const STEPS: u64 = 6;

/// More than a run makes between five kills, each one to three steps after the one before.
const KILLED_STEPS: u64 = 16;

/// Checkpoints that are complete.
fn checkpoints(bench: &Bench, run_dir: &str) -> usize {
    let folder = bench.path(run_dir).join("checkpoints");
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries
        .filter(|entry| {
            entry
                .as_ref()
                .unwrap()
                .file_name()
                .to_string_lossy()
                .starts_with("step-")
        })
        .count()
}

/// Lines of a file of a run; none where it is not there yet.
fn lines(bench: &Bench, name: &str) -> usize {
    std::fs::read_to_string(bench.path(name)).map_or(0, |text| text.lines().count())
}

/// What was found on held-out prompts, but for how long that took.
fn evaluations(bench: &Bench, run_dir: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(bench.path(run_dir).join("evaluation.jsonl")).unwrap();
    let line = |line: &str| {
        let mut evaluation: Value = serde_json::from_str(line).unwrap();
        evaluation.as_object_mut().unwrap().remove("seconds").unwrap();
        evaluation
    };
    text.lines().map(line).collect()
}

fn comparison(bench: &Bench, run_dir: &str) -> Value {
    let text = std::fs::read(bench.path(run_dir).join("before_after.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn start(bench: &Bench, run_dir: &str) -> Running {
    Running::start(&mut bench.command(["run", "-f", "job.yaml", "--run-dir", run_dir, "--quiet"]))
}

/// Kills a run again and again, each time at another moment of its first further steps, then lets it end.
fn check_that_kills_change_nothing(patch: Value) {
    let bench = Bench::new();
    bench.manifests("job.yaml", &[json!({"steps": KILLED_STEPS}), patch]);
    bench.run("job.yaml", "whole");
    let seconds = |line: &Value| line["step_seconds"].as_f64().unwrap();
    let shortest = bench.metrics("whole").iter().map(seconds).fold(f64::INFINITY, f64::min);
    // While a checkpoint is written, samples are drawn, weights change; also where a step takes longer or shorter than here.
    for part in [0.0, 0.1, 0.3, 0.6, 0.9] {
        let before = lines(&bench, "killed/metrics.jsonl");
        let mut child = start(&bench, "killed");
        wait_for("a further step", || {
            lines(&bench, "killed/metrics.jsonl") > before || child.try_wait().unwrap().is_some()
        });
        std::thread::sleep(Duration::from_secs_f64(part * shortest));
        child.kill();
    }
    bench.run("job.yaml", "killed");
    check_same_files(
        &bench.last_state("whole", KILLED_STEPS),
        &bench.last_state("killed", KILLED_STEPS),
    );
    let steps: Vec<u64> = bench
        .metrics("killed")
        .iter()
        .map(|line| line["step"].as_u64().unwrap())
        .collect();
    assert_eq!(
        steps,
        (1..=KILLED_STEPS).collect::<Vec<_>>(),
        "one line of metrics per step, whatever happened"
    );
    let is_compared = |run_dir: &str| bench.path(run_dir).join("before_after.json").exists();
    assert_eq!(is_compared("killed"), is_compared("whole"));
    if is_compared("whole") {
        assert_eq!(evaluations(&bench, "killed"), evaluations(&bench, "whole"));
        assert_eq!(comparison(&bench, "killed"), comparison(&bench, "whole"));
    }
}

#[test]
fn a_run_killed_at_any_moment_ends_with_the_bits_of_an_uninterrupted_one() {
    check_that_kills_change_nothing(json!({
        "evaluation": {"source": {"path": "prompts.jsonl"}, "everySteps": 2, "maxPrompts": 10},
    }));
}

#[test]
fn so_does_one_in_bfloat16_with_an_adaptive_coefficient_a_schedule_and_no_critic() {
    check_that_kills_change_nothing(json!({
        "model": {"dtype": "bfloat16"},
        "algorithm": {"advantage": {"estimator": "rloo"},
                      "kl": {"controller": {"adaptive": {"target": 0.1, "horizon": 200}}}},
        "optimizer": {"schedule": "cosine", "warmupUpdates": 3},
    }));
}

#[test]
fn so_does_one_that_trains_an_adapter_and_a_critic_with_one() {
    check_that_kills_change_nothing(json!({
        "model": {"dtype": "bfloat16", "adapter": {"rank": 4}},
        "optimizer": {"actorLearningRate": 1e-2, "criticLearningRate": 1e-2},
    }));
}

#[test]
fn so_does_one_whose_samples_are_drawn_a_step_ahead() {
    check_that_kills_change_nothing(json!({
        "overlap": "oneStep",
        "evaluation": {"source": {"path": "prompts.jsonl"}, "everySteps": 2, "maxPrompts": 10},
    }));
}

#[test]
fn so_does_one_whose_steps_draw_on_until_groups_differ_in_score() {
    check_that_kills_change_nothing(json!({
        "algorithm": {"advantage": {"estimator": "grpo"}},
        "batch": {"dynamicSampling": {"maxDraws": 4}},
    }));
}

#[test]
fn so_does_one_that_draws_on_behind_what_was_drawn_a_step_ahead() {
    check_that_kills_change_nothing(json!({
        "overlap": "oneStep",
        "algorithm": {"advantage": {"estimator": "grpo"}},
        "batch": {"dynamicSampling": {"maxDraws": 4}},
    }));
}

#[test]
fn sigterm_saves_and_exits_cleanly_and_the_same_command_goes_on() {
    check_that_sigterm_changes_nothing("none");
}

#[test]
fn so_it_does_while_the_samples_of_the_next_step_are_drawn() {
    check_that_sigterm_changes_nothing("oneStep");
}

/// As that of a run in front of `| tee`, which ends at the Ctrl-C that both get.
#[test]
fn a_run_whose_words_nobody_reads_any_more_goes_on_and_saves_when_it_is_asked_to_stop() {
    let bench = Bench::new();
    bench.manifest("job.yaml", json!({"steps": 400, "checkpoint": {"everySteps": 0}}));
    let mut child = Running::start(&mut bench.command(["run", "-f", "job.yaml", "--run-dir", "run"]));
    wait_for("a step", || lines(&bench, "run/metrics.jsonl") > 0);
    drop((child.stdout.take(), child.stderr.take()));
    let before = lines(&bench, "run/metrics.jsonl");
    wait_for("two further steps", || lines(&bench, "run/metrics.jsonl") >= before + 2);
    signal(&child, "-TERM");
    let stopped = child.ended("a run that was asked to stop");
    assert!(stopped.success(), "{stopped}");
    assert_eq!(checkpoints(&bench, "run"), 1);
    let events = std::fs::read_to_string(bench.path("run/events.jsonl")).unwrap();
    assert!(events.contains("stopped") && !events.contains("failed"), "{events}");
}

fn check_that_sigterm_changes_nothing(overlap: &str) {
    let bench = Bench::new();
    let manifest = |steps: u64| {
        let evaluation = json!({"source": {"path": "prompts.jsonl"}, "everySteps": 1, "maxPrompts": 10});
        let checkpoint = json!({"everySteps": 0, "keep": 100});
        let patch = json!({"steps": steps, "overlap": overlap, "checkpoint": checkpoint, "evaluation": evaluation});
        bench.manifest("job.yaml", patch);
    };
    manifest(400);
    // Asked in the middle of whatever it does then: an evaluation, an update.
    for (signals, delay) in [0, 5, 13, 29].into_iter().enumerate() {
        let before = lines(&bench, "run/metrics.jsonl");
        let child = start(&bench, "run");
        wait_for("two further steps", || lines(&bench, "run/metrics.jsonl") >= before + 2);
        std::thread::sleep(Duration::from_millis(delay));
        signal(&child, "-TERM");
        let stopped = finish(child);
        assert!(stopped.status.success(), "{}", text(&stopped.stderr));
        assert!(
            text(&stopped.stdout).contains("the same command goes on"),
            "{}",
            text(&stopped.stdout)
        );
        assert_eq!(checkpoints(&bench, "run"), signals + 1);
    }
    let done = lines(&bench, "run/metrics.jsonl") as u64;
    assert!(done < 400);

    let more = done + 2;
    manifest(more);
    bench.run("job.yaml", "run");
    bench.run("job.yaml", "whole");
    check_same_files(&bench.last_state("run", more), &bench.last_state("whole", more));
    assert_eq!(evaluations(&bench, "run"), evaluations(&bench, "whole"));
    assert_eq!(evaluations(&bench, "run").len() as u64, more + 1);
    assert_eq!(comparison(&bench, "run"), comparison(&bench, "whole"));
    let events = std::fs::read_to_string(bench.path("run/events.jsonl")).unwrap();
    assert!(
        ["stopped", "resumed", "succeeded"]
            .iter()
            .all(|kind| events.contains(kind)),
        "{events}"
    );
}

#[test]
fn answers_are_compared_with_those_to_the_same_questions_or_not_at_all() {
    let bench = Bench::new();
    let manifest = |steps: u64, max_prompts: u64| {
        let evaluation = json!({"source": {"path": "prompts.jsonl"}, "everySteps": 2, "maxPrompts": max_prompts});
        bench.manifest("job.yaml", json!({"steps": steps, "evaluation": evaluation}));
    };
    manifest(3, 10);
    bench.run("job.yaml", "run");
    let compared = comparison(&bench, "run");
    assert_eq!(compared["prompts"], 10);
    // Killed after its last checkpoint it would have left this.
    std::fs::remove_file(bench.path("run/before_after.json")).unwrap();
    bench.run("job.yaml", "run");
    assert_eq!(comparison(&bench, "run"), compared);
    assert_eq!(evaluations(&bench, "run").len(), 3);

    manifest(4, 20);
    bench.run("job.yaml", "run");
    assert!(!bench.path("run/before_after.json").exists());

    // The same prompts as at first, and two samples of each.
    let evaluation = json!({
        "source": {"path": "prompts.jsonl"}, "everySteps": 2, "maxPrompts": 10, "temperature": 1, "nSamplesPerPrompt": 2,
    });
    bench.manifest("job.yaml", json!({"steps": 5, "evaluation": evaluation}));
    bench.run("job.yaml", "run");
    assert!(!bench.path("run/before_after.json").exists());
    let evaluations = evaluations(&bench, "run");
    assert_eq!(evaluations.last().unwrap()["n_samples_per_prompt"], 2);
}

#[test]
fn the_best_checkpoint_is_one_whose_weights_were_evaluated() {
    let bench = Bench::new();
    let evaluation = json!({"source": {"path": "prompts.jsonl"}, "everySteps": 2, "maxPrompts": 10});
    bench.manifest(
        "job.yaml",
        json!({"evaluation": evaluation, "checkpoint": {"keep": 100}}),
    );
    bench.run("job.yaml", "run");
    let scores: BTreeMap<u64, Value> = evaluations(&bench, "run")
        .into_iter()
        .map(|evaluation| (evaluation["step"].as_u64().unwrap(), evaluation["score"].clone()))
        .collect();
    for step in 1..=STEPS {
        let manifest = std::fs::read(bench.path(&format!("run/checkpoints/step-{step:08}/manifest.json"))).unwrap();
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        let score = scores.get(&step).unwrap_or(&Value::Null);
        assert_eq!(manifest["state"]["quality"], *score, "step {step}");
    }
}

#[test]
fn a_run_saves_each_so_many_steps_and_its_last() {
    let bench = Bench::new();
    bench.manifest(
        "job.yaml",
        json!({"steps": 5, "checkpoint": {"everySteps": 2, "keep": 100}}),
    );
    bench.run("job.yaml", "run");
    let saved: Vec<String> = left(&bench, "run/checkpoints").into_iter().collect();
    assert_eq!(saved, ["step-00000002", "step-00000004", "step-00000005"]);
}

#[test]
fn a_checkpoint_of_another_configuration_is_not_continued() {
    let bench = Bench::new();
    bench.manifest("job.yaml", json!({"steps": 1}));
    bench.run("job.yaml", "run");
    bench.manifest("job.yaml", json!({"steps": 2, "optimizer": {"actorLearningRate": 0.5}}));
    let words = refused(&bench);
    assert!(words.contains("optimizer") && words.contains("--fresh"), "{words}");
    let fresh = bench.worker(["run", "-f", "job.yaml", "--run-dir", "run", "--fresh", "--quiet"]);
    assert!(fresh.status.success(), "{}", text(&fresh.stderr));
}

#[test]
fn a_run_goes_on_with_engines_of_another_number_format_and_says_so_and_not_with_a_reference_or_reward_model_of_one() {
    let bench = Bench::new();
    bench.reward_model("rm");
    let manifest = |steps: u64, roles: Value| {
        let model = json!({"reward": {"model": {"source": {"path": "rm"}}}});
        bench.manifests(
            "job.yaml",
            &[json!({"steps": steps, "roles": model}), json!({"roles": roles})],
        );
    };
    let bfloat16 = || json!({"dtype": "bfloat16"});
    manifest(1, json!({}));
    bench.run("job.yaml", "run");
    for (role, of, named) in [
        ("reference", bfloat16(), "\nroles.reference.dtype: was "),
        (
            "reward",
            json!({"model": bfloat16()}),
            "\nroles.reward.model.dtype: was ",
        ),
    ] {
        manifest(2, json!({role: of}));
        let words = refused(&bench);
        assert!(words.contains(named) && words.contains("bfloat16"), "{words}");
    }
    manifest(2, json!({"rollout": bfloat16()}));
    bench.run("job.yaml", "run");
    let events = std::fs::read_to_string(bench.path("run/events.jsonl")).unwrap();
    assert!(
        events.contains("roles.rollout.dtype was float32, is bfloat16"),
        "{events}"
    );
    // What they would have anyway.
    manifest(3, json!({"rollout": bfloat16(), "reference": {"dtype": "float32"}}));
    bench.run("job.yaml", "run");
}

#[test]
fn records_of_steps_are_not_cut_off_where_their_checkpoints_are_in_another_place() {
    let bench = Bench::new();
    let saves_in = |path: &str| bench.manifest("job.yaml", json!({"steps": 1, "checkpoint": {"path": path}}));
    saves_in("first");
    bench.run("job.yaml", "run");
    saves_in("second");
    let words = refused(&bench);
    assert!(
        words.contains("run has records up to step 1") && words.contains("which has that of step 1"),
        "{words}"
    );
    std::fs::rename(bench.path("first"), bench.path("moved")).unwrap();
    let words = refused(&bench);
    assert!(words.contains("put that of step 1 back"), "{words}");
    saves_in("moved");
    bench.run("job.yaml", "run");
    assert_eq!(lines(&bench, "run/metrics.jsonl"), 1);
}

/// Names of files and folders of a run, without those that only lock.
fn left(bench: &Bench, run_dir: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(bench.path(run_dir)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !name.ends_with(".lock")).collect()
}

#[test]
fn a_run_that_starts_anew_leaves_what_one_in_an_empty_folder_does() {
    let bench = Bench::new();
    let evaluation = json!({"source": {"path": "prompts.jsonl"}, "everySteps": 2, "maxPrompts": 10});
    bench.manifest(
        "job.yaml",
        json!({"steps": 2, "evaluation": evaluation, "model": {"adapter": {"rank": 4}}}),
    );
    bench.run("job.yaml", "run");
    assert!(bench.worker(["report", "run"]).status.success());
    let earlier = left(&bench, "run");
    assert!(
        ["adapter", "before.json", "before_after.json", "report.html"]
            .iter()
            .all(|name| earlier.contains(*name)),
        "{earlier:?}"
    );

    bench.manifest("job.yaml", json!({"steps": 1}));
    bench.run("job.yaml", "new");
    let fresh = bench.worker(["run", "-f", "job.yaml", "--run-dir", "run", "--fresh", "--quiet"]);
    assert!(fresh.status.success(), "{}", text(&fresh.stderr));
    assert_eq!(left(&bench, "run"), left(&bench, "new"));
    for name in ["events.jsonl", "metrics.jsonl", "evaluation.jsonl"] {
        let name = |run_dir: &str| format!("{run_dir}/{name}");
        assert_eq!(lines(&bench, &name("run")), lines(&bench, &name("new")));
    }
    let logs = std::fs::read_dir(bench.path("run/tensorboard")).unwrap();
    assert_eq!(logs.count(), 1);

    // Nothing goes where the new run cannot begin.
    for misnamed in [
        json!({"model": {"policy": {"path": "modle"}}}),
        json!({"prompts": {"source": {"path": "prompst.jsonl"}}}),
        json!({"prompts": {"labelField": "answr"}}),
    ] {
        bench.manifests("job.yaml", &[json!({"steps": 1}), misnamed.clone()]);
        let failed = bench.worker(["run", "-f", "job.yaml", "--run-dir", "run", "--fresh", "--quiet"]);
        assert!(!failed.status.success(), "{misnamed}");
        assert_eq!(left(&bench, "run"), left(&bench, "new"), "{misnamed}");
    }

    // What it reads is not what it deletes.
    bench.manifest(
        "job.yaml",
        json!({"steps": 1, "model": {"policy": {"path": "run/model"}}}),
    );
    let refused = bench.worker(["run", "-f", "job.yaml", "--run-dir", "run", "--fresh", "--quiet"]);
    let words = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(exit_code::BAD_CONFIGURATION), "{words}");
    assert!(words.contains("and model.policy is"), "{words}");
    assert_eq!(left(&bench, "run"), left(&bench, "new"));
}

/// What a run says that may not go on, and never may.
fn refused(bench: &Bench) -> String {
    let refused = bench.worker(["run", "-f", "job.yaml", "--run-dir", "run"]);
    let words = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(exit_code::BAD_CONFIGURATION), "{words}");
    words
}

#[test]
fn a_run_that_ran_out_of_memory_goes_on_with_smaller_micro_batches() {
    let bench = Bench::new();
    bench.manifest("job.yaml", json!({"steps": 1}));
    bench.run("job.yaml", "run");
    let batch = json!({"microTrainBatchSize": 4, "microRolloutBatchSize": 8});
    bench.manifest(
        "job.yaml",
        json!({"steps": 2, "batch": batch, "model": {"activationCheckpointing": true}}),
    );
    bench.run("job.yaml", "run");
    assert_eq!(lines(&bench, "run/metrics.jsonl"), 2);
}

#[test]
fn a_checkpoint_is_not_continued_with_other_prompts_under_the_same_name() {
    let bench = Bench::new();
    bench.manifest("job.yaml", json!({"steps": 1}));
    bench.run("job.yaml", "run");
    bench.manifest("job.yaml", json!({"steps": 2}));
    let prompts = bench.path("prompts.jsonl");
    let whole = std::fs::read_to_string(&prompts).unwrap();
    std::fs::write(
        &prompts,
        format!("{whole}\n{{\"prompt\": \"1+1=\", \"answer\": \"2\"}}"),
    )
    .unwrap();
    let words = refused(&bench);
    assert!(
        words.contains("prompts.jsonl are not those that the run began with"),
        "{words}"
    );
    std::fs::write(&prompts, whole).unwrap();
    bench.run("job.yaml", "run");
}

#[test]
fn a_checkpoint_is_not_continued_with_another_file_in_the_folder_of_its_prompts() {
    let bench = Bench::new();
    let manifest = |steps: u64| {
        let source = json!({"path": "shards"});
        bench.manifest("job.yaml", json!({"steps": steps, "prompts": {"source": source}}));
    };
    let shard = |name: &str| bench.path("shards").join(name);
    std::fs::create_dir(bench.path("shards")).unwrap();
    let whole = std::fs::read_to_string(bench.path("prompts.jsonl")).unwrap();
    let (first, second) = whole.split_at(whole.match_indices('\n').nth(9).unwrap().0 + 1);
    std::fs::write(shard("0.jsonl"), first).unwrap();
    std::fs::write(shard("1.jsonl"), second).unwrap();
    manifest(1);
    bench.run("job.yaml", "run");
    manifest(2);
    std::fs::write(shard("2.jsonl"), "{\"prompt\": \"1+1=\", \"answer\": \"2\"}").unwrap();
    let words = refused(&bench);
    assert!(
        words.contains("shards are not those that the run began with") && words.contains("restore what lay there"),
        "{words}"
    );
    // Their order counts, too.
    std::fs::rename(shard("2.jsonl"), bench.path("2.jsonl")).unwrap();
    std::fs::rename(shard("0.jsonl"), shard("2.jsonl")).unwrap();
    assert!(refused(&bench).contains("shards are not those"));
    std::fs::rename(shard("2.jsonl"), shard("0.jsonl")).unwrap();
    bench.run("job.yaml", "run");
}

#[test]
fn an_adapter_is_not_continued_above_other_weights_another_configuration_or_with_other_end_tokens() {
    let bench = Bench::new();
    let manifest = |steps: u64| bench.manifest("job.yaml", json!({"steps": steps, "model": {"adapter": {"rank": 4}}}));
    manifest(1);
    bench.run("job.yaml", "run");
    manifest(2);
    let file = bench.path("sft/model.safetensors");
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, with_another_weight(&whole)).unwrap();
    let words = refused(&bench);
    assert!(
        words.contains("the weights of model.policy") && words.contains("(sft)"),
        "{words}"
    );
    std::fs::write(&file, whole).unwrap();
    // Read beside the weights, and trained by.
    let ends = bench.path("sft/generation_config.json");
    let whole_ends = std::fs::read(&ends).unwrap();
    std::fs::write(&ends, json!({"eos_token_id": 5}).to_string()).unwrap();
    let words = refused(&bench);
    assert!(words.contains("the ids that end a response of model.policy"), "{words}");
    std::fs::write(ends, whole_ends).unwrap();
    let file = bench.path("sft/config.json");
    let whole = std::fs::read(&file).unwrap();
    let mut config: Value = serde_json::from_slice(&whole).unwrap();
    config["rope_theta"] = json!(77.0);
    std::fs::write(&file, config.to_string()).unwrap();
    let words = refused(&bench);
    assert!(words.contains("in config.json of model.policy"), "{words}");
    std::fs::write(file, whole).unwrap();
    bench.run("job.yaml", "run");
}

#[test]
fn a_run_is_not_continued_with_another_reference_or_reward_model_under_the_same_name() {
    let bench = Bench::new();
    bench.reward_model("rm");
    bench.copy("sft", "reference");
    let manifest = |steps: u64| {
        let reward = json!({"model": {"source": {"path": "rm"}}, "rules": null});
        let reference = json!({"reference": {"path": "reference"}});
        bench.manifest(
            "job.yaml",
            json!({"steps": steps, "model": reference, "roles": {"reward": reward}}),
        );
    };
    manifest(1);
    bench.run("job.yaml", "run");
    manifest(2);
    for (folder, field) in [("reference", "model.reference"), ("rm", "roles.reward.model.source")] {
        let file = bench.path(folder).join("model.safetensors");
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, with_another_weight(&whole)).unwrap();
        let words = refused(&bench);
        assert!(
            words.contains(&format!("{field} ({folder}) has changed since the run began")),
            "{words}"
        );
        std::fs::write(&file, whole).unwrap();
    }
    bench.run("job.yaml", "run");
}

#[test]
fn a_run_goes_on_with_the_configuration_that_its_weights_were_trained_by() {
    let bench = Bench::new();
    bench.copy("sft", "reference");
    let manifest = |steps: u64| {
        let reference = json!({"reference": {"path": "reference"}});
        bench.manifest("job.yaml", json!({"steps": steps, "model": reference}));
    };
    manifest(1);
    bench.run("job.yaml", "run");
    let kept = ["config.json", "generation_config.json", "tokenizer_config.json"];
    let of = |folder: &str| kept.map(|name| text(&std::fs::read(bench.path(folder).join(name)).unwrap()));
    let before = of("run/model");
    let (file, eos) = (bench.path("sft/config.json"), json!({"eos_token_id": 5}));
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    config["rope_theta"] = json!(77.0);
    std::fs::write(file, config.to_string()).unwrap();
    std::fs::write(bench.path("sft/generation_config.json"), eos.to_string()).unwrap();
    std::fs::write(bench.path("sft/tokenizer_config.json"), "{}").unwrap();
    for steps in [2, 3] {
        manifest(steps);
        bench.run("job.yaml", "run");
        assert_eq!(of("run/model"), before);
    }
}

/// Starts a run that goes on and on, and a second one beside it: its words.
fn second_of_two(checkpoint: Value, run_dirs: [&str; 2]) -> String {
    let bench = Bench::new();
    bench.manifest("job.yaml", json!({"steps": 2000, "checkpoint": checkpoint}));
    let mut first = start(&bench, run_dirs[0]);
    wait_for("a first step", || {
        bench.path(run_dirs[0]).join("metrics.jsonl").exists()
    });
    let second = bench.worker(["run", "-f", "job.yaml", "--run-dir", run_dirs[1]]);
    first.kill();
    assert!(!second.status.success());
    text(&second.stderr)
}

#[test]
fn two_processes_do_not_share_a_folder() {
    let words = second_of_two(json!({"everySteps": 0}), ["run", "run"]);
    assert!(words.contains("another process runs in run"), "{words}");
}

#[test]
fn nor_do_they_save_in_one() {
    let words = second_of_two(json!({"everySteps": 0, "path": "saved"}), ["a", "b"]);
    assert!(
        words.contains("another process saves its checkpoints in") && words.contains("saved/test;"),
        "{words}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn threads_of_a_run_spin_briefly_for_each_other_unless_they_are_told_how_long() {
    for (given, expected) in [(None, "16000"), (Some("77"), "77")] {
        let bench = Bench::new();
        bench.manifest("job.yaml", json!({"steps": 400, "checkpoint": {"everySteps": 0}}));
        let mut command = bench.command(["run", "-f", "job.yaml", "--run-dir", "run"]);
        command.env_remove("GOMP_SPINCOUNT").env_remove("OMP_WAIT_POLICY");
        let mut child = Running::start(command.envs(given.map(|turns| ("GOMP_SPINCOUNT", turns))));
        wait_for("a step", || lines(&bench, "run/metrics.jsonl") > 0);
        let environment = std::fs::read(format!("/proc/{}/environ", child.id())).unwrap();
        let wanted = format!("GOMP_SPINCOUNT={expected}");
        let found = environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == wanted.as_bytes());
        assert!(found, "{wanted} is not in {}", text(&environment));
        signal(&child, "-TERM");
        let stopped = child.ended("a run that was asked to stop");
        assert!(stopped.success(), "{stopped}");
    }
}
