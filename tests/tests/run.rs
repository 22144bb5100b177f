//! `ppo-worker run` and its companions as a user meets them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod worker;

use std::io::{Read, Write};
use std::net::TcpStream;

use ppo_crds::report::exit_code;
use serde_json::{Value, json};
use worker::{Bench, Running, check_same_files, finish, number, output, repository, signal, text, wait_for};

#[test]
fn ppo_raises_the_reward() {
    let bench = Bench::new();
    let reward = json!({"rules": [{"regex": {"pattern": "^1"}}]});
    let patch = json!({"steps": 25, "algorithm": {"kl": {"coef": 0.01}}, "roles": {"reward": reward}});
    bench.manifest("job.yaml", patch);
    bench.run("job.yaml", "run");
    let scores: Vec<f64> = bench.metrics("run").iter().map(|line| number(line, "score")).collect();
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert!(mean(&scores[20..]) > mean(&scores[..5]) + 0.2, "{scores:?}");
}

#[test]
fn a_reward_model_learns_which_response_is_better_and_scores_a_run() {
    let bench = Bench::new();
    let pairs = |name: &str, from: usize, to: usize| {
        let line = |index: usize| {
            let (a, b) = (index / 10 + 1, index % 10);
            json!({"prompt": format!("{a}+{b}="), "chosen": (a + b).to_string(), "rejected": "0"}).to_string()
        };
        let lines: Vec<String> = (from..to).map(line).collect();
        std::fs::write(bench.path(name), lines.join("\n")).unwrap();
    };
    pairs("pairs.jsonl", 0, 70);
    pairs("held-out.jsonl", 70, 90);
    let learn = |model: &str, output: &str, steps: u32| {
        let file = format!(
            "{{model: {{path: {model}}}, data: {{path: pairs.jsonl}}, evaluation: {{path: held-out.jsonl}}, steps: {steps}, \
             batchSize: 20, microBatchSize: 7, learningRate: 3e-3, output: {output}}}"
        );
        std::fs::write(bench.path("rm.yaml"), file).unwrap();
        let done = bench.worker(["rm", "-f", "rm.yaml", "--json"]);
        assert!(done.status.success(), "{}", text(&done.stderr));
        let last: Value = serde_json::from_str(text(&done.stdout).lines().last().unwrap()).unwrap();
        (number(&last, "heldOutLoss"), number(&last, "heldOutRight"))
    };
    let (loss, right) = learn("sft", "rm", 12);
    let config: Value = serde_json::from_slice(&std::fs::read(bench.path("rm/config.json")).unwrap()).unwrap();
    assert_eq!(config["score_position"], "end_token");
    assert!(right >= 0.9 && loss < 0.5, "{right} {loss}");
    // A reward model goes on from its own head.
    let (later, _) = learn("rm", "further", 10);
    assert!(later < loss, "{later} after {loss}");

    bench.manifest(
        "job.yaml",
        json!({"steps": 2, "roles": {"reward": {"model": {"source": {"path": "rm"}}, "rules": []}}}),
    );
    bench.run("job.yaml", "run");
    assert!(bench.metrics("run").iter().all(|line| number(line, "score") != 0.0));
}

