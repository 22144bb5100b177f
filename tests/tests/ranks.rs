//! The actor as two processes, as its pods run it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod pods;
mod worker;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pods::{KILLED_STEPS, Pods, succeed};
use ppo_crds::pod::env;
use ppo_crds::report::exit_code;
use ppo_tests::skipped;
use serde_json::{Value, json};
use worker::{Files, Running, check_same_files, finish, number, output, signal, text, wait_for, with_another_weight};

fn last_checkpoint(pods: &Pods) -> Files {
    pods.bench.checkpoint("pods/checkpoints", KILLED_STEPS)
}

#[test]
fn a_rank_that_is_killed_ends_the_other_by_name_and_the_next_attempt_ends_with_the_same_bits() {
    check_that_a_killed_rank_changes_nothing(&json!({}));
}

#[test]
fn so_does_one_in_bfloat16_with_an_adaptive_coefficient_and_samples_drawn_a_step_ahead() {
    let whole = check_that_a_killed_rank_changes_nothing(&json!({
        "model": {"dtype": "bfloat16"},
        "overlap": "oneStep",
        "algorithm": {"kl": {"controller": {"adaptive": {"target": 0.1, "horizon": 200}}}},
    }));
    let metrics = whole.bench.metrics("pods/checkpoints");
    assert_eq!(metrics.len() as u64, KILLED_STEPS);
    let last = &metrics[metrics.len() - 1];
    assert_eq!(number(last, "staleness"), 1.0, "{last}");
    assert_ne!(number(last, "kl_coefficient"), number(&metrics[0], "kl_coefficient"));
}

/// Kills a rank of a run, and compares how its next attempt ends with a run that nobody disturbed: that one.
fn check_that_a_killed_rank_changes_nothing(patch: &Value) -> Pods {
    let mut patch = patch.clone();
    patch["steps"] = json!(KILLED_STEPS);
    let whole = Pods::new(patch.clone());
    succeed(whole.ranks(2, 1));
    let wanted = last_checkpoint(&whole);
    for part in ["actor", "critic"] {
        for rank in 0..2 {
            let name = format!("{part}-optimizer-{rank:05}-of-00002.safetensors");
            assert!(wanted.contains_key(&name), "{name} is not among {:?}", wanted.keys());
        }
    }

    let killed = Pods::new(patch);
    let mut first = killed.ranks(2, 1);
    wait_for("a second step", || killed.steps() >= 2);
    first[1].kill();
    let lead = finish(first.remove(0));
    assert!(!lead.status.success());
    let words = text(&lead.stderr);
    assert!(
        words.contains("rank 1 (test-actor-1) is lost; it was last in"),
        "{words}"
    );
    succeed(killed.ranks(2, 2));
    check_same_files(&wanted, &last_checkpoint(&killed));
    whole
}

#[test]
fn a_rank_whose_network_is_cut_ends_both_by_name_long_before_a_collectives_deadline_and_closes_nothing() {
    let Some(cable) = Cable::lay() else { return };
    let pods = Pods::new(json!({"steps": 500, "checkpoint": {"everySteps": 0}}));
    let mut ranks = cable.ranks(&pods);
    wait_for("a second step", || {
        let ended = ranks.iter_mut().any(|rank| rank.try_wait().unwrap().is_some());
        pods.steps() >= 2 || ended
    });
    assert!(pods.steps() >= 2, "{}", text(&finish(ranks.remove(0)).stderr));
    cable.cut();
    let cut = Instant::now();
    let words: Vec<String> = ranks.into_iter().map(|rank| text(&finish(rank).stderr)).collect();
    // Thirty seconds until it is noticed, and a few in which the others hear of it: the machine may be busy.
    assert!(cut.elapsed() < Duration::from_secs(100), "{:?}", cut.elapsed());
    let lost = "rank 1 (test-actor-1) is lost; it was last in";
    assert!(words[0].contains(lost), "{}", words[0]);
    assert!(words[1].contains("rank 0 (test-actor-0) is lost"), "{}", words[1]);
}

