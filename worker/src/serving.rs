//! A role as a server: it listens, loads, answers, and ends when it is asked to.

pub mod access;
pub mod auth;
pub mod body;
mod eager;
pub mod error;
pub mod fallback;
pub mod limits;
pub mod listen;
pub mod query;
pub mod room;
pub mod values;

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use axum::Router;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

pub use self::limits::Limits;

use crate::native::process::end;
use crate::native::threads::blocking;

/// Where a role is reached, and what answers there.
pub struct Doors {
    /// The role's own port; every path asks for the token.
    pub api: (TcpListener, Router),
    /// Metrics and probes without a token.
    pub observed: Option<(TcpListener, Router)>,
    /// Bounds of both.
    pub limits: Limits,
}

/// Runs a server until SIGTERM or Ctrl-C, then answers what it has taken. `work` makes its model, while probes are answered
/// already, and returns only when something is wrong ([`load`] for one that needs nothing more).
///
/// # Errors
/// When an address is taken or `work` fails.
pub fn run(
    listen: SocketAddr,
    observe: Option<SocketAddr>,
    limits: Limits,
    routers: (Router, Router),
    work: impl Future<Output = Result<()>>,
) -> Result<()> {
    process(async |shutdown| {
        let observed = match observe {
            Some(address) => Some((bind(address, IS_IT_TAKEN).await?, routers.1)),
            None => None,
        };
        let listener = bind(listen, IS_IT_TAKEN).await?;
        tracing::info!("listening on http://{}", listener.local_addr()?);
        let doors = Doors {
            api: (listener, routers.0),
            observed,
            limits,
        };
        serve(doors, work, shutdown).await
    })
}

/// A launcher that passes signals on sends a single Ctrl-C twice: what comes within this time is the same.
const ONE_PRESS: Duration = Duration::from_secs(1);
/// 128 and the number of the signal, as shells have it.
const INTERRUPTED: u8 = 130;

/// Runs `body` as what the process is there for. It is given what ends at SIGTERM or Ctrl-C. A Ctrl-C after that ends the process at once:
/// who presses it again does not want to wait for what is in flight.
///
/// # Errors
/// Those of `body`, and when there are no threads or signals to be had.
pub fn process<T>(body: impl AsyncFnOnce(Shutdown) -> Result<T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let ended = runtime.block_on(async {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let shutdown = async move {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            let asked = Instant::now();
            tokio::spawn(async move {
                while interrupt.recv().await.is_some() {
                    if asked.elapsed() > ONE_PRESS {
                        end(INTERRUPTED);
                    }
                }
            });
        };
        body(Box::pin(shutdown)).await
    });
    // A model that is still loading would hold the runtime up.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

/// Ends when the process is asked to.
pub type Shutdown = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Loads what is served where blocking is allowed.
///
/// # Errors
/// What `load` says; otherwise it never returns.
pub async fn load(load: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let loaded = blocking(load).await;
    loaded.map_err(|error| anyhow!("loading the model: {error}"))??;
    tracing::info!("the model is loaded");
    std::future::pending().await
}

/// What is said of an address that a server was given by flags of its own.
const IS_IT_TAKEN: &str = "is the port taken?";

/// Listens on `address`.
///
/// # Errors
/// When that cannot be, with `hint`.
pub async fn bind(address: SocketAddr, hint: &str) -> Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener.with_context(|| format!("cannot listen on {address}; {hint}"))
}

/// Serves until `shutdown`, or until `work` fails; it returns only then. Requests in flight have the grace period.
///
/// # Errors
/// What failed in `work`.
pub async fn serve(
    doors: Doors,
    work: impl Future<Output = Result<()>>,
    shutdown: impl Future<Output = ()>,
) -> Result<()> {
    let Doors { api, observed, limits } = doors;
    let (stop, stopped) = watch::channel(false);
    let serving = [Some(api), observed].into_iter().flatten().map(|(listener, router)| {
        let (limits, stopped) = (limits.clone(), stopped.clone());
        tokio::spawn(async move { listen::serve(listener, router, &limits, stopped).await })
    });
    let mut serving: Vec<_> = serving.collect();
    let ended = tokio::select! {
        failed = work => failed,
        () = shutdown => Ok(()),
    };
    let _ = stop.send(true);
    let answered = futures::future::join_all(&mut serving);
    if tokio::time::timeout(limits.shutdown_grace, answered).await.is_err() {
        tracing::warn!("requests that were not answered in time are cut");
        serving.iter().for_each(tokio::task::JoinHandle::abort);
    }
    ended
}
