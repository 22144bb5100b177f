//! The worker on GPUs, simulated ones (`tests/simulated_gpu`): the code that runs there, its tensors where they belong, its streams in
//! order, its graphs replayed, its ranks over NCCL's functions. `make test-gpu` runs the same on this machine's GPU, with NVIDIA's kernels.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod pods;
mod worker;

use pods::{KILLED_STEPS, Pods, STEPS, succeed};
use ppo_crds::pod::env;
use ppo_tests::{Gpus, SimulatedGpus, free_port};
use serde_json::{Value, json};
use worker::{Bench, Running, check_same_files, finish, number, output, text, wait_for};

fn gpus(count: usize) -> Gpus {
    Gpus::new(count).unwrap()
}

/// Whether a test has to be left out, with the reason in its output: it shows what only a simulated GPU has.
fn is_real(reason: &str) -> bool {
    if Gpus::are_real() {
        eprintln!("left out on this machine's GPU: {reason}");
    }
    Gpus::are_real()
}

fn on_gpu() -> Bench {
    Bench::on(gpus(1))
}

/// What a step's numbers are compared by.
const NUMBERS: [&str; 11] = [
    "score",
    "reward",
    "kl",
    "entropy",
    "policy_loss",
    "value_loss",
    "actor_grad_norm",
    "response_length",
    "logprob_difference_max",
    "correction_outside",
    "correction_weight",
];

/// Every step has the same numbers but for rounding, which grows with the steps.
fn check_same_numbers(one: &[Value], other: &[Value]) {
    assert_eq!(one.len(), other.len());
    for (one, other) in one.iter().zip(other) {
        for name in NUMBERS.into_iter().filter(|name| one.get(*name).is_some()) {
            let (a, b) = (number(one, name), number(other, name));
            assert!(
                (a - b).abs() <= 1e-3 * a.abs().max(0.1),
                "{name}: {a} and {b}\n{one}\n{other}"
            );
        }
    }
}

/// Runs that are compared learn little: a step of Adam is as long for a gradient that is all rounding as for any other, but where epsilon is
/// above that, and a ratio that crosses the clip takes its sample's gradient away at once.
fn compared() -> Value {
    json!({"steps": 3, "optimizer": {"epsilon": 1e-3, "actorLearningRate": 1e-4, "criticLearningRate": 2e-4}})
}

/// The same manifest on the CPU and on a GPU; the numbers of the GPU's steps.
fn check_that_a_gpu_changes_rounding_alone(patch: &Value) -> Vec<Value> {
    let [cpu, gpu] = [Bench::new(), on_gpu()].map(|bench| {
        bench.reward_model("rm");
        bench.manifests("job.yaml", &[compared(), patch.clone()]);
        bench.run("job.yaml", "run");
        bench.metrics("run")
    });
    check_same_numbers(&cpu, &gpu);
    gpu
}

#[test]
fn what_is_wrong_in_the_use_of_a_gpu_is_found() {
    if is_real("a real one finds nothing") {
        return;
    }
    let told = |name: &str| {
        let done = output(
            SimulatedGpus::new(1)
                .unwrap()
                .faults(name)
                .stdout(std::process::Stdio::piped()),
        );
        (done.status.code(), text(&done.stdout))
    };
    for (fault, words) in [
        ("mixed-devices", "at least two devices, cuda:0 and cpu"),
        ("read-before-it-is-written", "reads what aten::fill_ on stream 1"),
        (
            "overwrite-while-it-is-read",
            "while stream 1 of GPU 0 may still read it",
        ),
        ("wait-in-a-graph", "cannot be captured"),
        ("capture-on-the-shared-stream", "cannot be captured"),
        ("out-of-memory", "CUDA out of memory"),
    ] {
        let (code, said) = told(fault);
        assert!(code == Some(0) && said.contains(words), "{fault}: {code:?} {said}");
    }
    for fatal in ["host-access", "freed-while-it-is-used"] {
        assert_eq!(told(fatal), (None, String::new()), "{fatal} ends by a signal");
    }
    assert_eq!(told("none"), (Some(0), "nothing found\n".into()));
}

#[test]
fn a_run_on_a_gpu_has_the_numbers_of_one_on_the_cpu() {
    check_that_a_gpu_changes_rounding_alone(&json!({
        "model": {"activationCheckpointing": true},
        "evaluation": {"source": {"path": "prompts.jsonl"}, "everySteps": 2, "maxPrompts": 10},
    }));
}

#[test]
fn so_has_one_without_a_critic_whose_groups_must_differ() {
    check_that_a_gpu_changes_rounding_alone(&json!({
        "algorithm": {"advantage": {"estimator": "grpo"}, "kl": {"placement": "loss", "estimator": "k3"}},
        "batch": {"dynamicSampling": {"maxDraws": 3}},
    }));
}

