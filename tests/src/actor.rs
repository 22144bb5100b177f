//! The report endpoint of an actor, on an address of its own, with what the test makes it say.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
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

use crate::{Namespace, PATIENCE, wait_for};

/// What is said, and how often that was asked for.
#[derive(Default)]
struct Words {
    said: Mutex<Option<Report>>,
    asked: AtomicUsize,
}

/// An actor's report endpoint. It is silent until it is told what to say.
pub struct Actor {
    words: Arc<Words>,
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
        let words = Arc::<Words>::default();
        let router = Router::new().route("/report", get(report)).with_state(words.clone());
        let server = tokio::spawn(async move {
            // It ends with the test.
            let _ = axum::serve(listener, router).await;
        });
        let status = json!({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}});
        let pods = namespace.pods();
        pods.patch_status(pod, &PatchParams::default(), &Patch::Merge(&status))
            .await?;
        Ok(Self { words, server })
    }

    /// What it says from now on; None: nothing.
    pub fn say(&self, report: Option<Report>) {
        *self.words.said.lock() = report;
    }

    /// Waits until what it says was heard: who asks once more is done with the answer before.
    ///
    /// # Errors
    /// When nobody asks.
    pub async fn is_heard(&self) -> Result<()> {
        let before = self.words.asked.load(Ordering::SeqCst);
        wait_for("the actor to be heard", PATIENCE, async || {
            let asked = self.words.asked.load(Ordering::SeqCst) - before;
            ensure!(asked >= 2, "it was asked {asked} times");
            Ok(())
        })
        .await
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn report(State(words): State<Arc<Words>>) -> Response {
    words.asked.fetch_add(1, Ordering::SeqCst);
    match words.said.lock().clone() {
        Some(report) => Json(report).into_response(),
        None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}
