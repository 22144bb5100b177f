//! What the numbers of a run's steps are numbers of.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod worker;

use serde_json::{Value, json};
use worker::{Bench, number};

/// Lines of a file of records.
fn records(bench: &Bench, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(bench.path(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Equal but for the rounding of float32.
#[track_caller]
fn assert_near(found: f64, expected: f64) {
    let difference = (found - expected).abs();
    assert!(difference <= 1e-5 * expected.abs().max(0.1), "{found} for {expected}");
}

/// Prompts of a step of `Bench`'s manifest, and its samples.
const PROMPTS: usize = 8;
const SAMPLES: usize = 32;

#[test]
fn engine_reference_actor_and_update_compute_at_the_temperature_that_samples_are_drawn_at() {
    let bench = Bench::new();
    // A policy that rests: its updates compute what was there before them.
    let still = json!({"actorLearningRate": 0.0});
    bench.manifest(
        "job.yaml",
        json!({"steps": 1, "generation": {"temperature": 0.7}, "optimizer": still}),
    );
    bench.run("job.yaml", "run");
    let first = &bench.metrics("run")[0];
    assert!(number(first, "kl").abs() < 1e-4, "{first}");
    assert!(number(first, "logprob_difference_max") < 1e-4, "{first}");
    assert!((number(first, "ratio_max") - 1.0).abs() < 1e-4, "{first}");
}

#[test]
fn the_total_loss_is_what_actor_and_critic_minimised_together() {
    let bench = Bench::new();
    let algorithm = json!({"valueCoef": 0.25, "entropyCoef": 0.01, "kl": {"coef": 0.05, "placement": "loss"}});
    bench.manifest(
        "job.yaml",
        json!({"steps": 2, "algorithm": algorithm, "optimizer": {"criticWarmupSteps": 1}}),
    );
    bench.run("job.yaml", "run");
    let lines = bench.metrics("run");
    let (critic_alone, both) = (&lines[0], &lines[1]);
    assert!(critic_alone.get("policy_loss").is_none(), "{critic_alone}");
    assert_near(
        number(critic_alone, "total_loss"),
        0.25 * number(critic_alone, "value_loss"),
    );
    let policy = number(both, "policy_loss") - 0.01 * number(both, "entropy") + 0.05 * number(both, "kl_loss");
    assert_near(number(both, "total_loss"), policy + 0.25 * number(both, "value_loss"));
}

#[test]
fn under_openrlhf_an_adaptive_coefficient_follows_the_kl_of_the_loss_that_it_is_a_term_of() {
    let bench = Bench::new();
    let adaptive = json!({"adaptive": {"target": 1e-9, "horizon": 1000}});
    let kl = json!({"coef": 0.05, "placement": "loss", "controller": adaptive});
    bench.manifest(
        "job.yaml",
        json!({"steps": 2, "algorithm": {"profile": "openrlhf", "kl": kl}}),
    );
    bench.run("job.yaml", "run");
    let lines = bench.metrics("run");
    // The policy is the reference until it learns: only while it does is its KL above the target.
    let first = &lines[0];
    assert!(number(first, "kl") < 1e-9 && number(first, "kl_loss") > 1e-6, "{first}");
    let rise = 0.2 * SAMPLES as f64 / 1000.0;
    assert_near(number(&lines[1], "kl_coefficient"), 0.05 * (1.0 + rise));
}

#[test]
fn the_samples_of_a_step_add_up_to_its_numbers_wherever_the_profile_places_the_score() {
    let bench = Bench::new();
    let rules = json!([{"regex": {"pattern": "^1"}}, {"weight": 2, "regex": {"pattern": "^"}}]);
    for profile in ["default", "trl"] {
        bench.manifest(
            "job.yaml",
            json!({"steps": 2, "algorithm": {"profile": profile}, "roles": {"reward": {"rules": rules}},
                   "telemetry": {"samples": SAMPLES}}),
        );
        bench.run("job.yaml", profile);
        let written = records(&bench, &format!("{profile}/samples.jsonl"));
        for step in bench.metrics(profile) {
            let of_step = written.iter().filter(|sample| sample["step"] == step["step"]);
            let responses: Vec<&Vec<Value>> = of_step.map(|sample| sample["tokens"].as_array().unwrap()).collect();
            assert_eq!(responses.len(), SAMPLES);
            let lengths = || responses.iter().map(|tokens| tokens.len());
            assert!(lengths().min() < lengths().max(), "no response has a slot after it");
            let sums = |name: &str| -> Vec<f64> {
                let sum = |tokens: &&Vec<Value>| tokens.iter().map(|token| number(token, name)).sum::<f64>();
                responses.iter().map(sum).collect()
            };
            let mean = |numbers: &[f64]| numbers.iter().sum::<f64>() / numbers.len() as f64;
            let rewards = sums("reward");
            assert_near(number(&step, "reward"), mean(&rewards));
            assert_near(
                number(&step, "reward_max"),
                rewards.iter().copied().fold(f64::MIN, f64::max),
            );
            assert_near(
                number(&step, "reward_min"),
                rewards.iter().copied().fold(f64::MAX, f64::min),
            );
            assert_near(number(&step, "kl"), mean(&sums("kl")));
            assert_near(number(&step, "sequence_entropy"), -mean(&sums("logprob")));
        }
    }
}

#[test]
fn nothing_is_learnt_from_responses_that_were_cut_off_where_they_are_left_out() {
    let bench = Bench::new();
    let of = |left_out: bool, folder: &str, patch: Value| {
        let algorithm = json!({"maskTruncated": left_out, "ratio": "sequence", "advantage": {"estimator": "gae"}});
        let short = json!({"maxNewTokens": 2});
        bench.manifests(
            "job.yaml",
            &[json!({"steps": 1, "generation": short, "algorithm": algorithm}), patch],
        );
        bench.run("job.yaml", folder);
        bench.metrics(folder).remove(0)
    };
    let (all, some) = (of(false, "all", json!({})), of(true, "some", json!({})));
    assert!(number(&all, "response_clipped") > 0.0, "{all}");
    for name in ["response_clipped", "score", "kl", "advantage_std"] {
        assert_near(number(&some, name), number(&all, name));
    }
    assert!(
        (number(&some, "value_loss") - number(&all, "value_loss")).abs() > 1e-6,
        "{all}\n{some}"
    );
    assert!(number(&some, "policy_loss").is_finite());

    // Where every response was, there is nothing else to learn from.
    let rules = json!([{"regex": {"pattern": "^1"}}]);
    let cut = json!({"generation": {"minNewTokens": 2}, "roles": {"reward": {"rules": rules}}});
    let (learnt, nothing) = (of(false, "learnt", cut.clone()), of(true, "nothing", cut));
    for step in [&learnt, &nothing] {
        assert_eq!(number(step, "response_clipped"), 1.0, "{step}");
        assert!(number(step, "score_std") > 0.0, "{step}");
    }
    for name in ["actor_grad_norm", "critic_grad_norm"] {
        assert!(number(&learnt, name) > 0.0, "{name}: {learnt}");
        assert_eq!(number(&nothing, name), 0.0, "{name}: {nothing}");
    }
}

#[test]
fn a_response_without_an_end_costs_its_penalty() {
    const PENALTY: f64 = 2.5;
    let bench = Bench::new();
    let algorithm = json!({"kl": {"coef": 0}, "score": {"missingEosPenalty": PENALTY}});
    bench.manifest(
        "job.yaml",
        json!({"steps": 1, "generation": {"maxNewTokens": 2}, "algorithm": algorithm}),
    );
    bench.run("job.yaml", "run");
    let first = &bench.metrics("run")[0];
    let unfinished = number(first, "response_clipped");
    assert!(0.0 < unfinished && unfinished < 1.0, "{first}");
    assert_near(number(first, "reward"), number(first, "score") - PENALTY * unfinished);
}

/// One step's samples, and its numbers.
fn drawn(bench: &Bench, run_dir: &str, generation: &Value) -> (Vec<Value>, Value) {
    bench.manifest(
        "job.yaml",
        json!({"steps": 1, "generation": generation, "telemetry": {"samples": SAMPLES}}),
    );
    bench.run("job.yaml", run_dir);
    let samples = records(bench, &format!("{run_dir}/samples.jsonl"));
    assert_eq!(samples.len(), SAMPLES, "{generation}");
    (samples, bench.metrics(run_dir).remove(0))
}

fn response(sample: &Value) -> &str {
    sample["response"].as_str().unwrap()
}

#[test]
fn a_response_ends_behind_its_least_number_of_tokens_and_at_the_first_stop() {
    let bench = Bench::new();
    let goes_on_after_a_one = |sample: &Value| {
        let response = response(sample);
        response.find('1').is_some_and(|at| at + 1 < response.len())
    };
    let (free, step) = drawn(&bench, "free", &json!({}));
    assert!(number(&step, "response_length_min") < 4.0, "{step}");
    assert!(free.iter().any(goes_on_after_a_one), "{free:?}");

    let (_, step) = drawn(&bench, "least", &json!({"minNewTokens": 4, "maxNewTokens": 4}));
    assert_eq!(number(&step, "response_length_min"), 4.0, "{step}");

    // The id of "1" in the tokenizer.
    for (run_dir, stop) in [("string", json!({"stop": ["1"]})), ("id", json!({"stopTokenIds": [4]}))] {
        let (samples, _) = drawn(&bench, run_dir, &stop);
        let stopped: Vec<&Value> = samples.iter().filter(|sample| response(sample).contains('1')).collect();
        assert!(!stopped.is_empty(), "{stop}: {samples:?}");
        for sample in stopped {
            assert!(!goes_on_after_a_one(sample), "{stop}: {sample}");
            assert_eq!(sample["finish_reason"], "stop", "{stop}: {sample}");
        }
    }
}

#[test]
fn each_bound_on_what_may_be_drawn_leaves_but_the_likeliest_token_where_it_is_tight() {
    let bench = Bench::new();
    let groups_are_equal = |samples: &[Value]| {
        let mut groups = samples.chunks(SAMPLES / PROMPTS);
        groups.all(|group| group.iter().all(|sample| response(sample) == response(&group[0])))
    };
    assert!(!groups_are_equal(&drawn(&bench, "free", &json!({})).0));
    for (run_dir, bound) in [
        ("topk", json!({"topK": 1})),
        ("topp", json!({"topP": 0.01})),
        ("minp", json!({"minP": 1})),
    ] {
        let (samples, _) = drawn(&bench, run_dir, &bound);
        assert!(groups_are_equal(&samples), "{bound}: {samples:?}");
    }
}

#[test]
fn the_seed_changes_what_is_drawn_and_not_what_is_likeliest() {
    let bench = Bench::new();
    // What a step drew, and what was answered to held-out prompts before it.
    let of = |seed: u64, temperature: Option<f64>| {
        let mut evaluation = json!({"source": {"path": "prompts.jsonl"}, "maxPrompts": 10});
        if let Some(temperature) = temperature {
            evaluation["temperature"] = json!(temperature);
        }
        bench.manifest(
            "job.yaml",
            json!({"steps": 1, "seed": seed, "prompts": {"shuffle": false}, "evaluation": evaluation,
                   "telemetry": {"samples": SAMPLES}}),
        );
        let run_dir = format!("{seed}-{temperature:?}");
        bench.run("job.yaml", &run_dir);
        let drawn: Vec<(Value, Value)> = records(&bench, &format!("{run_dir}/samples.jsonl"))
            .into_iter()
            .map(|mut sample| (sample["prompt"].take(), sample["response"].take()))
            .collect();
        let compared = std::fs::read(bench.path(&run_dir).join("before_after.json")).unwrap();
        let compared: Value = serde_json::from_slice(&compared).unwrap();
        let rows = compared["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 10);
        let before: Vec<Value> = rows.iter().map(|row| row["before"].clone()).collect();
        (drawn, before)
    };
    let ((one, greedy), (two, again)) = (of(1, None), of(2, None));
    assert_eq!(greedy, again);
    assert!(one.iter().zip(&two).all(|(one, two)| one.0 == two.0), "{one:?} {two:?}");
    assert_ne!(one, two);
    let [one, two] = [1, 2].map(|seed| of(seed, Some(1.0)).1);
    assert_ne!(one, two);
}

#[test]
fn what_the_dual_clip_holds_is_counted_where_there_is_one() {
    let bench = Bench::new();
    for (run_dir, dual) in [("off", 0.0), ("on", 1.001)] {
        bench.manifest("job.yaml", json!({"steps": 1, "algorithm": {"clip": {"dual": dual}}}));
        bench.run("job.yaml", run_dir);
    }
    let off = &bench.metrics("off")[0];
    assert!(off.get("dual_clip_fraction").is_none(), "{off}");
    let on = &bench.metrics("on")[0];
    let held = number(on, "dual_clip_fraction");
    assert!(0.0 < held && held < 1.0, "{on}");
    assert!(number(on, "ratio_variance") > 0.0, "{on}");
}

#[test]
fn a_step_draws_on_until_its_groups_differ_in_score_and_the_next_one_begins_behind_what_it_drew() {
    let bench = check_how_steps_draw_on("none");
    assert!(bench.metrics("run").iter().all(|step| step["staleness_max"] == 0.0));
}

#[test]
fn so_it_does_where_the_first_draw_of_the_next_one_is_made_ahead() {
    let bench = check_how_steps_draw_on("oneStep");
    for (before, step) in bench.metrics("run").iter().enumerate() {
        let allowed = f64::from(u8::from(before > 0));
        // What it drew on is of its own version.
        match number(step, "draws") {
            1.0 => assert_eq!(number(step, "staleness"), allowed, "{step}"),
            _ => assert!(number(step, "staleness_max") <= allowed, "{step}"),
        }
    }
}

fn check_how_steps_draw_on(overlap: &str) -> Bench {
    const MOST: usize = 3;
    let bench = Bench::new();
    bench.manifest(
        "job.yaml",
        json!({"steps": 3, "overlap": overlap, "prompts": {"shuffle": false}, "algorithm": {"advantage": {"estimator": "grpo"}},
               "batch": {"dynamicSampling": {"maxDraws": MOST}}, "telemetry": {"samplesEverySteps": 1, "samples": SAMPLES}}),
    );
    bench.run("job.yaml", "run");
    let (prompts, samples) = (records(&bench, "prompts.jsonl"), records(&bench, "run/samples.jsonl"));
    // The model sees more than the file has.
    let shown = |row: &Value, sample: &Value| {
        sample["prompt"]
            .as_str()
            .unwrap()
            .ends_with(row["prompt"].as_str().unwrap())
    };
    let place = |sample: &Value| prompts.iter().position(|row| shown(row, sample)).unwrap();
    let differs = |group: &&[&Value]| group.iter().any(|sample| sample["score"] != group[0]["score"]);
    let mut begin = 0;
    for step in bench.metrics("run") {
        let draws = number(&step, "draws") as usize;
        let drawn = draws * PROMPTS;
        let of_step: Vec<&Value> = samples.iter().filter(|sample| sample["step"] == step["step"]).collect();
        let groups: Vec<&[&Value]> = of_step.chunks(SAMPLES / PROMPTS).collect();
        let places: Vec<usize> = groups.iter().map(|group| place(group[0])).collect();
        assert!(
            places.is_sorted() && places[0] >= begin && places[PROMPTS - 1] < begin + drawn,
            "{places:?}"
        );
        let different = groups.iter().copied().filter(differs).count();
        assert!(different == PROMPTS || draws == MOST, "{different} after {draws} draws");
        let found = (1.0 - number(&step, "groups_equal")) * drawn as f64;
        assert_eq!(different, (found.round() as usize).min(PROMPTS), "{step}");
        begin += drawn;
    }
    assert!(begin > 3 * PROMPTS, "no step drew on");
    bench
}
