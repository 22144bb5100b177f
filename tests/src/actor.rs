//! The report endpoint of an actor, on an address of its own, with what the test makes it say.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use ppo_crds::pod::port;
use ppo_crds::report::Report;
use rand::Rng;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::Namespace;

type Said = Arc<Mutex<Option<Report>>>;

/// An actor's report endpoint. It is silent until it is told what to say.
pub struct Actor {
    said: Said,
    server: JoinHandle<()>,
}

impl Actor {
    /// Opens the endpoint on a fresh loopback address and makes that the pod's address.
    ///
    /// # Errors
    /// When the port cannot be bound or the pod is not there.
    pub async fn behind(namespace: &Namespace<'_>, pod: &str) -> Result<Self> {
        let [a, b, c] = rand::rng().random::<[u8; 3]>();
        let ip = Ipv4Addr::new(127, a, b, c.clamp(2, 254));
        let address = SocketAddr::from((ip, port::METRICS));
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address}"))?;
        let said = Said::default();
        let router = Router::new().route("/report", get(report)).with_state(said.clone());
        let server = tokio::spawn(async move {
            // It ends with the test.
            let _ = axum::serve(listener, router).await;
        });
        let status = json!({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}});
        let pods = namespace.pods();
        pods.patch_status(pod, &PatchParams::default(), &Patch::Merge(&status))
            .await?;
        Ok(Self { said, server })
    }

    /// What it says from now on; None: nothing.
    pub fn say(&self, report: Option<Report>) {
        *self.said.lock() = report;
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn report(State(said): State<Said>) -> Response {
    match said.lock().clone() {
        Some(report) => Json(report).into_response(),
        None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}
