//! `ppo-bench rollout`: the engine alone.

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use ppo_crds::run_config::Rollout;
use ppo_crds::spec::RolloutSpec;
use ppo_worker::engine::{Engine, Request};
use ppo_worker::engine::{Kernels, PolicyEngine, start_engine};
use ppo_worker::model::kind;
use ppo_worker::model::{ModelConfig, Weights};
use serde_json::json;

use super::workload::{DEADLINE, Workload, first, median};

#[derive(Debug, Args)]
pub struct RolloutArgs {
    #[command(flatten)]
    workload: Workload,
    /// Prompts handed in at once. Without it batch sizes are read from standard input and each is answered by a line.
    #[arg(long)]
    batch: Option<usize>,
    /// Runs that the median is taken of, after one to warm up.
    #[arg(long, default_value_t = 5, requires = "batch")]
    runs: usize,
    /// Which of our own kernels compute, on a GPU in bfloat16.
    #[arg(long, value_enum, default_value_t)]
    kernels: Kernels,
}

pub fn rollout(args: &RolloutArgs) -> Result<()> {
    let began = Instant::now();
    let requests = args.workload.requests()?;
    let bench = Bench {
        engine: start(&args.workload, &requests, args.kernels)?,
        requests,
    };
    match args.batch {
        Some(batch) => bench.measure(batch, args.runs, began.elapsed()),
        None => bench.serve(),
    }
}

fn start(workload: &Workload, requests: &[Request], kernels: Kernels) -> Result<Engine> {
    let model = ModelConfig::read(&workload.model)?;
    let kind = kind(workload.dtype.into());
    let weights = Weights::map(&workload.model, &model, kind)?;
    let longest = requests.iter().map(|request| request.prompt.len()).max().unwrap_or(0) + workload.new_tokens;
    let rollout = Rollout {
        engine: ppo_crds::spec::Engine::Builtin,
        replicas: 1,
        min_replicas: 1,
        block_size: 16,
        max_batch_tokens: usize::try_from(RolloutSpec::default().max_batch_tokens)?,
        max_sequences: requests.len().max(1),
        kv_cache_mebibytes: None,
        dtype: None,
    };
    let policy = PolicyEngine {
        model: &model,
        kind,
        device: workload.device.settle("the engine")?.device,
        shares_device: false,
        kernels,
        rollout: &rollout,
        sequences: requests.len(),
        longest,
        usual_cache: None,
        policy_version: 0,
        start_deadline: DEADLINE,
    };
    start_engine(&policy, weights, None)
}

/// A running engine and what it is asked.
struct Bench {
    engine: Engine,
    requests: Vec<Request>,
}

impl Bench {
    /// One run of the first `batch` prompts: tokens drawn and the time it took.
    fn run(&self, batch: usize) -> Result<(usize, Duration)> {
        let requests = first(&self.requests, batch)?;
        let began = Instant::now();
        let completions = self.engine.generate(requests, DEADLINE)?;
        let tokens = completions
            .iter()
            .flatten()
            .map(|completion| completion.tokens.len())
            .sum();
        Ok((tokens, began.elapsed()))
    }

    /// Answers batch sizes from standard input.
    fn serve(&self) -> Result<()> {
        say(json!({"ready": true}))?;
        for line in std::io::stdin().lock().lines() {
            let line = line.context("cannot read standard input")?;
            let batch = line
                .trim()
                .parse()
                .with_context(|| format!("{line:?} is not a batch size"))?;
            let (tokens, time) = self.run(batch)?;
            say(json!({"tokens": tokens, "seconds": time.as_secs_f64()}))?;
        }
        Ok(())
    }

    /// Prints the median rate, the slowest and the fastest, in one JSON line.
    fn measure(&self, batch: usize, runs: usize, startup: Duration) -> Result<()> {
        ensure!(runs > 0, "--runs must be at least 1");
        self.run(batch)?;
        let mut rates = Vec::with_capacity(runs);
        for _ in 0..runs {
            let (tokens, time) = self.run(batch)?;
            rates.push(tokens as f64 / time.as_secs_f64());
        }
        let middle = median(&mut rates);
        let stats = self.engine.stats();
        let figures = json!({
            "batch": batch,
            "tokens_per_s": middle,
            "slowest": rates[0],
            "fastest": rates[rates.len() - 1],
            "runs": runs,
            "startup_s": startup.as_secs_f64(),
            "peak_mib": peak_mebibytes(),
            "passes": stats.passes,
            "ms_per_pass": 1e3 * stats.forward_seconds / stats.passes.max(1) as f64,
        });
        println!("{figures}");
        Ok(())
    }
}

/// A line of the bench's protocol.
fn say(answer: serde_json::Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "BENCH {answer}")
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

/// Peak resident memory of this process, where the kernel tells it.
fn peak_mebibytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? / 1024)
}