/// Two machines with a cable between them: namespaces of this one, which end with it.
struct Cable([Running; 2]);

impl Cable {
    /// None where this machine makes none.
    fn lay() -> Option<Self> {
        let own = ["--net", "--uts"];
        let tried = Command::new("unshare").args(own).args(["ip", "link"]).output();
        if !tried.is_ok_and(|tried| tried.status.success()) {
            skipped(
                "a rank whose network is cut",
                "this machine makes no namespaces: it takes root, unshare and ip",
            );
            return None;
        }
        let machine = || Running::start(Command::new("unshare").args(own).args(["sleep", "600"]));
        let cable = Self([machine(), machine()]);
        let here = std::fs::read_link("/proc/self/ns/uts").unwrap();
        for machine in &cable.0 {
            let its = format!("/proc/{}/ns/uts", machine.id());
            // The network's is made with it.
            wait_for("a machine", || std::fs::read_link(&its).is_ok_and(|its| its != here));
        }
        let other = cable.0[1].id();
        cable.on(0, &format!("ip link add wire type veth peer name wire netns {other}"));
        for machine in 0..2 {
            let address = Self::address(machine);
            // A rank's own address is what its machine's name leads to.
            cable.on(
                machine,
                &format!(
                    "echo {address} > /proc/sys/kernel/hostname && ip link set lo up && ip addr add {address}/24 dev wire && \
                     ip link set wire up"
                ),
            );
        }
        Some(cable)
    }

    fn address(machine: usize) -> String {
        format!("10.77.0.{}", machine + 1)
    }

    fn enter(&self, machine: usize) -> Command {
        let mut command = Command::new("nsenter");
        let target = self.0[machine].id().to_string();
        command.args(["--target", &target, "--net", "--uts"]);
        command
    }

    fn on(&self, machine: usize, script: &str) {
        let done = output(self.enter(machine).args(["sh", "-c", script]));
        assert!(done.status.success(), "{script}: {}", text(&done.stderr));
    }

    /// Packets get no further, and nobody is told.
    fn cut(&self) {
        self.on(1, "ip link set wire down");
    }

    /// The actor as a rank on each.
    fn ranks(&self, pods: &Pods) -> Vec<Running> {
        let rank = |rank: usize| {
            let worker = pods.command(&["actor", "--metrics-addr", "127.0.0.1:0", "--quiet"], 1);
            let mut command = self.enter(rank);
            command.arg(worker.get_program()).args(worker.get_args());
            for (name, value) in worker.get_envs() {
                match value {
                    Some(value) => command.env(name, value),
                    None => command.env_remove(name),
                };
            }
            command
                .current_dir(pods.bench.folder.path())
                .env(env::INDEX, rank.to_string())
                .env(env::WORLD_SIZE, "2")
                .env(env::RENDEZVOUS, format!("{}:29500", Self::address(0)))
                .env("NCCL_HOSTID", format!("test-{rank}"))
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            Running::start(&mut command)
        };
        (0..2).map(rank).collect()
    }
}

#[test]
fn ranks_that_are_asked_to_stop_save_and_one_rank_goes_on_from_their_checkpoint() {
    let pods = Pods::new(json!({"steps": 500, "checkpoint": {"everySteps": 0}}));
    let asked = pods.ranks(2, 1);
    wait_for("a second step", || pods.steps() >= 2);
    asked.iter().for_each(|process| signal(process, "-TERM"));
    for (rank, process) in asked.into_iter().enumerate() {
        let stopped = finish(process);
        let code = stopped.status.code();
        assert_eq!(
            code,
            Some(exit_code::INTERRUPTED),
            "rank {rank}: {}",
            text(&stopped.stderr)
        );
    }
    let done = pods.steps();

    let mut alone = pods.ranks(1, 2);
    wait_for("two more steps on one rank", || {
        pods.steps() >= done + 2 || alone[0].try_wait().unwrap().is_some()
    });
    signal(&alone[0], "-TERM");
    let stopped = finish(alone.remove(0));
    assert_eq!(
        stopped.status.code(),
        Some(exit_code::INTERRUPTED),
        "{}",
        text(&stopped.stderr)
    );
    assert!(pods.steps() >= done + 2);
}

