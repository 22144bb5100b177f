//! Roles as processes of their own, as pods run them: they do what one process does, to the bit, whoever dies on the way.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod pods;
mod worker;

use pods::{KILLED_STEPS, Pods, STEPS};
use ppo_crds::pod::env;
use ppo_crds::report::exit_code;
use serde_json::{Value, json};
use worker::{Bench, Running, finish, output, signal, text, wait_for, with_another_weight};

/// Two engines, a reference and an actor train to the bits of one process; the first step's numbers.
fn first_of_the_same_bits(patch: Value) -> Value {
    let mut pods = Pods::new(patch);
    pods.engine();
    pods.engine();
    pods.reference();
    let done = finish(pods.actor(1));
    assert!(done.status.success(), "{}", text(&done.stderr));
    pods.check_bits();
    pods.bench.metrics("pods/checkpoints").remove(0)
}

#[test]
fn roles_in_processes_of_their_own_train_to_the_bits_of_one_process_at_the_same_temperature() {
    let first = first_of_the_same_bits(json!({"generation": {"temperature": 0.7}}));
    for name in ["kl", "logprob_difference_max"] {
        assert!(first[name].as_f64().unwrap().abs() < 1e-4, "{name}: {first}");
    }
}

#[test]
fn so_they_do_where_nothing_of_generation_is_at_its_default() {
    let generation = json!({"temperature": 0.7, "topK": 8, "topP": 0.9, "minP": 0.02, "minNewTokens": 2, "stop": ["1"],
                            "stopTokenIds": [5]});
    let first = first_of_the_same_bits(json!({"generation": generation}));
    assert!(first["response_length_min"].as_f64().unwrap() >= 2.0, "{first}");
}

#[test]
fn an_adapter_is_merged_for_engines_in_processes_of_their_own_and_needs_no_reference_process() {
    let mut pods = Pods::new(
        json!({"model": {"dtype": "bfloat16", "adapter": {"rank": 4}}, "optimizer": {"actorLearningRate": 1e-2}}),
    );
    pods.engine();
    pods.engine();
    let done = finish(pods.actor(1));
    assert!(done.status.success(), "{}", text(&done.stderr));
    pods.check_bits();
}

#[test]
fn roles_in_number_formats_of_their_own_train_to_the_bits_of_one_process_and_differ_from_the_actor_by_rounding() {
    for (actor, others) in [("float32", "bfloat16"), ("bfloat16", "float32")] {
        let reward = json!({"model": {"source": {"path": "rm"}, "dtype": others}, "rules": [{"exactMatch": {}}]});
        let roles = json!({"rollout": {"dtype": others}, "reference": {"dtype": others}, "reward": reward});
        let mut pods = Pods::new(json!({"model": {"dtype": actor}, "roles": roles}));
        pods.engine();
        pods.engine();
        pods.reference();
        pods.reward();
        let done = finish(pods.actor(1));
        assert!(done.status.success(), "{}", text(&done.stderr));
        pods.check_bits();
        let first = &pods.bench.metrics("pods/checkpoints")[0];
        let difference = first["logprob_difference_max"].as_f64().unwrap();
        assert!(difference > 1e-4 && difference < 0.3, "{actor}: {first}");
        assert!(first["kl"].as_f64().unwrap() != 0.0, "{actor}: {first}");
    }
}

#[test]
fn an_adapter_is_merged_before_an_engine_of_another_number_format_converts_it() {
    let mut pods = Pods::new(json!({
        "model": {"adapter": {"rank": 4}}, "optimizer": {"actorLearningRate": 1e-2}, "roles": {"rollout": {"dtype": "bfloat16"}},
    }));
    pods.engine();
    pods.engine();
    let done = finish(pods.actor(1));
    assert!(done.status.success(), "{}", text(&done.stderr));
    pods.check_bits();
}

#[test]
fn samples_that_engines_draw_a_step_ahead_are_those_of_one_process() {
    for engines in [1, 2] {
        let mut pods = Pods::new(json!({"overlap": "oneStep"}));
        for _ in 0..engines {
            pods.engine();
        }
        let done = finish(pods.actor(1));
        assert!(done.status.success(), "{}", text(&done.stderr));
        pods.check_bits();
    }
}

