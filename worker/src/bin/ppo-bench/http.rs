//! `ppo-bench http`: the engine through the rollout server and the trainer's client over loopback, in turns with the engine
//! alone. Client and server share the machine, as a job's pods on one node do.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use futures::future::try_join_all;
use ppo_crds::run_config::Location;
use ppo_worker::engine::{Completion, Engine, Request};
use ppo_worker::roles::{Caller, Endpoint, Member};
use ppo_worker::rollout::{Limits, Model, ModelSettings, Service, Settings, listen, router};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use super::workload::{DEADLINE, Workload, first, median};

/// The token of server and client.
const TOKEN: &str = "bench";

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
    let server = Server::start(&args.workload)?;
    for &batch in &args.batch {
        let requests = Arc::new(first(&requests, batch)?);
        let (mut alone, mut through) = (Vec::new(), Vec::new());
        for run in 0..=args.runs {
            let rates = (server.alone(&requests)?, server.through(&requests)?);
            // The first warms up.
            if run > 0 {
                alone.push(rates.0);
                through.push(rates.1);
            }
        }
        let (alone, through) = (median(&mut alone), median(&mut through));
        let figures = json!({
            "batch": batch,
            "in_process_tokens_per_s": alone,
            "http_tokens_per_s": through,
            "ratio": through / alone,
            "runs": args.runs,
        });
        println!("{figures}");
    }
    Ok(())
}

/// A rollout server, and its engine.
struct Server {
    engine: Engine,
    endpoint: Endpoint,
    /// Of the client; the server's is beside it.
    runtime: Runtime,
    _serving: Runtime,
    _stop: watch::Sender<bool>,
}

impl Server {
    fn start(workload: &Workload) -> Result<Self> {
        let runtime = || Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let (serving, runtime) = (runtime()?, runtime()?);
        let mut model = ModelSettings::alone(Location::Path(workload.model.clone()), "bench".into());
        model.dtype = Some(workload.dtype());
        let listener = serving.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        let settings = Settings {
            address,
            metrics_address: None,
            token: Some(TOKEN.into()),
            open_metrics: false,
            model,
            limits: Limits::default(),
            actor: None,
            vllm: None,
        };
        let service = Service::new(&settings)?;
        let model = Model::load(&settings.model)?;
        let engine = model.engine.clone();
        service.ready(model);
        let (stop, stopped) = watch::channel(false);
        let router = router::api(service);
        serving.spawn(async move { listen::serve(listener, router, &settings.limits, stopped).await });
        let member = Member {
            name: address.to_string(),
            address: address.to_string(),
        };
        Ok(Self {
            engine,
            endpoint: Endpoint::new(member, Caller::new(TOKEN.into())?),
            runtime,
            _serving: serving,
            _stop: stop,
        })
    }

    /// Tokens per second of the engine alone.
    fn alone(&self, requests: &[Request]) -> Result<f64> {
        let began = Instant::now();
        let completions = self.engine.generate(requests.to_vec(), DEADLINE)?;
        Ok(rate(&completions, began))
    }

    /// Tokens per second through HTTP, each prompt as a request of its own, as the trainer asks.
    fn through(&self, requests: &[Request]) -> Result<f64> {
        let began = Instant::now();
        let calls = requests
            .iter()
            .map(|request| self.endpoint.generate("bench", request, DEADLINE));
        let completions = self.runtime.block_on(try_join_all(calls)).context("through HTTP")?;
        Ok(rate(&completions, began))
    }
}

fn rate(completions: &[Vec<Completion>], began: Instant) -> f64 {
    let tokens: usize = completions
        .iter()
        .flatten()
        .map(|completion| completion.tokens.len())
        .sum();
    tokens as f64 / began.elapsed().as_secs_f64()
}