/// Writes the configuration anew, changed.
fn configure(pods: &Pods, name: &str, change: impl FnOnce(&mut Value)) {
    let text = std::fs::read(pods.bench.path("run-config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&text).unwrap();
    change(&mut config);
    std::fs::write(pods.bench.path(name), config.to_string()).unwrap();
}

/// Two steps on `first` ranks, then the third on `then`: the policy's numbers, and the last step's metrics.
fn two_steps_and_a_third(patch: &Value, first: usize, then: usize) -> (Vec<f32>, Value) {
    let pods = Pods::new(patch.clone());
    configure(&pods, "run-config.json", |config| {
        config["length"] = json!({"steps": 2})
    });
    succeed(pods.ranks(first, 1));
    configure(&pods, "run-config.json", |config| {
        config["length"] = json!({"steps": 3})
    });
    succeed(pods.ranks(then, 2));
    let file = std::fs::read(pods.bench.path("pods/checkpoints/model/model.safetensors")).unwrap();
    // A safetensors file: the header's length, the header, the tensors.
    let (length, rest) = file.split_at(8);
    let data = &rest[u64::from_le_bytes(length.try_into().unwrap()) as usize..];
    let numbers = data
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    let last = pods.bench.metrics("pods/checkpoints").pop().unwrap();
    assert_eq!(last["step"], 3);
    (numbers.collect(), last)
}

fn check_that_the_number_of_ranks_changes_rounding_alone(patch: Value) {
    let (alone, metrics) = two_steps_and_a_third(&patch, 1, 1);
    let (changed, its) = two_steps_and_a_third(&patch, 2, 1);
    assert_eq!(alone.len(), changed.len());
    let apart = alone
        .iter()
        .zip(&changed)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(apart < 1e-4, "weights are {apart} apart");
    for name in ["kl", "policy_loss", "score"] {
        let [one, other] = [&metrics, &its].map(|metrics| metrics[name].as_f64().unwrap());
        assert!(
            (one - other).abs() < 1e-3 * one.abs().max(1e-2),
            "{name}: {one} {other}"
        );
    }
}

#[test]
fn one_rank_goes_on_from_the_checkpoint_of_two_as_from_its_own() {
    check_that_the_number_of_ranks_changes_rounding_alone(json!({}));
}

#[test]
fn ranks_that_train_an_adapter_and_compute_activations_again_go_on_to_the_same_bits() {
    let patch = json!({"model": {"adapter": {"rank": 4}, "activationCheckpointing": true}, "steps": 3,
                       "optimizer": {"actorLearningRate": 1e-2, "criticLearningRate": 1e-2}});
    let whole = Pods::new(patch.clone());
    succeed(whole.ranks(2, 1));
    let model = std::fs::read(whole.bench.path("pods/checkpoints/model/model.safetensors")).unwrap();
    let (stopped, _) = two_steps_and_a_third(&patch, 2, 2);
    let numbers = stopped
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect::<Vec<u8>>();
    assert!(model.ends_with(&numbers), "the weights differ");
}

#[test]
fn a_rank_whose_model_is_another_one_ends_the_run_by_its_name() {
    let other_weight = |path: &Path, file: Vec<u8>| match path.extension() {
        Some(extension) if extension == "safetensors" => with_another_weight(&file),
        _ => file,
    };
    check_that_another_model_is_refused(json!({}), other_weight, "other weights");
    let adapter = json!({"model": {"adapter": {"rank": 4}}});
    check_that_another_model_is_refused(adapter, other_weight, "other weights");
}

#[test]
fn so_does_one_that_would_compute_something_else_with_the_same_weights() {
    let other_epsilon = |path: &Path, file: Vec<u8>| {
        if !path.ends_with("config.json") {
            return file;
        }
        let mut config: Value = serde_json::from_slice(&file).unwrap();
        config["rms_norm_eps"] = json!(0.5);
        config.to_string().into_bytes()
    };
    check_that_another_model_is_refused(json!({}), other_epsilon, "another config.json");
}

fn check_that_another_model_is_refused(patch: Value, changed: impl Fn(&Path, Vec<u8>) -> Vec<u8>, what: &str) {
    let pods = Pods::new(patch);
    let (ours, other) = (pods.bench.path("sft"), pods.bench.path("other"));
    std::fs::create_dir(&other).unwrap();
    for entry in std::fs::read_dir(&ours).unwrap() {
        let path = entry.unwrap().path();
        let file = changed(&path, std::fs::read(&path).unwrap());
        std::fs::write(other.join(path.file_name().unwrap()), file).unwrap();
    }
    configure(&pods, "other.json", |config| {
        config["model"]["policy"] = json!({"path": other})
    });
    let of = |rank| if rank == 1 { "other.json" } else { "run-config.json" };
    for process in pods.ranks_of(2, 1, of) {
        let refused = finish(process);
        let words = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(exit_code::BAD_CONFIGURATION), "{words}");
        assert!(
            words.contains(&format!("rank 1 (test-actor-1) has {what} of model.policy than rank 0")),
            "{words}"
        );
    }
}

#[test]
fn a_job_that_may_not_go_on_in_a_folder_does_not_take_it_from_the_one_that_does() {
    let pods = Pods::new(json!({"steps": 1}));
    succeed(pods.ranks(1, 1));
    let fence = pods.bench.path("pods/checkpoints/attempt.json");
    let before = std::fs::read(&fence).unwrap();
    configure(&pods, "other.json", |config| config["seed"] = json!(7));
    let other = pods.ranks_of(1, 9, |_| "other.json").remove(0);
    let refused = finish(other);
    let words = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(exit_code::BAD_CONFIGURATION), "{words}");
    assert!(
        words.contains("seed: was") && words.contains("away to start anew"),
        "{words}"
    );
    assert_eq!(std::fs::read(&fence).unwrap(), before);
}