#[test]
fn number_formats_that_are_the_actors_change_no_bit_and_others_change_what_the_role_says_by_rounding() {
    let bench = Bench::new();
    bench.reward_model("rm");
    let first = |run_dir: &str, rollout: &str, reference: &str, reward: &str| {
        let of = |dtype: &str| match dtype {
            "" => Value::Null,
            dtype => json!(dtype),
        };
        let model = json!({"source": {"path": "rm"}, "dtype": of(reward)});
        let roles = json!({
            "rollout": {"dtype": of(rollout)}, "reference": {"dtype": of(reference)}, "reward": {"rules": [], "model": model},
        });
        bench.manifest("job.yaml", json!({"steps": 2, "roles": roles}));
        bench.run("job.yaml", run_dir);
        bench.metrics(run_dir).remove(0)
    };
    let names = ["logprob_difference_max", "kl", "score"];
    let of = |line: &Value| names.map(|name| number(line, name));
    let plain = of(&first("plain", "", "", ""));
    assert!(plain[0] < 1e-4 && plain[1].abs() < 1e-4, "{plain:?}");
    let named = of(&first("named", "float32", "float32", "float32"));
    assert_eq!(named, plain);
    check_same_files(&bench.last_state("named", 2), &bench.last_state("plain", 2));

    let reference = of(&first("reference", "", "bfloat16", ""));
    let rounded = (reference[1] - plain[1]).abs();
    assert!(rounded > 1e-5 && rounded < 0.1, "{reference:?} beside {plain:?}");
    assert_eq!((reference[0], reference[2]), (plain[0], plain[2]));
    let reward = of(&first("reward", "", "", "bfloat16"));
    let rounded = (reward[2] - plain[2]).abs();
    assert!(rounded > 0.0 && rounded < 0.1, "{reward:?} beside {plain:?}");
    assert_eq!((reward[0], reward[1]), (plain[0], plain[1]));
    let engine = of(&first("engine", "bfloat16", "", ""));
    assert!(engine[0] > 1e-4 && engine[0] < 0.3, "{engine:?} beside {plain:?}");
}

#[test]
fn an_adapter_whose_reference_would_have_another_number_format_is_refused_with_the_fields_name() {
    let bench = Bench::new();
    let roles = json!({"reference": {"dtype": "bfloat16"}});
    bench.manifest("job.yaml", json!({"model": {"adapter": {"rank": 4}}, "roles": roles}));
    let refused = bench.worker(["run", "-f", "job.yaml", "--run-dir", "run", "--quiet"]);
    let words = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(exit_code::BAD_CONFIGURATION), "{words}");
    assert!(
        words.contains("spec.roles.reference.dtype: is bfloat16; with an adapter"),
        "{words}"
    );
}

#[test]
fn a_supervised_run_ends_once_enough_held_out_rows_are_right() {
    let bench = Bench::new();
    let learn = |output: &str, steps: u32, stop_at: f64| {
        let file = format!(
            "{{model: {{path: sft}}, data: {{path: prompts.jsonl, responseField: answer}}, steps: {steps}, batchSize: 30, \
             learningRate: 3e-3, evaluation: {{path: prompts.jsonl, everySteps: 2, stopAt: {stop_at:?}}}, output: {output}}}"
        );
        std::fs::write(bench.path("more.yaml"), file).unwrap();
        let done = bench.worker(["sft", "-f", "more.yaml", "--json"]);
        assert!(done.status.success(), "{}", text(&done.stderr));
        let last: Value = serde_json::from_str(text(&done.stdout).lines().last().unwrap()).unwrap();
        (last, text(&done.stderr))
    };
    let (last, words) = learn("more", 2000, 0.2);
    let (step, right) = (number(&last, "step"), number(&last, "heldOutExact"));
    assert!(right >= 0.2 && step < 2000.0, "{last}");
    assert!(words.contains(&format!("{step} steps in")), "{words}");
    assert!(bench.path("more/model.safetensors").exists());

    // Not at an evaluation that finds fewer.
    let (last, words) = learn("all", 6, 1.0);
    assert!(number(&last, "heldOutExact") < 1.0, "{last}");
    assert_eq!(number(&last, "step"), 6.0, "{last}");
    assert!(words.contains("6 steps in"), "{words}");
}

