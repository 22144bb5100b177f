//! A job's roles as processes of this machine, as its pods run them.

#![allow(dead_code, reason = "each test file uses its part")]

use std::process::{Command, Stdio};

use ppo_crds::manifest::parse_manifest;
use ppo_crds::pod::env;
use ppo_crds::spec::Role;
use ppo_crds::{Environment, resolve};
use ppo_tests::free_port;
use serde_json::Value;

use crate::worker::{Bench, Running, check_same_files, finish, text};

/// Steps of the runs whose bits are compared.
pub const STEPS: u64 = 6;

/// More than a run makes, also on a machine that is busy, between the moments at which a test kills its processes.
pub const KILLED_STEPS: u64 = 16;
pub const TOKEN: &str = "the-jobs-token";

/// Lets every rank end, as it should.
pub fn succeed(ranks: Vec<Running>) {
    for (rank, process) in ranks.into_iter().enumerate() {
        let done = finish(process);
        assert!(done.status.success(), "rank {rank}: {}", text(&done.stderr));
    }
}

/// A job's processes on this machine.
pub struct Pods {
    /// Where the actor is asked, so that engines find it before it is there.
    pub actor_port: u16,
    pub engines: Vec<(u16, Running)>,
    /// Of engines that a test has started itself.
    pub addresses: Vec<String>,
    pub reference: Option<(u16, Running)>,
    pub rewards: Vec<(u16, Running)>,
    /// Last, as its folder goes after those who work in it.
    pub bench: Bench,
}

impl Pods {
    /// Writes what pods run for `patch`, and the same as a manifest for one process.
    pub fn new(patch: Value) -> Self {
        Self::of(Bench::new(), patch)
    }

    /// The same in a folder that is there.
    pub fn of(bench: Bench, patch: Value) -> Self {
        if !bench.path("rm").exists() {
            bench.reward_model("rm");
        }
        bench.manifest("job.yaml", patch);
        let job = parse_manifest(&std::fs::read_to_string(bench.path("job.yaml")).unwrap(), "job.yaml").unwrap();
        let here = Environment::Laptop {
            manifest_folder: bench.folder.path().to_owned(),
        };
        let mut config = resolve(&job, &here).unwrap();
        config.checkpoint.path = Some(bench.path("pods/checkpoints"));
        std::fs::write(bench.path("run-config.json"), serde_json::to_string(&config).unwrap()).unwrap();
        Self {
            actor_port: free_port().unwrap(),
            engines: Vec::new(),
            addresses: Vec::new(),
            reference: None,
            rewards: Vec::new(),
            bench,
        }
    }

    pub fn command(&self, args: &[&str], attempt: u32) -> Command {
        let mut command = self.bench.command([args[0]]);
        command
            .args(&args[1..])
            .env(env::JOB, "test")
            .env(env::ROLE, args[0])
            .env(env::INDEX, "0")
            .env(env::ATTEMPT, attempt.to_string())
            .env(env::CONFIG, self.bench.path("run-config.json"))
            .env(env::TOKEN, TOKEN)
            .env(env::service(Role::Actor), format!("127.0.0.1:{}", self.actor_port));
        command
    }

    pub fn engine(&mut self) -> usize {
        let port = free_port().unwrap();
        self.engines.push((port, self.engine_at(port)));
        self.engines.len() - 1
    }

    pub fn engine_at(&self, port: u16) -> Running {
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
        Running::start(self.command(&args, 1).stderr(Stdio::null()))
    }

    pub fn reference(&mut self) {
        let port = free_port().unwrap();
        self.reference = Some((port, self.reference_at(port)));
    }

    pub fn reference_at(&self, port: u16) -> Running {
        self.server_at("reference", port)
    }

    pub fn reward(&mut self) {
        let port = free_port().unwrap();
        self.rewards.push((port, self.server_at("reward", port)));
    }

    pub fn server_at(&self, role: &str, port: u16) -> Running {
        self.server_with(role, port, &[])
    }

    /// The same with more in its environment.
    pub fn server_with(&self, role: &str, port: u16, environment: &[(&str, &str)]) -> Running {
        let address = format!("127.0.0.1:{port}");
        let args = [role, "--listen", &address, "--metrics-addr", "127.0.0.1:0"];
        let mut command = self.command(&args, 1);
        Running::start(command.envs(environment.iter().copied()).stderr(Stdio::null()))
    }

    pub fn actor(&self, attempt: u32) -> Running {
        self.actor_at(self.actor_port, attempt)
    }

    pub fn actor_at(&self, port: u16, attempt: u32) -> Running {
        Running::start(&mut self.actor_command(port, attempt))
    }

    /// The same, whose log tells of what goes well, too.
    pub fn actor_that_tells(&self, attempt: u32) -> Running {
        let mut command = self.actor_command(self.actor_port, attempt);
        Running::start(command.env("PPO_LOG", "ppo_worker=info"))
    }

    fn actor_command(&self, port: u16, attempt: u32) -> Command {
        let address = |(port, _): &(u16, Running)| format!("127.0.0.1:{port}");
        let engines = self.engines.iter().map(address).chain(self.addresses.iter().cloned());
        let engines: Vec<String> = engines.collect();
        let metrics = format!("127.0.0.1:{port}");
        let mut command = self.command(&["actor", "--metrics-addr", &metrics, "--quiet"], attempt);
        command.env(env::service(Role::Rollout), engines.join(","));
        if let Some(reference) = &self.reference {
            command.env(env::service(Role::Reference), address(reference));
        }
        if !self.rewards.is_empty() {
            let rewards: Vec<String> = self.rewards.iter().map(address).collect();
            command.env(env::service(Role::Reward), rewards.join(","));
        }
        command
    }

    /// The actor as so many ranks of an attempt, which meet on a port of their own.
    pub fn ranks(&self, count: usize, attempt: u32) -> Vec<Running> {
        self.ranks_of(count, attempt, |_| "run-config.json")
    }

    /// The same, each with a configuration of its own.
    pub fn ranks_of(&self, count: usize, attempt: u32, config: impl Fn(usize) -> &'static str) -> Vec<Running> {
        let meeting = format!("127.0.0.1:{}", free_port().unwrap());
        let rank = |rank: usize| {
            let mut command = self.command(&["actor", "--metrics-addr", "127.0.0.1:0", "--quiet"], attempt);
            command
                .env(env::CONFIG, self.bench.path(config(rank)))
                .env(env::INDEX, rank.to_string())
                .env(env::WORLD_SIZE, count.to_string())
                .env(env::RENDEZVOUS, &meeting)
                // NCCL takes no two ranks of one machine on one GPU: where there is but one, each rank is a machine to it.
                .env("NCCL_HOSTID", format!("test-{rank}"));
            Running::start(&mut command)
        };
        (0..count).map(rank).collect()
    }

    pub fn steps(&self) -> usize {
        let lines = std::fs::read_to_string(self.bench.path("pods/checkpoints/metrics.jsonl"));
        lines.map_or(0, |lines| lines.matches('\n').count())
    }

    /// The run of one process has the same bits.
    pub fn check_bits(&self) {
        self.check_bits_after(STEPS);
    }

    /// The same where the run has so many steps.
    pub fn check_bits_after(&self, steps: u64) {
        self.bench.run("job.yaml", "whole");
        std::fs::rename(self.bench.path("pods/checkpoints/model"), self.bench.path("pods/model")).unwrap();
        check_same_files(
            &self.bench.last_state("whole", steps),
            &self.bench.last_state("pods", steps),
        );
    }
}