#[test]
fn a_configuration_that_rank_0_cannot_run_ends_every_rank_with_its_words() {
    let pods = Pods::new(json!({}));
    std::fs::write(pods.bench.path("prompts.jsonl"), "{\"prompt\": 1}\n").unwrap();
    for (rank, process) in pods.ranks(2, 1).into_iter().enumerate() {
        let refused = finish(process);
        let words = text(&refused.stderr);
        assert!(!refused.status.success());
        assert!(words.contains("prompts.jsonl"), "rank {rank}: {words}");
        assert_eq!(words.contains("rank 0 ended the run"), rank == 1, "{words}");
    }
}

#[test]
fn two_ranks_train_an_adapter_as_one_does_and_share_the_reference_below_it() {
    let adapter = json!({"model": {"adapter": {"rank": 4}}, "steps": 2,
                         "optimizer": {"actorLearningRate": 1e-2, "criticLearningRate": 1e-2}});
    let kl = |count| {
        let pods = Pods::new(adapter.clone());
        succeed(pods.ranks(count, 1));
        let lines = std::fs::read_to_string(pods.bench.path("pods/checkpoints/metrics.jsonl")).unwrap();
        let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
        last["kl"].as_f64().unwrap()
    };
    let (one, two) = (kl(1), kl(2));
    assert!(one.abs() > 1e-3, "the adapter has learnt nothing: {one}");
    assert!((one - two).abs() < 1e-3 * one.abs(), "{one} {two}");
}