#[test]
fn preferences_that_prefer_nothing_are_refused_by_place() {
    let bench = Bench::new();
    std::fs::write(
        bench.path("pairs.jsonl"),
        json!({"prompt": "1+1=", "chosen": "2", "rejected": "2"}).to_string(),
    )
    .unwrap();
    std::fs::write(
        bench.path("rm.yaml"),
        "{model: {path: sft}, data: {path: pairs.jsonl}, steps: 1, output: rm}",
    )
    .unwrap();
    let refused = bench.worker(["rm", "-f", "rm.yaml"]);
    let words = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(exit_code::BAD_CONFIGURATION), "{words}");
    assert!(
        words.contains("line 1: the better and the worse response are the same"),
        "{words}"
    );
    assert!(!bench.path("rm").exists());
}

#[test]
fn a_log_in_json_is_nothing_but_objects_that_tell_their_level() {
    let bench = Bench::new();
    bench.manifest("job.yaml", json!({"steps": 1}));
    let mut command = bench.command(["run", "-f", "job.yaml", "--run-dir", "run", "--log-format", "json"]);
    let done = output(command.env("PPO_LOG", "ppo_worker=debug"));
    let words = text(&done.stderr);
    assert!(done.status.success(), "{words}");
    assert!(words.contains("every role computes on "), "{words}");
    for line in words.lines() {
        let told: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let level = told["level"].as_str();
        assert!(
            level.is_some_and(|level| ["DEBUG", "INFO", "WARN"].contains(&level)),
            "{line}"
        );
    }
}