#[test]
fn engines_that_get_what_a_step_changed_draw_what_one_process_draws() {
    let (model, optimizer) = (json!({"dtype": "bfloat16"}), json!({"actorLearningRate": 3e-7}));
    for patch in [
        json!({"model": model, "optimizer": optimizer}),
        json!({"model": model, "optimizer": optimizer, "overlap": "oneStep"}),
        json!({"model": model, "optimizer": optimizer, "roles": {"rollout": {"dtype": "float32"}}}),
    ] {
        let mut pods = Pods::new(patch.clone());
        pods.engine();
        pods.engine();
        pods.reference();
        let done = finish(pods.actor_that_tells(1));
        let words = text(&done.stderr);
        assert!(done.status.success(), "{words}");
        pods.check_bits();
        // All of the weights came first, and once more to engines that had fetched them by themselves.
        let versions = words.lines().filter(|line| line.contains(" other weights: ")).count() as u64;
        assert!(versions >= STEPS - 1, "{patch}: {words}");
        assert!(!words.contains("all of the weights are sent"), "{words}");
    }
}

#[test]
fn an_engine_a_reference_and_an_actor_that_are_killed_change_no_bit() {
    check_that_kills_change_nothing(json!({}));
}

#[test]
fn nor_do_they_while_the_samples_of_the_next_step_are_drawn() {
    check_that_kills_change_nothing(json!({"overlap": "oneStep"}));
}

/// Waits for the actor's first step; an actor that ends before it says why.
fn wait_for_step(pods: &Pods, actor: &mut Running) {
    let mut ended = false;
    wait_for("a first step", || {
        ended = actor.try_wait().unwrap().is_some();
        ended || pods.steps() >= 1
    });
    if ended && pods.steps() < 1 {
        let mut words = String::new();
        std::io::Read::read_to_string(actor.stderr.as_mut().unwrap(), &mut words).unwrap();
        panic!("the actor ended before its first step: {words}");
    }
}

fn check_that_kills_change_nothing(mut patch: Value) {
    patch["steps"] = json!(KILLED_STEPS);
    let mut pods = Pods::new(patch);
    pods.reference();
    let (first, second) = (pods.engine(), pods.engine());
    let mut actor = pods.actor(1);
    wait_for_step(&pods, &mut actor);
    pods.engines[first].1.kill();
    let (port, mut reference) = pods.reference.take().unwrap();
    reference.kill();
    pods.reference = Some((port, pods.reference_at(port)));
    wait_for("a step without that engine", || {
        pods.steps() >= 3 || actor.try_wait().unwrap().is_some()
    });
    let again = |line: &Value| line["samples_drawn_again"].as_f64().unwrap();
    let metrics = pods.bench.metrics("pods/checkpoints");
    let (again, step): (f64, f64) = (metrics.iter().map(again).sum(), metrics[0]["samples"].as_f64().unwrap());
    assert!(
        again <= step,
        "{again} samples were drawn again, of {step} that were under way at most"
    );
    actor.kill();
    pods.engines[second].1.kill();
    // Both engines come back without any weights but the model's own.
    for index in [first, second] {
        let port = pods.engines[index].0;
        pods.engines[index].1 = pods.engine_at(port);
    }
    let done = finish(pods.actor(2));
    assert!(done.status.success(), "{}", text(&done.stderr));
    pods.check_bits_after(KILLED_STEPS);
}

#[test]
fn a_reward_model_in_a_process_that_is_killed_scores_to_the_bits_of_one_process() {
    let reward = json!({"model": {"source": {"path": "rm"}, "weight": 0.5}, "rules": [{"exactMatch": {}}]});
    let mut pods = Pods::new(json!({"steps": KILLED_STEPS, "roles": {"reward": reward}}));
    pods.reward();
    pods.reward();
    pods.reference();
    pods.engine();
    pods.engine();
    let mut actor = pods.actor(1);
    wait_for_step(&pods, &mut actor);
    for (_, server) in &mut pods.rewards {
        server.kill();
    }
    let before = pods.steps();
    // All of the step under way may have been scored, and nothing of the one after it.
    assert!(
        before as u64 + 1 < KILLED_STEPS,
        "{before} steps, nothing is left to score"
    );
    let port = pods.rewards[1].0;
    pods.rewards[1].1 = pods.server_at("reward", port);
    wait_for("a step with the new reward process", || {
        pods.steps() > before + 1 || actor.try_wait().unwrap().is_some()
    });
    let done = finish(actor);
    assert!(done.status.success(), "{}", text(&done.stderr));
    pods.check_bits_after(KILLED_STEPS);
    let scores = pods.bench.metrics("pods/checkpoints");
    let of_model = |line: &Value| line["extra"]["reward/model"].as_f64();
    assert!(
        scores
            .iter()
            .all(|line| of_model(line).is_some_and(|score| score != 0.0)),
        "{scores:?}"
    );
}