#[test]
fn so_has_one_that_trains_an_adapter_for_a_reward_model() {
    check_that_a_gpu_changes_rounding_alone(&json!({
        "model": {"adapter": {"rank": 4}},
        "roles": {"reward": {"model": {"source": {"path": "rm"}}, "rules": []}},
    }));
}

#[test]
fn so_has_one_whose_passes_hold_samples_of_many_lengths() {
    check_that_a_gpu_changes_rounding_alone(&json!({
        "prompts": {"maxLength": 6},
        "batch": {"microTrainBatchSize": 2, "microRolloutBatchSize": 4},
    }));
}

#[test]
fn so_has_one_by_cispo_whose_stale_samples_are_corrected() {
    // Bounds that a tenth of the ratios is beyond, and none so near to that rounding would move it across.
    let steps = check_that_a_gpu_changes_rounding_alone(&json!({"overlap": "oneStep", "algorithm": {
        "surrogate": "cispo", "maskTruncated": true,
        "rolloutCorrection": {"level": "token", "outside": "truncate", "low": 0.8, "high": 1.13}}}));
    let last = &steps[steps.len() - 1];
    assert!(number(last, "correction_outside") > 0.0, "{last}");
}

#[test]
fn so_has_one_whose_ratios_are_of_whole_responses() {
    check_that_a_gpu_changes_rounding_alone(&json!({"overlap": "oneStep", "algorithm": {
        "advantage": {"estimator": "grpo"}, "ratio": "sequence", "kl": {"placement": "loss", "estimator": "k3"},
        "rolloutCorrection": {"level": "geometric", "outside": "mask", "low": 0.5, "high": 2.0}}}));
}

#[test]
fn so_has_one_that_learns_from_its_entropy_too() {
    check_that_a_gpu_changes_rounding_alone(&json!({
        "algorithm": {"entropyCoef": 0.01}, "generation": {"temperature": 0.8}}));
}

#[test]
fn an_engine_on_a_gpu_gets_what_a_step_changed() {
    let patch = json!({
        "model": {"dtype": "bfloat16"},
        "optimizer": {"actorLearningRate": 3e-7},
        // Or it would take what memory the GPU has for itself.
        "roles": {"rollout": {"kvCacheMebibytes": 64}},
    });
    let mut pods = Pods::of(on_gpu(), patch);
    pods.engine();
    let done = finish(pods.actor_that_tells(1));
    let words = text(&done.stderr);
    assert!(done.status.success(), "{words}");
    let deltas = words.matches(" other weights: ").count() as u64;
    assert!(deltas >= STEPS - 1, "{words}");
    assert!(!words.contains("all of the weights are sent"), "{words}");
    if !is_real("which requests meet in a pass is another there each time, and with it the last bits") {
        pods.check_bits();
    }
}

#[test]
fn graphs_draw_what_single_kernels_draw() {
    let patch = json!({"model": {"dtype": "bfloat16"}, "overlap": "oneStep"});
    let [graphs, kernels] = [gpus(1), gpus(1).without_graphs()].map(|gpus| {
        let bench = Bench::on(gpus);
        bench.manifests("job.yaml", &[compared(), patch.clone()]);
        let done = bench.worker(["run", "-f", "job.yaml", "--run-dir", "run"]);
        assert!(done.status.success(), "{}", text(&done.stderr));
        (bench.metrics("run"), text(&done.stderr))
    });
    assert!(!graphs.1.contains("without"), "{}", graphs.1);
    assert!(kernels.1.contains("decoding without CUDA graphs"), "{}", kernels.1);
    check_same_numbers(&graphs.0, &kernels.0);
}

#[test]
fn engine_reference_and_actor_agree_on_bfloat16_and_the_reward_rises() {
    let bench = on_gpu();
    let reward = json!({"rules": [{"regex": {"pattern": "^1"}}]});
    bench.manifest(
        "job.yaml",
        json!({"model": {"dtype": "bfloat16"}, "steps": 25, "algorithm": {"kl": {"coef": 0.01}}, "roles": {"reward": reward}}),
    );
    bench.run("job.yaml", "run");
    let lines = bench.metrics("run");
    assert!(number(&lines[0], "kl").abs() < 1e-3, "{}", lines[0]);
    assert!(
        lines.iter().all(|line| number(line, "logprob_difference") < 0.02),
        "{lines:?}"
    );
    let mean = |part: &[Value]| part.iter().map(|line| number(line, "score")).sum::<f64>() / part.len() as f64;
    assert!(mean(&lines[20..]) > mean(&lines[..5]) + 0.2, "{lines:?}");
}