#[test]
fn a_run_that_fails_after_its_last_step_says_so_in_its_events() {
    let bench = Bench::new();
    bench.manifest("job.yaml", json!({"steps": 1}));
    bench.run("job.yaml", "run");
    // All that is left to do is to leave the model, and to take away a comparison that there is none of.
    std::fs::create_dir(bench.path("run/before_after.json")).unwrap();
    let failed = bench.worker(["run", "-f", "job.yaml", "--run-dir", "run", "--quiet"]);
    let words = text(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{words}");
    assert!(words.contains("before_after.json"), "{words}");
    let events = std::fs::read_to_string(bench.path("run/events.jsonl")).unwrap();
    let last: Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    assert_eq!(last["kind"], "failed", "{events}");
}

#[test]
fn a_manifest_for_a_cluster_runs_here_on_folders_in_place_of_its_claims() {
    let bench = Bench::new();
    let claim = |path: &str| json!({"path": null, "pvc": {"claimName": "data", "path": path}});
    let claims = json!({
        "model": {"policy": claim("sft")}, "prompts": {"source": claim("prompts.jsonl")},
        "checkpoint": {"pvc": "checkpoints"}, "steps": 1,
    });
    bench.manifest("job.yaml", claims);
    let refused = bench.worker(["run", "-f", "job.yaml", "--run-dir", "run"]);
    assert!(
        text(&refused.stderr).contains("--volumes DIR"),
        "{}",
        text(&refused.stderr)
    );

    std::fs::create_dir_all(bench.path("volumes/data")).unwrap();
    for name in ["sft", "prompts.jsonl"] {
        std::fs::rename(bench.path(name), bench.path("volumes/data").join(name)).unwrap();
    }
    let done = bench.worker([
        "run",
        "-f",
        "job.yaml",
        "--volumes",
        "volumes",
        "--run-dir",
        "run",
        "--quiet",
    ]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(bench.path("volumes/checkpoints/test/step-00000001").exists());
    assert!(bench.path("run/model/model.safetensors").exists());
}

#[test]
fn the_first_step_starts_at_the_reference_and_the_engine_agrees_with_the_actor() {
    let bench = Bench::new();
    bench.manifest("job.yaml", json!({"steps": 1}));
    bench.run("job.yaml", "run");
    let first = &bench.metrics("run")[0];
    assert!(number(first, "kl").abs() < 1e-4, "{first}");
    assert!(number(first, "logprob_difference_max") < 1e-4, "{first}");
    assert_eq!(number(first, "value_mean"), 0.0, "the value head starts at zero");
}

#[test]
fn the_micro_batch_size_changes_nothing_but_rounding() {
    let bench = Bench::new();
    let mut lines = Vec::new();
    for (micro_train, micro_rollout) in [(16, 32), (4, 8), (1, 1)] {
        let batch = json!({"microTrainBatchSize": micro_train, "microRolloutBatchSize": micro_rollout});
        bench.manifest("job.yaml", json!({"steps": 2, "batch": batch}));
        let run_dir = format!("run-{micro_train}");
        bench.run("job.yaml", &run_dir);
        lines.push(bench.metrics(&run_dir).pop().unwrap());
    }
    for name in [
        "score",
        "policy_loss",
        "value_loss",
        "actor_grad_norm",
        "critic_grad_norm",
        "entropy",
        "kl",
    ] {
        let whole = number(&lines[0], name);
        for split in &lines[1..] {
            let difference = (number(split, name) - whole).abs();
            assert!(
                difference < 1e-3 * whole.abs().max(0.1),
                "{name}: {whole} and {}",
                number(split, name)
            );
        }
    }
}

#[test]
fn every_estimator_trains_under_every_profile() {
    let bench = Bench::new();
    let estimators = [
        "gae",
        "rloo",
        "grpo",
        "drGrpo",
        "reinforcePlusPlus",
        "reinforcePlusPlusBaseline",
    ];
    let profiles = ["default", "openrlhf", "verl", "trl", "alpacafarm"];
    let under = |profile| estimators.map(|estimator| (estimator, profile));
    for (estimator, profile) in profiles.into_iter().flat_map(under) {
        let algorithm = json!({"profile": profile, "advantage": {"estimator": estimator}, "kl": {"coef": 0.05}});
        bench.manifest("job.yaml", json!({"steps": 2, "algorithm": algorithm}));
        let run_dir = format!("{estimator}-{profile}");
        bench.run("job.yaml", &run_dir);
        let last = bench.metrics(&run_dir).pop().unwrap();
        assert!(number(&last, "policy_loss").is_finite(), "{run_dir}: {last}");
        assert!(number(&last, "actor_grad_norm") > 0.0, "{run_dir}: {last}");
        assert_eq!(
            last.get("value_loss").is_some(),
            estimator == "gae",
            "{run_dir}: {last}"
        );
    }
}

#[test]
fn a_diverging_run_stops_with_a_reason_and_keeps_its_checkpoint() {
    let bench = Bench::new();
    bench.manifest("job.yaml", json!({"algorithm": {"kl": {"stopAbove": 1e-7}}}));
    let stopped = bench.worker(["run", "-f", "job.yaml", "--run-dir", "kl"]);
    assert_eq!(stopped.status.code(), Some(3), "{}", text(&stopped.stderr));
    assert!(
        text(&stopped.stderr).contains("algorithm.kl.stopAbove"),
        "{}",
        text(&stopped.stderr)
    );
    // The step whose KL it was is told like any other.
    let last = bench.metrics("kl").pop().unwrap();
    assert!(last["kl"].as_f64().unwrap() > 1e-7, "{last}");
    assert!(
        bench.path("kl/checkpoints/step-00000001").exists(),
        "the step before is kept"
    );

    // It goes on in its folder with what may prevent it, and with nothing else.
    bench.manifest("job.yaml", json!({"generation": {"temperature": 0.7}}));
    let refused = bench.worker(["run", "-f", "job.yaml", "--run-dir", "kl"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    let calmer = json!({"optimizer": {"actorLearningRate": 1e-7}, "algorithm": {"kl": {"stopAbove": 100.0}}});
    bench.manifest("job.yaml", calmer);
    bench.run("job.yaml", "kl");
    let events = std::fs::read_to_string(bench.path("kl/events.jsonl")).unwrap();
    for field in ["optimizer.actorLearningRate was ", "algorithm.kl.stopAbove was "] {
        assert_eq!(events.matches(field).count(), 1, "{events}");
    }

    // Where the KL passes the limit later, the policy of the newest checkpoint is the one beyond it, and the one before it is good.
    bench.manifest("job.yaml", json!({"steps": 6}));
    bench.run("job.yaml", "free");
    let kls: Vec<f64> = bench.metrics("free").iter().map(|step| number(step, "kl")).collect();
    let peak = |steps: usize| kls[..steps].iter().copied().fold(f64::MIN, f64::max);
    let beyond = (2..kls.len()).find(|at| kls[*at] > peak(*at)).expect("the KL grows");
    let limit = (peak(beyond) + kls[beyond]) / 2.0;
    bench.manifest(
        "job.yaml",
        json!({"steps": 6, "algorithm": {"kl": {"stopAbove": limit}}}),
    );
    let stopped = bench.worker(["run", "-f", "job.yaml", "--run-dir", "later"]);
    assert_eq!(stopped.status.code(), Some(3), "{}", text(&stopped.stderr));
    let calmer = json!({"actorLearningRate": 1e-12});
    bench.manifest(
        "job.yaml",
        json!({"steps": 6, "optimizer": calmer, "algorithm": {"kl": {"stopAbove": limit}}}),
    );
    bench.worker(["run", "-f", "job.yaml", "--run-dir", "later"]);
    let events = std::fs::read_to_string(bench.path("later/events.jsonl")).unwrap();
    let resumed = format!("going on after step {} from", beyond - 1);
    assert!(
        events.contains(&resumed),
        "{resumed} is not in {events} of {kls:?} and {limit}"
    );

    // A critic with a NaN among its weights, the last four bytes of its file.
    let broken = bench.path("broken");
    std::fs::create_dir(&broken).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(bench.path("sft").join(name), broken.join(name)).unwrap();
    }
    let mut weights = std::fs::read(broken.join("model.safetensors")).unwrap();
    let end = weights.len();
    weights[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(broken.join("model.safetensors"), weights).unwrap();
    bench.manifest("job.yaml", json!({"model": {"critic": {"path": "broken"}}}));
    let stopped = bench.worker(["run", "-f", "job.yaml", "--run-dir", "nan"]);
    assert_eq!(stopped.status.code(), Some(3), "{}", text(&stopped.stderr));
    assert!(
        text(&stopped.stderr).contains("diverged in step 1: the critic's values for sample 0 are NaN"),
        "{}",
        text(&stopped.stderr)
    );
}

#[test]
fn a_reward_server_gives_the_run_that_its_rules_give_in_process() {
    let bench = Bench::new();
    let rloo = json!({"advantage": {"estimator": "rloo"}});
    bench.manifest("rules.yaml", json!({"algorithm": rloo, "steps": 3}));
    bench.run("rules.yaml", "rules");

    let (mut server, url) = reward_server(&bench);
    let remote = |steps: u64, remote: Value| {
        let reward = json!({"rules": null, "remote": remote});
        bench.manifest(
            "remote.yaml",
            json!({"algorithm": rloo, "steps": steps, "roles": {"reward": reward}}),
        );
    };
    remote(3, json!({"urls": [url]}));
    bench.run("remote.yaml", "remote");
    end(&mut server);
    check_same_files(&bench.last_state("rules", 3), &bench.last_state("remote", 3));

    // It goes on with the cure that the error gives.
    remote(5, json!({"urls": [url], "maxRetries": 0}));
    let failed = bench.worker(["run", "-f", "remote.yaml", "--run-dir", "remote"]);
    let words = text(&failed.stderr);
    assert!(
        !failed.status.success() && words.contains(&url),
        "a server that is gone is named: {words}"
    );
    let (mut server, elsewhere) = reward_server(&bench);
    remote(5, json!({"urls": [elsewhere], "maxRetries": 3, "timeoutSeconds": 30}));
    bench.run("remote.yaml", "remote");
    end(&mut server);
    let events = std::fs::read_to_string(bench.path("remote/events.jsonl")).unwrap();
    assert!(events.contains("roles.reward.remote.urls are others"), "{events}");
    bench.manifest("rules.yaml", json!({"algorithm": rloo, "steps": 5}));
    bench.run("rules.yaml", "rules");
    check_same_files(&bench.last_state("rules", 5), &bench.last_state("remote", 5));
}

/// A server of the rules of `rules.yaml`, and its address.
fn reward_server(bench: &Bench) -> (Running, String) {
    let mut command = bench.command(["reward", "-f", "rules.yaml", "--listen", "127.0.0.1:0"]);
    let mut server = Running::start(&mut command);
    let said = server.said("http://");
    let url = said.split_whitespace().find(|word| word.starts_with("http://"));
    let url = url.unwrap().to_owned();
    (server, url)
}

fn end(server: &mut Running) {
    signal(server, "-TERM");
    let ended = server.ended("the reward server");
    assert!(ended.success(), "{ended}");
}

#[test]
fn what_a_run_leaves_can_be_watched_and_reported() {
    let bench = Bench::new();
    let row = |b: u32| json!({"prompt": format!("1+{b}="), "answer": (1 + b).to_string(), "terms": {"odd": b % 2}});
    let rows: Vec<String> = (0..10).map(|b| row(b).to_string()).collect();
    std::fs::write(bench.path("held-out.jsonl"), rows.join("\n")).unwrap();
    let evaluation = json!({
        "source": {"path": "held-out.jsonl"}, "everySteps": 50, "maxPrompts": 9, "temperature": 1, "nSamplesPerPrompt": 4,
        "setField": "terms.odd",
    });
    bench.manifest(
        "job.yaml",
        json!({"steps": 400, "evaluation": evaluation, "checkpoint": {"everySteps": 0}}),
    );
    let mut command = bench.command([
        "run",
        "-f",
        "job.yaml",
        "--run-dir",
        "run",
        "--metrics-addr",
        "127.0.0.1:0",
    ]);
    let mut child = Running::start(&mut command);
    let said = child.said("/metrics");
    let address = said
        .split("http://")
        .nth(1)
        .unwrap()
        .split('/')
        .next()
        .unwrap()
        .to_owned();
    wait_for("a second step", || {
        std::fs::read_to_string(bench.path("run/metrics.jsonl")).is_ok_and(|lines| lines.lines().count() >= 2)
    });
    let metrics = get(&address, "/metrics");
    for name in [
        "ppo_reward",
        "ppo_evaluation_pass_at_n_ratio",
        "ppo_evaluation_set_score{set=\"0\"}",
        "ppo_evaluation_set_pass_at_n_ratio{set=\"1\"}",
        "ppo_stage_seconds_bucket",
        "vllm:generation_tokens_total",
        "ppo_step ",
    ] {
        assert!(metrics.contains(name), "{name} is not in {metrics}");
    }
    signal(&child, "-TERM");
    let ended = finish(child);
    let out = text(&ended.stdout);
    assert!(ended.status.success(), "{}: {out}", ended.status);
    assert!(
        out.lines()
            .any(|line| line.starts_with("step=1/400 ") && line.contains("eta=")),
        "{out}"
    );
    assert!(
        out.lines()
            .any(|line| line.starts_with("evaluation step=0 ") && line.contains(" pass@4=")),
        "{out}"
    );
    let evaluations = std::fs::read_to_string(bench.path("run/evaluation.jsonl")).unwrap();
    let first: Value = serde_json::from_str(evaluations.lines().next().unwrap()).unwrap();
    assert_eq!(first["prompts"], 9);
    assert_eq!(first["n_samples_per_prompt"], 4);
    let (even, odd) = (&first["sets"]["0"], &first["sets"]["1"]);
    assert_eq!([&even["prompts"], &odd["prompts"]], [5, 4]);
    let all = (5.0 * number(even, "score") + 4.0 * number(odd, "score")) / 9.0;
    assert!((number(&first, "score") - all).abs() < 1e-9, "{evaluations}");
    assert!(
        number(&first, "pass_at_n") >= number(&first, "pass_rate"),
        "{evaluations}"
    );

    let report = bench.worker(["report", "run"]);
    assert!(report.status.success(), "{}", text(&report.stderr));
    let html = std::fs::read_to_string(bench.path("run/report.html")).unwrap();
    assert!(
        html.contains("<svg") && !html.contains("http://"),
        "curves, and nothing from elsewhere"
    );
    assert!(html.contains("pass@4"), "a curve of it");
    assert!(html.contains("Held-out accuracy by test set"), "a curve of each set");
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(worker::DEADLINE)).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    answer
}

#[test]
fn a_manifest_full_of_mistakes_is_refused_with_all_of_them_at_once() {
    let bench = Bench::new();
    let illegal = repository().join("configs/illegal.yaml");
    let refused = |command: &str| {
        let refused = bench.worker([command, "-f", illegal.to_str().unwrap()]);
        assert_eq!(refused.status.code(), Some(2), "{command}");
        text(&refused.stderr)
    };
    let all = include_str!("illegal.txt");
    let words = refused("run");
    assert!(words.ends_with(all), "{words}");
    // One with a claim is planned for a cluster, where it is right and a relative path is not.
    let words = refused("plan");
    assert!(words.contains("\n17 errors in the manifest:\n"), "{words}");
    for field in ["policy", "critic"] {
        let relative = format!("spec.model.{field}.path: \"../models/");
        assert!(words.contains(&relative), "{relative} is not in {words}");
    }
    let errors = all.lines().filter_map(|line| line.split_once(". "));
    for (_, error) in errors.filter(|(_, error)| !error.starts_with("spec.prompts.source.pvc")) {
        assert!(words.contains(error), "{error} is not in {words}");
    }
    assert!(!bench.path("runs").exists(), "a refused run leaves nothing");
}

#[test]
fn who_began_anew_is_not_told_to_begin_anew_once_more() {
    let bench = Bench::new();
    bench.manifest("job.yaml", json!({"steps": 10_000, "checkpoint": {"everySteps": 0}}));
    let steps = || std::fs::read_to_string(bench.path("run/metrics.jsonl")).map_or(0, |lines| lines.lines().count());
    let stopped = |anew: &[&str]| {
        let before = steps();
        let mut command = bench.command(["run", "-f", "job.yaml", "--run-dir", "run"]);
        let child = Running::start(command.args(anew));
        wait_for("a step", || steps() > before);
        signal(&child, "-TERM");
        text(&finish(child).stdout)
    };
    let words = stopped(&["--fresh"]);
    assert!(
        words.contains("; the same command without --fresh goes on from there"),
        "{words}"
    );
    let words = stopped(&[]);
    assert!(words.contains("; the same command goes on from there"), "{words}");
    assert!(!words.contains("step=1/"), "it goes on: {words}");
}

#[test]
fn a_critic_is_warned_of_where_the_prompts_that_there_are_exceed_its_context() {
    let bench = Bench::new();
    let words = |critic: Value| {
        bench.manifest("job.yaml", json!({"steps": 1, "model": {"critic": critic}}));
        let done = bench.worker(["run", "-f", "job.yaml", "--run-dir", "run", "--fresh"]);
        assert!(done.status.success(), "{}", text(&done.stderr));
        text(&done.stderr)
    };
    let of_policy = words(Value::Null);
    assert!(!of_policy.contains("the context of"), "{of_policy}");

    bench.copy("sft", "short");
    let config = bench.path("short/config.json");
    let mut short: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    for (context, is_short) in [(9, false), (8, true)] {
        short["max_position_embeddings"] = json!(context);
        std::fs::write(&config, short.to_string()).unwrap();
        let words = words(json!({"path": "short"}));
        let told = words.contains("a sequence may have 9 tokens, the context of model.critic has 8: ");
        assert_eq!(told, is_short, "{words}");
    }
}

#[test]
fn the_table_at_the_end_shows_prompts_as_people_wrote_them() {
    let bench = Bench::new();
    let evaluation = json!({"source": {"path": "prompts.jsonl"}, "maxPrompts": 3});
    bench.manifest("job.yaml", json!({"steps": 1, "evaluation": evaluation}));
    let done = bench.worker(["run", "-f", "job.yaml", "--run-dir", "run"]);
    let words = text(&done.stdout);
    assert!(done.status.success(), "{}", text(&done.stderr));
    for prompt in ["1+0=", "1+1=", "1+2="] {
        assert!(
            words.lines().any(|line| line.starts_with(&format!("{prompt}  "))),
            "{words}"
        );
    }
}

#[test]
fn a_full_disk_ends_the_run_with_the_file_and_what_helps() {
    let bench = Bench::new();
    bench.manifest("job.yaml", json!({"steps": 1}));
    std::fs::create_dir(bench.path("run")).unwrap();
    // What Linux says to every write there is what a disk without room says.
    std::os::unix::fs::symlink("/dev/full", bench.path("run/metrics.jsonl")).unwrap();
    let ended = bench.worker(["run", "-f", "job.yaml", "--run-dir", "run", "--quiet"]);
    assert_eq!(ended.status.code(), Some(1));
    let words = text(&ended.stderr);
    for part in [
        "make room",
        "checkpoint.keep",
        "run/metrics.jsonl",
        "No space left on device",
    ] {
        assert!(words.contains(part), "{part} is not in {words}");
    }
}

#[test]
fn plan_tells_the_arithmetic_and_changes_nothing() {
    let bench = Bench::new();
    bench.manifest("job.yaml", json!({}));
    let before = std::fs::read_dir(bench.folder.path()).unwrap().count();
    let plan = bench.worker(["plan", "-f", "job.yaml"]);
    let words = text(&plan.stdout);
    assert!(plan.status.success(), "{}", text(&plan.stderr));
    for part in [
        "samples per step 32 = 8 prompts x 4 samples",
        "test-actor-0",
        "policy weights",
        "lambda: 0.95",
    ] {
        assert!(words.contains(part), "{part} is not in {words}");
    }
    assert_eq!(std::fs::read_dir(bench.folder.path()).unwrap().count(), before);
}

#[test]
fn a_bad_row_is_named_by_file_and_line() {
    let bench = Bench::new();
    let rows = std::fs::read_to_string(bench.path("prompts.jsonl")).unwrap();
    std::fs::write(bench.path("prompts.jsonl"), format!("{rows}\n{{\"prompt\": 7}}")).unwrap();
    bench.manifest("job.yaml", json!({}));
    let refused = bench.worker(["run", "-f", "job.yaml"]);
    let words = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(exit_code::BAD_CONFIGURATION), "{words}");
    assert!(
        words.contains("prompts.jsonl: line 91") && words.contains("prompt"),
        "{words}"
    );

    let held_out = "{\"prompt\": \"1+1=\", \"answer\": \"2\"}\n{\"prompt\": \"1+2=\", \"answer\": null}";
    std::fs::write(bench.path("held-out.jsonl"), held_out).unwrap();
    let evaluation = json!({"source": {"path": "held-out.jsonl"}});
    bench.manifest(
        "job.yaml",
        json!({"prompts": {"source": {"path": "good.jsonl"}}, "evaluation": evaluation}),
    );
    std::fs::write(bench.path("good.jsonl"), rows).unwrap();
    let refused = bench.worker(["run", "-f", "job.yaml"]);
    let words = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(exit_code::BAD_CONFIGURATION), "{words}");
    assert!(words.contains("held-out.jsonl: line 2: rule exactMatch"), "{words}");
}
