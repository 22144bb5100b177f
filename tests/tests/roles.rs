//! Roles as processes of their own, as pods run them: they do what one process does, to the bit, whoever dies on the way.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod worker;

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use ppo_crds::manifest::parse_manifest;
use ppo_crds::pod::env;
use ppo_crds::report::exit_code;
use ppo_crds::spec::Role;
use ppo_crds::{Environment, resolve};
use serde_json::{Value, json};
use worker::{Bench, finish, signal, text, wait_for};

const STEPS: u64 = 6;
const TOKEN: &str = "the-jobs-token";

/// A job's processes on this machine.
struct Pods {
    bench: Bench,
    engines: Vec<(u16, Child)>,
    reference: Option<(u16, Child)>,
}

impl Drop for Pods {
    fn drop(&mut self) {
        for (_, process) in self.engines.iter_mut().chain(&mut self.reference) {
            // It may have ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Pods {
    /// Writes what pods run for `patch`, and the same as a manifest for one process.
    fn new(patch: Value) -> Self {
        let bench = Bench::new();
        bench.manifest("job.yaml", patch);
        let job = parse_manifest(&std::fs::read_to_string(bench.path("job.yaml")).unwrap(), "job.yaml").unwrap();
        let here = Environment::Laptop {
            manifest_folder: bench.folder.path().to_owned(),
        };
        let mut config = resolve(&job, &here).unwrap();
        config.checkpoint.path = Some(bench.path("pods/checkpoints"));
        std::fs::write(bench.path("run-config.json"), serde_json::to_string(&config).unwrap()).unwrap();
        Self {
            bench,
            engines: Vec::new(),
            reference: None,
        }
    }

    fn command(&self, args: &[&str], attempt: u32) -> Command {
        let mut command = self.bench.command([args[0]]);
        command
            .args(&args[1..])
            .env(env::JOB, "test")
            .env(env::ROLE, args[0])
            .env(env::INDEX, "0")
            .env(env::ATTEMPT, attempt.to_string())
            .env(env::CONFIG, self.bench.path("run-config.json"))
            .env(env::TOKEN, TOKEN);
        command
    }

    fn engine(&mut self) -> usize {
        let port = free_port();
        self.engines.push((port, self.engine_at(port)));
        self.engines.len() - 1
    }

    fn engine_at(&self, port: u16) -> Child {
        let port = port.to_string();
        let args = [
            "rollout",
            "--host",
            "127.0.0.1",
            "--port",
            &port,
            "--metrics-addr",
            "127.0.0.1:0",
        ];
        // Its words would fill a pipe that nobody reads.
        self.command(&args, 1).stderr(Stdio::null()).spawn().unwrap()
    }

    fn reference(&mut self) {
        let port = free_port();
        self.reference = Some((port, self.reference_at(port)));
    }

    fn reference_at(&self, port: u16) -> Child {
        let address = format!("127.0.0.1:{port}");
        let args = ["reference", "--listen", &address, "--metrics-addr", "127.0.0.1:0"];
        self.command(&args, 1).stderr(Stdio::null()).spawn().unwrap()
    }

    fn actor(&self, attempt: u32) -> Child {
        let address = |(port, _): &(u16, Child)| format!("127.0.0.1:{port}");
        let engines: Vec<String> = self.engines.iter().map(address).collect();
        let mut command = self.command(&["actor", "--metrics-addr", "127.0.0.1:0", "--quiet"], attempt);
        command.env(env::service(Role::Rollout), engines.join(","));
        if let Some(reference) = &self.reference {
            command.env(env::service(Role::Reference), address(reference));
        }
        command.spawn().unwrap()
    }

    fn steps(&self) -> usize {
        let lines = std::fs::read_to_string(self.bench.path("pods/checkpoints/metrics.jsonl"));
        lines.map_or(0, |lines| lines.lines().count())
    }

    /// The run of one process has the same bits.
    fn check_bits(&self) {
        self.bench.run("job.yaml", "whole");
        std::fs::rename(self.bench.path("pods/checkpoints/model"), self.bench.path("pods/model")).unwrap();
        let (whole, pods) = (self.bench.bits("whole", STEPS), self.bench.bits("pods", STEPS));
        assert_eq!(whole.len(), pods.len());
        assert!(whole.len() >= 3);
        for ((name, whole), (_, pods)) in whole.iter().zip(&pods) {
            assert!(whole == pods, "{name} differs");
        }
    }
}

#[test]
fn roles_in_processes_of_their_own_train_to_the_bits_of_one_process() {
    let mut pods = Pods::new(json!({}));
    pods.engine();
    pods.engine();
    pods.reference();
    let done = finish(pods.actor(1));
    assert!(done.status.success(), "{}", text(&done.stderr));
    pods.check_bits();
}

#[test]
fn an_engine_a_reference_and_an_actor_that_are_killed_change_no_bit() {
    let mut pods = Pods::new(json!({}));
    pods.reference();
    let (first, second) = (pods.engine(), pods.engine());
    let mut actor = pods.actor(1);
    wait_for("a first step", || pods.steps() >= 1);
    pods.engines[first].1.kill().unwrap();
    let (port, mut reference) = pods.reference.take().unwrap();
    reference.kill().unwrap();
    reference.wait().unwrap();
    pods.reference = Some((port, pods.reference_at(port)));
    wait_for("a step without that engine", || {
        pods.steps() >= 3 || actor.try_wait().unwrap().is_some()
    });
    actor.kill().unwrap();
    actor.wait().unwrap();
    pods.engines[second].1.kill().unwrap();
    // Both engines come back without any weights but the model's own.
    for index in [first, second] {
        let port = pods.engines[index].0;
        pods.engines[index].1.wait().unwrap();
        pods.engines[index].1 = pods.engine_at(port);
    }
    let done = finish(pods.actor(2));
    assert!(done.status.success(), "{}", text(&done.stderr));
    pods.check_bits();
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
    let stale = finish(pods.actor(1));
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
fn an_actor_that_is_not_told_its_place_says_what_is_missing() {
    let pods = Pods::new(json!({}));
    let lonely = pods
        .command(&["actor", "--metrics-addr", "127.0.0.1:0", "--quiet"], 1)
        .env_remove(env::CONFIG)
        .spawn()
        .unwrap();
    let refused = finish(lonely);
    assert_eq!(refused.status.code(), Some(exit_code::BAD_CONFIGURATION));
    assert!(
        text(&refused.stderr).contains("PPO_CONFIG is not set"),
        "{}",
        text(&refused.stderr)
    );
}
