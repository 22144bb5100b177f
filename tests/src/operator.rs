//! The operator, in the test's own process: the same code as the binary's, on one namespace.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kube::Client;
use ppo_operator::run::{Options, run};
use ppo_operator::settings::PodSettings;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing_subscriber::EnvFilter;

use crate::ports::free_ports;
use crate::{Namespace, PATIENCE, wait_for};

/// For a clean stop.
const STOP_DEADLINE: Duration = Duration::from_secs(20);

/// For one reconcile: longer than any takes, and short enough to wait for.
const RECONCILE_DEADLINE: Duration = Duration::from_secs(10);

/// A running operator. Dropped, it is gone at once, as if its process had been killed.
pub struct Operator {
    /// Where it serves its metrics.
    pub address: SocketAddr,
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<()>>,
}

impl Operator {
    /// Starts one that looks after `namespace` alone, through that namespace's client.
    pub fn start(namespace: &Namespace<'_>) -> Self {
        Self::start_with(namespace.client.clone(), Self::options(namespace))
    }

    /// What [`Self::start`] starts it with.
    pub fn options(namespace: &Namespace<'_>) -> Options {
        // Port 0, when no free one is found, is as good for all but a test that reads the metrics.
        let [port] = free_ports().unwrap_or_default();
        Options {
            namespaces: vec![namespace.name.clone()],
            http_address: SocketAddr::from(([127, 0, 0, 1], port)),
            concurrency: 4,
            report_interval: Duration::from_millis(200),
            reconcile_deadline: RECONCILE_DEADLINE,
            lease: None,
            identity: "test".into(),
            pods: PodSettings::default(),
        }
    }

    /// Starts one with a client and options of one's own.
    pub fn start_with(client: Client, options: Options) -> Self {
        show_log();
        let (stop, stopped) = watch::channel(false);
        let address = options.http_address;
        let task = tokio::spawn(async {
            let ended = run(client, options, stopped).await;
            if let Err(error) = &ended {
                tracing::error!("the operator ended: {error:#}");
            }
            ended
        });
        Self { address, stop, task }
    }

    /// Its metrics, in Prometheus' text format.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn metrics(&self) -> Result<String> {
        let answer = reqwest::get(format!("http://{}/metrics", self.address)).await?;
        Ok(answer.error_for_status()?.text().await?)
    }

    /// Waits until it has looked at a job and is done with it.
    ///
    /// # Errors
    /// At the deadline: its metrics.
    pub async fn has_looked(&self) -> Result<()> {
        wait_for("the operator to look at a job", PATIENCE, async || {
            let metrics = self.metrics().await?;
            let count = "ppo_operator_reconciles_total{result=\"ok\"} ";
            let looks = metrics.lines().find_map(|line| line.strip_prefix(count));
            ensure!(looks.is_some_and(|looks| looks != "0"), "{metrics}");
            Ok(())
        })
        .await
    }

    /// Asks it to stop, as SIGTERM does, and waits for its end.
    ///
    /// # Errors
    /// What it ended with, or that it did not.
    pub async fn stop(mut self) -> Result<()> {
        self.stop.send_replace(true);
        match tokio::time::timeout(STOP_DEADLINE, &mut self.task).await {
            Ok(ended) => ended.context("the operator panicked")?,
            Err(_) => bail!("the operator did not stop within {} s", STOP_DEADLINE.as_secs()),
        }
    }

    /// Kills it between two instructions.
    pub async fn kill(mut self) {
        self.task.abort();
        // Its tasks are gone once it has been awaited.
        let _ = (&mut self.task).await;
    }
}

/// The operator's log goes to the failing test's output; `RUST_LOG` says how much of it.
fn show_log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn,ppo_operator=info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer();
    // Another test of the process was first.
    let _ = log.try_init();
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.task.abort();
    }
}
