//! `ppo-worker reference`: what the reference's pod runs.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use ppo_crds::RunConfig;
use ppo_crds::pod::port;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::router::{self, Service};
use super::scorer::Scorer;
use crate::local;
use crate::manifest::Invalid;
use crate::place::Place;
use crate::rollout::{Limits, listen};

/// Tokens of one request at the most: a forward pass of more would not fit anyway.
const REQUEST_TOKENS: usize = 4 << 20;

/// Arguments of `ppo-worker reference`; the operator's environment says the rest.
#[derive(Debug, Args)]
pub struct ReferenceArgs {
    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value_t = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port::HTTP)))]
    listen: SocketAddr,
    /// Where /metrics, /healthz and /readyz are served without a token.
    #[arg(long, value_name = "ADDRESS", default_value_t = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port::METRICS)))]
    metrics_addr: SocketAddr,
}

/// Serves until SIGTERM or Ctrl-C, then answers what it has taken.
///
/// # Errors
/// When the model cannot be loaded, or an address is taken.
pub fn main(args: &ReferenceArgs) -> Result<()> {
    let place = Place::read()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let ended = runtime.block_on(serve(args, place));
    // A model that is still loading would hold the runtime up.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

async fn serve(args: &ReferenceArgs, place: Place) -> Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let limits = Limits::default();
    let service = Service::new(&place.job, &place.peers.token, &limits)?;
    let (stop, stopped) = watch::channel(false);
    let serving = [
        (bind(args.listen).await?, router::api(service.clone())),
        (bind(args.metrics_addr).await?, router::observed(service.clone())),
    ]
    .map(|(listener, router)| {
        let (limits, stopped) = (limits.clone(), stopped.clone());
        tokio::spawn(async move { listen::serve(listener, router, &limits, stopped).await })
    });
    let loading = async {
        let config = place.config;
        let scorer = tokio::task::spawn_blocking(move || load(&config)).await;
        service.ready(scorer.map_err(|error| anyhow!("loading the model: {error}"))??);
        tracing::info!("the reference answers on {}", args.listen);
        std::future::pending::<Result<()>>().await
    };
    let ended = tokio::select! {
        failed = loading => failed,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    let _ = stop.send(true);
    let answered = futures::future::join_all(serving);
    if tokio::time::timeout(limits.shutdown_grace, answered).await.is_err() {
        tracing::warn!("requests that were not computed in time are cut");
    }
    ended
}

async fn bind(address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener.with_context(|| format!("cannot listen on {address}; is the port taken?"))
}

fn load(config: &RunConfig) -> Result<Scorer> {
    let Some(location) = &config.model.reference else {
        let words = "this run has no reference: algorithm.kl.coef is 0";
        return Err(Invalid::new(words.into()).into());
    };
    let decoder = local::reference(location, local::kind(config.model.dtype))?;
    Scorer::start(decoder, REQUEST_TOKENS)
}
