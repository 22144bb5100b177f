//! `ppo-bench http`: the engine through the rollout server and the trainer's client over loopback, in turns with the engine
//! alone. Client and server share the machine, as a job's pods on one node do.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use futures::future::try_join_all;
use ppo_worker::engine::{Completion, Request};
use serde_json::json;

use super::server::Server;
use super::workload::{DEADLINE, Workload, first, median};

#[derive(Debug, Args)]
pub struct HttpArgs {
    #[command(flatten)]
    workload: Workload,
    /// Prompts handed in at once, each as a request of its own.
    #[arg(long, value_delimiter = ',', default_values_t = [8, 32])]
    batch: Vec<usize>,
    /// Runs that the medians are taken of, after one to warm up.
    #[arg(long, default_value_t = 9)]
    runs: usize,
}

pub fn http(args: &HttpArgs) -> Result<()> {
    ensure!(args.runs > 0, "--runs must be at least 1");
    let requests = args.workload.requests()?;
    let server = Server::start(&args.workload.model, args.workload.dtype.into())?;
    for &batch in &args.batch {
        let requests = Arc::new(first(&requests, batch)?);
        let (mut of_engine, mut of_server) = (Vec::new(), Vec::new());
        for run in 0..=args.runs {
            let rates = (alone(&server, &requests)?, through(&server, &requests)?);
            // The first warms up.
            if run > 0 {
                of_engine.push(rates.0);
                of_server.push(rates.1);
            }
        }
        let (of_engine, of_server) = (median(&mut of_engine), median(&mut of_server));
        let figures = json!({
            "batch": batch,
            "in_process_tokens_per_s": of_engine,
            "http_tokens_per_s": of_server,
            "ratio": of_server / of_engine,
            "runs": args.runs,
        });
        println!("{figures}");
    }
    Ok(())
}

/// Tokens per second of the engine alone.
fn alone(server: &Server, requests: &[Request]) -> Result<f64> {
    let began = Instant::now();
    let completions = server.engine.generate(requests.to_vec(), DEADLINE)?;
    Ok(rate(&completions, began))
}

/// Tokens per second through HTTP, each prompt as a request of its own, as the trainer asks.
fn through(server: &Server, requests: &Arc<Vec<Request>>) -> Result<f64> {
    let began = Instant::now();
    let (endpoint, requests) = (server.endpoint.clone(), requests.clone());
    let calls = async move {
        let calls = requests
            .iter()
            .map(|request| endpoint.generate("bench", request, DEADLINE));
        try_join_all(calls).await
    };
    // On the runtime's own threads, where a step's calls are made too.
    let answered = server.runtime.block_on(server.runtime.spawn(calls))?;
    let completions = answered.context("through HTTP")?;
    Ok(rate(&completions, began))
}

fn rate(completions: &[Vec<Completion>], began: Instant) -> f64 {
    let tokens: usize = completions
        .iter()
        .flatten()
        .map(|completion| completion.tokens.len())
        .sum();
    tokens as f64 / began.elapsed().as_secs_f64()
}