#[test]
fn a_reference_that_comes_back_as_another_model_ends_the_run_by_its_address() {
    let bench = Bench::new();
    bench.copy("sft", "reference");
    let mut pods = Pods::of(
        bench,
        json!({"steps": 2000, "model": {"reference": {"path": "reference"}}}),
    );
    pods.reference();
    pods.engine();
    let mut actor = pods.actor(1);
    wait_for_step(&pods, &mut actor);
    let (port, mut reference) = pods.reference.take().unwrap();
    reference.kill();
    let file = pods.bench.path("reference/model.safetensors");
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, with_another_weight(&whole)).unwrap();
    pods.reference = Some((port, pods.reference_at(port)));
    let refused = finish(actor);
    let words = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(exit_code::BAD_CONFIGURATION), "{words}");
    let named = format!("reference 127.0.0.1:{port} (");
    assert!(
        words.contains(&named) && words.contains("it has another model.reference than the run began with"),
        "{words}"
    );

    // What the run began with is in its checkpoint, and counts for another attempt as well.
    let refused = finish(pods.actor(2));
    assert_eq!(
        refused.status.code(),
        Some(exit_code::BAD_CONFIGURATION),
        "{}",
        text(&refused.stderr)
    );
}

#[test]
fn a_reward_pod_of_a_job_without_a_reward_model_says_that_it_is_not_needed() {
    let pods = Pods::new(json!({}));
    let refused = output(&mut pods.command(&["reward"], 1));
    assert_eq!(refused.status.code(), Some(exit_code::BAD_CONFIGURATION));
    let words = text(&refused.stderr);
    assert!(words.contains("this run has no reward model"), "{words}");
}

#[test]
fn an_actor_that_is_asked_to_stop_saves_and_says_that_it_was_interrupted() {
    let mut pods = Pods::new(json!({"steps": 500, "checkpoint": {"everySteps": 0}}));
    pods.engine();
    let actor = pods.actor(1);
    wait_for("a second step", || pods.steps() >= 2);
    signal(&actor, "-TERM");
    let stopped = finish(actor);
    assert_eq!(
        stopped.status.code(),
        Some(exit_code::INTERRUPTED),
        "{}",
        text(&stopped.stderr)
    );
    let saved = std::fs::read_dir(pods.bench.path("pods/checkpoints")).unwrap();
    let is_step = |name: &str| name.starts_with("step-");
    assert_eq!(
        saved
            .filter(|entry| is_step(&entry.as_ref().unwrap().file_name().to_string_lossy()))
            .count(),
        1
    );

    // A process of an older attempt has nothing more to say.
    let second = pods.actor(2);
    wait_for("the second attempt to take over", || {
        let owner = std::fs::read_to_string(pods.bench.path("pods/checkpoints/attempt.json"));
        owner.is_ok_and(|owner| owner.contains("\"attempt\":2"))
    });
    let stale = finish(pods.actor_at(0, 1));
    assert!(!stale.status.success());
    let words = text(&stale.stderr);
    assert!(
        words.contains("attempt 2") || words.contains("another process"),
        "{words}"
    );
    signal(&second, "-TERM");
    finish(second);
}

#[test]
fn an_actor_that_works_ends_by_itself_once_a_newer_attempt_has_begun() {
    // It never saves, so that nothing but a look at the fence ends it.
    let mut pods = Pods::new(json!({"steps": 5000, "checkpoint": {"everySteps": 0}}));
    pods.engine();
    let mut first = pods.actor(1);
    wait_for_step(&pods, &mut first);
    // Engines go on asking the first one for weights, as where a name still leads to it.
    let second = pods.actor_at(0, 2);
    let ended = finish(first);
    let words = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{words}");
    assert!(words.contains("attempt 2 of this run has taken over"), "{words}");
    signal(&second, "-TERM");
    let stopped = finish(second);
    let words = text(&stopped.stderr);
    assert_eq!(stopped.status.code(), Some(exit_code::INTERRUPTED), "{words}");
}

#[test]
fn an_actor_that_is_not_told_its_place_says_what_is_missing() {
    let pods = Pods::new(json!({}));
    let mut lonely = pods.command(&["actor", "--metrics-addr", "127.0.0.1:0", "--quiet"], 1);
    let refused = output(lonely.env_remove(env::CONFIG));
    assert_eq!(refused.status.code(), Some(exit_code::BAD_CONFIGURATION));
    assert!(
        text(&refused.stderr).contains("PPO_CONFIG is not set"),
        "{}",
        text(&refused.stderr)
    );
}