#[test]
fn a_run_that_is_killed_on_a_gpu_ends_with_the_bits_of_one_that_is_not() {
    let bench = on_gpu();
    bench.manifest(
        "job.yaml",
        json!({"steps": KILLED_STEPS, "model": {"dtype": "bfloat16"}, "overlap": "oneStep"}),
    );
    bench.run("job.yaml", "whole");
    for steps in [1, 3] {
        let mut run = Running::start(&mut bench.command(["run", "-f", "job.yaml", "--run-dir", "killed", "--quiet"]));
        wait_for("a further step", || {
            let lines = std::fs::read_to_string(bench.path("killed/metrics.jsonl")).unwrap_or_default();
            lines.lines().count() >= steps || run.try_wait().unwrap().is_some()
        });
        run.kill();
    }
    bench.run("job.yaml", "killed");
    check_same_files(
        &bench.last_state("whole", KILLED_STEPS),
        &bench.last_state("killed", KILLED_STEPS),
    );
}

#[test]
fn ranks_on_gpus_make_the_update_of_one_and_a_killed_one_changes_no_bit() {
    let new = |steps: u64| {
        let mut patch = compared();
        patch["steps"] = json!(steps);
        Pods::of(on_gpu(), patch)
    };
    let (alone, whole, killed) = (new(STEPS), new(KILLED_STEPS), new(KILLED_STEPS));
    succeed(alone.ranks(1, 1));
    succeed(whole.ranks(2, 1));
    let numbers = |pods: &Pods| pods.bench.metrics("pods/checkpoints");
    // Rounding grows with the steps.
    check_same_numbers(&numbers(&alone), &numbers(&whole)[..STEPS as usize]);

    let mut first = killed.ranks(2, 1);
    wait_for("a second step", || killed.steps() >= 2);
    first[1].kill();
    let words = text(&finish(first.remove(0)).stderr);
    assert!(
        words.contains("rank 1 (test-actor-1) is lost; it was last in"),
        "{words}"
    );
    succeed(killed.ranks(2, 2));
    let last = |pods: &Pods| pods.bench.checkpoint("pods/checkpoints", KILLED_STEPS);
    check_same_files(&last(&whole), &last(&killed));
}

#[test]
fn pods_with_gpus_of_their_own_train_to_the_bits_of_one_process_and_a_reference_uses_all_of_its() {
    if is_real("two are needed, and bits are those of a simulated one's CPU") {
        return;
    }
    let mut pods = Pods::of(Bench::on(gpus(2)), json!({}));
    pods.engine();
    pods.engine();
    let port = free_port().unwrap();
    let reference = pods.server_with("reference", port, &[(env::GPUS, "2")]);
    pods.reference = Some((port, reference));
    let done = finish(pods.actor(1));
    assert!(done.status.success(), "{}", text(&done.stderr));
    pods.check_bits();
}

#[test]
fn a_supervised_model_learns_on_a_gpu_what_it_learns_on_the_cpu() {
    let [cpu, gpu] = [Bench::new(), on_gpu()].map(|bench| {
        std::fs::write(
            bench.path("more.yaml"),
            "{model: {path: sft}, data: {path: prompts.jsonl, responseField: answer}, steps: 5, batchSize: 30, learningRate: 1e-3, output: more}",
        )
        .unwrap();
        let done = bench.worker(["sft", "-f", "more.yaml", "--json"]);
        assert!(done.status.success(), "{}", text(&done.stderr));
        let lines = text(&done.stdout);
        lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).unwrap()["loss"].as_f64()).collect::<Vec<_>>()
    });
    assert!(cpu.len() >= 5 && cpu.len() == gpu.len(), "{cpu:?} {gpu:?}");
    for (one, other) in cpu.iter().zip(&gpu) {
        assert!((one - other).abs() < 1e-4, "{cpu:?} {gpu:?}");
    }
}

#[test]
fn a_gpu_whose_memory_runs_out_ends_the_run_with_what_would_help() {
    if is_real("its memory is not small") {
        return;
    }
    let small = SimulatedGpus::new(1).unwrap().of_mebibytes(8);
    let bench = Bench::on(Gpus::Simulated(small));
    let all = json!({"rolloutBatchSize": 80, "trainBatchSize": 320, "microTrainBatchSize": 320});
    bench.manifest(
        "job.yaml",
        json!({"batch": all, "roles": {"rollout": {"kvCacheMebibytes": 1}}}),
    );
    let done = bench.worker(["run", "-f", "job.yaml", "--run-dir", "run", "--quiet"]);
    let words = text(&done.stderr);
    assert!(!done.status.success());
    assert!(words.contains("CUDA out of memory"), "{words}");
    assert!(words.contains("a smaller batch.microTrainBatchSize"), "{words}");
    assert!(!words.contains("frame #"), "{words}");
}
