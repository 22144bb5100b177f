//! `/healthz`, `/readyz` and `/metrics`.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::contract::Contract;
use crate::metrics::Metrics;
use crate::world::World;

/// What the server shows.
#[derive(Clone)]
pub struct Shown {
    /// Counters and gauges.
    pub metrics: Arc<Metrics>,
    /// What is remembered.
    pub world: Arc<World>,
    /// Whether the installed CRD is this operator's.
    pub contract: watch::Receiver<Contract>,
    /// Whether this process waits to lead, or leads with complete caches.
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
/// When the socket fails.
pub async fn serve(listener: TcpListener, shown: Shown) -> anyhow::Result<()> {
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(shown);
    axum::serve(listener, router).await.context("the HTTP server failed")
}

async fn readyz(State(shown): State<Shown>) -> Response {
    let contract = shown.contract.borrow().clone();
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
    shown.metrics.cached(&shown.world.count());
    match shown.metrics.text() {
        Ok(text) => ([("content-type", "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
