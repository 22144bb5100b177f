//! Drives the rollout engine for `make bench` (worker/bench/workload.py has the workload and the protocol).
//!
//! By hand: `ppo-bench rollout --model DIR --prompts FILE --batch 8 --runs 5` prints one JSON line.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, ValueEnum};
use ppo_crds::run_config::Rollout;
use ppo_worker::engine::{Details, Engine, Request, SamplingParams, sample_seed};
use ppo_worker::local::{PolicyEngine, start_engine};
use ppo_worker::model::{ModelConfig, Weights};
use serde_json::json;
use tch::Kind;

#[derive(Debug, Parser)]
#[command(name = "ppo-bench", version, max_term_width = 110)]
enum Command {
    /// Generate from random weights as fast as the engine can, end of sequence ignored.
    Rollout(RolloutArgs),
}

#[derive(Debug, Args)]
struct RolloutArgs {
    /// Folder in Hugging Face layout.
    #[arg(long)]
    model: PathBuf,
    /// Precision of weights and cache.
    #[arg(long, value_enum, default_value_t = Precision::Float32)]
    dtype: Precision,
    /// One prompt per line, as token ids.
    #[arg(long)]
    prompts: PathBuf,
    /// Tokens drawn per prompt.
    #[arg(long, default_value_t = 64)]
    new_tokens: usize,
    /// Threads that compute. Default: all cores.
    #[arg(long)]
    threads: Option<u16>,
    /// Prompts handed in at once. Without it batch sizes are read from standard input and each is answered by a line.
    #[arg(long)]
    batch: Option<usize>,
    /// Runs that the median is taken of, after one to warm up.
    #[arg(long, default_value_t = 5, requires = "batch")]
    runs: usize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "lower")]
enum Precision {
    Float32,
    Bfloat16,
}

/// Longest time one run may take.
const DEADLINE: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    let Command::Rollout(args) = Command::parse();
    let Err(error) = rollout(&args) else {
        return ExitCode::SUCCESS;
    };
    eprintln!("ppo-bench: {error:#}");
    ExitCode::FAILURE
}

fn rollout(args: &RolloutArgs) -> Result<()> {
    let began = Instant::now();
    if let Some(threads) = args.threads {
        tch::set_num_threads(i32::from(threads));
    }
    let prompts = read_prompts(&args.prompts)?;
    let bench = Bench {
        engine: start(args, &prompts)?,
        prompts,
        params: Arc::new(sampling(args.new_tokens)),
    };
    match args.batch {
        Some(batch) => bench.measure(batch, args.runs, began.elapsed()),
        None => bench.serve(),
    }
}

fn start(args: &RolloutArgs, prompts: &[Arc<[u32]>]) -> Result<Engine> {
    let model = ModelConfig::read(&args.model)?;
    let kind = match args.dtype {
        Precision::Float32 => Kind::Float,
        Precision::Bfloat16 => Kind::BFloat16,
    };
    let weights = Weights::load(&args.model, &model, kind)?;
    let longest = prompts.iter().map(|prompt| prompt.len()).max().unwrap_or(0) + args.new_tokens;
    let rollout = Rollout {
        engine: ppo_crds::spec::Engine::Builtin,
        replicas: 1,
        min_replicas: 1,
        block_size: 16,
        max_batch_tokens: 2048,
        max_sequences: prompts.len().max(1),
        kv_cache_mebibytes: None,
    };
    let policy = PolicyEngine {
        model: &model,
        kind,
        rollout: &rollout,
        sequences: prompts.len(),
        longest,
        policy_version: 0,
    };
    start_engine(&policy, weights, None)
}

/// The bench's sampling: the whole vocabulary at temperature 1, nothing ends a response early.
fn sampling(new_tokens: usize) -> SamplingParams {
    SamplingParams {
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        max_new_tokens: new_tokens,
        min_new_tokens: 0,
        stop_token_ids: vec![],
        stop: vec![],
    }
}

fn read_prompts(path: &Path) -> Result<Vec<Arc<[u32]>>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read the prompts in {}", path.display()))?;
    let parse = |(number, line): (usize, &str)| -> Result<Arc<[u32]>> {
        let ids: std::result::Result<Arc<[u32]>, _> = line.split_whitespace().map(str::parse).collect();
        ids.with_context(|| {
            format!(
                "{}:{}: a prompt is token ids separated by blanks",
                path.display(),
                number + 1
            )
        })
    };
    text.lines().enumerate().map(parse).collect()
}

/// A running engine and what it is asked.
struct Bench {
    engine: Engine,
    prompts: Vec<Arc<[u32]>>,
    params: Arc<SamplingParams>,
}

impl Bench {
    /// One run of the first `batch` prompts: tokens drawn and the time it took.
    fn run(&self, batch: usize) -> Result<(usize, Duration)> {
        let prompts = self
            .prompts
            .get(..batch)
            .with_context(|| format!("there are only {} prompts", self.prompts.len()))?;
        let began = Instant::now();
        let request = |(index, prompt): (u64, &Arc<[u32]>)| Request {
            prompt: prompt.clone(),
            seeds: vec![sample_seed(0, 0, index, 0)],
            params: self.params.clone(),
            details: Details::default(),
        };
        let completions = self
            .engine
            .generate((0..).zip(prompts).map(request).collect(), DEADLINE)?;
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
        rates.sort_by(f64::total_cmp);
        let stats = self.engine.stats();
        let figures = json!({
            "batch": batch,
            "tokens_per_s": rates[rates.len() / 2],
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
