//! `/healthz`, `/readyz` and `/metrics`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::context::Context;
use crate::contract::Contract;

/// Connections at once: many more than Prometheus and the kubelet have.
const CONNECTIONS: usize = 128;
/// For a connection, from its beginning to the last byte of its one answer.
const DEADLINE: Duration = Duration::from_secs(30);
/// After an accept that failed, as when there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the server shows.
#[derive(Clone)]
pub struct Shown {
    /// What the operator knows.
    pub context: Arc<Context>,
    /// Whether this process waits to lead, or leads with complete caches, but for those that were told of as late.
    pub ready: watch::Receiver<bool>,
}

/// Binds the address.
///
/// # Errors
/// When it is taken or not this machine's.
pub async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}; choose another --http-address"))
}

/// Serves until it is dropped.
///
/// # Errors
/// None: a connection that cannot be accepted is left, and the next one waited for.
pub async fn serve(listener: TcpListener, shown: Shown) -> anyhow::Result<()> {
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(shown);
    match accept(listener, router, CONNECTIONS, DEADLINE).await {}
}

/// Answers one request on each connection. Who says nothing, or reads nothing, holds its place no longer than `deadline`.
async fn accept(listener: TcpListener, router: Router, connections: usize, deadline: Duration) -> Infallible {
    let room = Arc::new(Semaphore::new(connections));
    let mut serving = JoinSet::new();
    loop {
        // The semaphore is never closed.
        let permit = room.clone().acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let service = TowerToHyperService::new(router.clone());
                let served = http1::Builder::new()
                    .keep_alive(false)
                    .serve_connection(TokioIo::new(stream), service);
                serving.spawn(async move {
                    // A client that breaks the rules, goes or is too slow is its own affair.
                    let _ = timeout(deadline, served).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
        while serving.try_join_next().is_some() {}
    }
}

async fn readyz(State(shown): State<Shown>) -> Response {
    let contract = shown.context.contract.borrow().clone();
    match contract {
        Contract::Differs(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
        Contract::Unknown => (StatusCode::SERVICE_UNAVAILABLE, "the CRD was not read yet\n").into_response(),
        Contract::Same if !*shown.ready.borrow() => {
            (StatusCode::SERVICE_UNAVAILABLE, "caches are not complete yet\n").into_response()
        }
        Contract::Same => "ok\n".into_response(),
    }
}

async fn metrics(State(shown): State<Shown>) -> Response {
    match shown.context.scrape() {
        Ok(text) => ([("content-type", "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn a_connection_that_says_nothing_gives_its_place_to_the_next() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/healthz", get(|| async { "ok\n" }));
        tokio::spawn(accept(listener, router, 1, Duration::from_secs(2)));
        let mut silent = TcpStream::connect(address).await.unwrap();
        for _ in 0..2 {
            let mut asks = TcpStream::connect(address).await.unwrap();
            let request = b"GET /healthz HTTP/1.1\r\nhost: operator\r\n\r\n";
            asks.write_all(request).await.unwrap();
            let mut answer = String::new();
            asks.read_to_string(&mut answer).await.unwrap();
            assert!(
                answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok\n"),
                "{answer}"
            );
        }
        assert_eq!(silent.read(&mut [0; 1]).await.unwrap(), 0);
    }
}
