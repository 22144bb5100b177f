//! What is asked of vLLM (paths of 0.32 and 0.33: `vllm/entrypoints/rl/online/api_router.py`, `entrypoints/serve/dev/`).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::sync::{RwLock, RwLockReadGuard};

use super::transfer::{Init, UpdateInfo};
use crate::http_client::{UVICORN_IDLE, innermost, refusal};
use crate::serving::error::ApiError;

/// To connect: it is on this machine.
const CONNECT: Duration = Duration::from_secs(5);
/// For an answer that needs no computing.
const SHORT: Duration = Duration::from_secs(10);
/// To describe itself: it looks at its whole machine.
const DESCRIPTION: Duration = Duration::from_secs(120);
/// Tries to empty the prefix cache, and the wait between two.
const RESETS: u32 = 50;
/// See [`RESETS`].
const RESET_PAUSE: Duration = Duration::from_millis(100);

/// Its metrics that move with every pass (`PrometheusStatLogger.record` in `vllm/v1/metrics/loggers.py`), and with nothing else: tokens that
/// were drawn, prompts that were read to their end, and the cache, which fills with each piece of a prompt.
const MOVING: [&str; 3] = [
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:kv_cache_usage_perc",
];

/// A vLLM server on this machine.
#[derive(Clone, Debug)]
pub struct Vllm {
    client: Client,
    address: String,
    /// Written by an update, from its pause to its resume.
    pausing: Arc<RwLock<()>>,
}

impl Vllm {
    /// The server at `host:port`; nothing is asked yet.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn new(address: String) -> reqwest::Result<Self> {
        let client = crate::http_client::builder()
            .connect_timeout(CONNECT)
            .pool_idle_timeout(UVICORN_IDLE)
            .no_proxy()
            .build()?;
        Ok(Self {
            client,
            address,
            pausing: Arc::default(),
        })
    }

    /// `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether its engine lives.
    ///
    /// # Errors
    /// 503 with the cause.
    pub async fn health(&self) -> Result<(), ApiError> {
        self.send(self.request(Method::GET, "/health"), SHORT).await.map(drop)
    }

    /// Its `/metrics`.
    ///
    /// # Errors
    /// When it does not answer within `deadline`; what it says.
    pub async fn metrics(&self, deadline: Duration) -> Result<String, ApiError> {
        let answer = self.send(self.request(Method::GET, "/metrics"), deadline).await?;
        answer.text().await.map_err(|error| self.lost(&error))
    }

    /// How far it has computed, in words that change with every pass. None where it does not tell, as with `--disable-log-stats`.
    ///
    /// # Errors
    /// As [`metrics`](Self::metrics).
    pub async fn progress(&self) -> Result<Option<String>, ApiError> {
        let text = self.metrics(SHORT).await?;
        let moves = |line: &&str| MOVING.iter().any(|name| line.starts_with(name));
        let moving: Vec<&str> = text.lines().filter(moves).collect();
        Ok((!moving.is_empty()).then(|| moving.join("\n")))
    }

    /// Whether it computes nothing as it was told to. Its engine says so, not its server.
    ///
    /// # Errors
    /// 503 when it does not answer.
    pub async fn is_paused(&self) -> Result<bool, ApiError> {
        let answer = self.json(self.request(Method::GET, "/is_paused"), SHORT).await?;
        Ok(answer["is_paused"] == true)
    }

    /// The version of its weights: 0 for those it started with, which it calls `default`.
    ///
    /// # Errors
    /// 503 when it does not answer.
    pub async fn version(&self) -> Result<u64, ApiError> {
        let answer = self.json(self.request(Method::GET, "/weight_info"), SHORT).await?;
        Ok(answer["weight_version"]
            .as_str()
            .and_then(|version| version.parse().ok())
            .unwrap_or(0))
    }

    /// Which release it is.
    ///
    /// # Errors
    /// 503 when it does not answer.
    pub async fn release(&self) -> Result<String, ApiError> {
        let answer = self.json(self.request(Method::GET, "/version"), SHORT).await?;
        Ok(answer["version"].as_str().unwrap_or("of an unknown release").to_owned())
    }

    /// Whether it computes on a CPU, by its own description of itself.
    ///
    /// # Errors
    /// 503 when it does not answer.
    pub async fn is_on_cpu(&self) -> Result<bool, ApiError> {
        let answer = self
            .json(self.request(Method::GET, "/server_info"), DESCRIPTION)
            .await?;
        let config = answer["vllm_config"].as_str().unwrap_or_default();
        Ok(config.contains("device_config=cpu"))
    }

    /// Makes it compute with the weights in `folder`, which are `version`. No request may be in flight. On return its caches
    /// are empty and it generates, unless it was paused before.
    ///
    /// # Errors
    /// When a step failed: some of its weights may be new then.
    pub async fn reload(&self, folder: &Path, version: u64, deadline: Duration) -> Result<(), ApiError> {
        let reloading = async {
            let load =
                json!({"method": "reload_weights", "kwargs": {"weights_path": folder}, "timeout": deadline.as_secs()});
            self.post("/collective_rpc", load, deadline).await?;
            let version = json!({"new_version": version.to_string()});
            self.post("/update_weight_version", version, SHORT).await
        };
        self.paused(version, deadline, reloading).await
    }

    /// Makes it compute with the weights that the actor sends by NCCL at the same time, as [`reload`](Self::reload).
    ///
    /// # Errors
    /// When a step failed: some of its weights may be new then, and it may wait for more.
    pub async fn receive(&self, update: &UpdateInfo, version: u64, deadline: Duration) -> Result<(), ApiError> {
        let receiving = async {
            self.post("/start_weight_update", json!({}), deadline).await?;
            self.post("/update_weights", json!({"update_info": update}), deadline)
                .await?;
            let version = json!({"weight_version": version.to_string()});
            self.post("/finish_weight_update", version, deadline).await
        };
        self.paused(version, deadline, receiving).await
    }

    /// Joins a communicator of NCCL. It comes back when all ranks have come.
    ///
    /// # Errors
    /// What it says.
    pub async fn join(&self, init: &Init, deadline: Duration) -> Result<(), ApiError> {
        let call = self.request(Method::POST, "/init_weight_transfer_engine").json(init);
        self.json(call, deadline).await.map(drop)
    }

    /// Leaves the communicator that it has joined, if any.
    ///
    /// # Errors
    /// What it says.
    pub async fn leave(&self) -> Result<(), ApiError> {
        self.post("/shutdown_weight_transfer_engine", json!({}), SHORT)
            .await
            .map(drop)
    }

    /// Waits until no update has it paused; none begins to while this is held. What a client says of pauses would be undone by an update,
    /// or let vLLM go on in the midst of it.
    pub async fn between_updates(&self) -> RwLockReadGuard<'_, ()> {
        self.pausing.read().await
    }

    /// Pauses it for `change`, which gives it the weights of `version`.
    async fn paused(
        &self,
        version: u64,
        deadline: Duration,
        change: impl Future<Output = Result<Value, ApiError>>,
    ) -> Result<(), ApiError> {
        // No request is in flight, so that a client's pause that began before ends by itself.
        let alone = tokio::time::timeout(deadline, self.pausing.write()).await;
        let _alone = alone.map_err(|_| ApiError::late(deadline))?;
        let was_paused = self.is_paused().await?;
        self.post("/pause?mode=wait", json!({}), deadline).await?;
        change.await?;
        let found = self.version().await?;
        if found != version {
            let words = format!("vLLM says that it has version {found} after it was given {version}");
            return Err(ApiError::internal(words));
        }
        self.reset_prefix_cache().await?;
        if !was_paused {
            self.post("/resume", json!({}), SHORT).await?;
        }
        Ok(())
    }

    /// It refuses while a block is held, as shortly after the last request.
    async fn reset_prefix_cache(&self) -> Result<(), ApiError> {
        for _ in 0..RESETS {
            if self.post("/reset_prefix_cache", json!({}), SHORT).await?["success"] == true {
                return Ok(());
            }
            tokio::time::sleep(RESET_PAUSE).await;
        }
        Err(ApiError::internal(
            "vLLM does not empty its prefix cache: it would go on from keys and values of old weights",
        ))
    }

    async fn post(&self, path: &str, body: Value, deadline: Duration) -> Result<Value, ApiError> {
        self.json(self.request(Method::POST, path).json(&body), deadline).await
    }

    /// A request, without anything of the caller's.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://{}{path}", self.address))
    }

    /// Sends a request and reads JSON.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn json(&self, call: RequestBuilder, deadline: Duration) -> Result<Value, ApiError> {
        let answer = self.send(call, deadline).await?;
        let body = answer.bytes().await.map_err(|error| self.lost(&error))?;
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&body).map_err(|error| ApiError::internal(format!("vLLM's answer is no JSON: {error}")))
    }

    /// Sends a request.
    ///
    /// # Errors
    /// 503 when there is no answer within `deadline`; else what vLLM says.
    pub async fn send(&self, call: RequestBuilder, deadline: Duration) -> Result<Response, ApiError> {
        let answer = call.timeout(deadline).send().await.map_err(|error| self.lost(&error))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let words = refusal(answer).await;
        let status = StatusCode::from_u16(status.as_u16()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Err(ApiError::new(status, format!("vLLM: {words}")))
    }

    fn lost(&self, error: &reqwest::Error) -> ApiError {
        ApiError::unavailable(format!(
            "vLLM at {} does not answer: {}",
            self.address,
            innermost(error)
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::Router;
    use axum::extract::ConnectInfo;
    use parking_lot::Mutex;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_connection_is_not_used_again_where_vllm_may_be_about_to_close_it() {
        let peers: Arc<Mutex<Vec<SocketAddr>>> = Arc::default();
        let noted = peers.clone();
        let answer = async move |ConnectInfo(peer): ConnectInfo<SocketAddr>| noted.lock().push(peer);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let vllm = Vllm::new(listener.local_addr().unwrap().to_string()).unwrap();
        let router = Router::new().fallback(answer);
        let serving = axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>());
        tokio::spawn(serving.into_future());
        vllm.health().await.unwrap();
        tokio::time::sleep(UVICORN_IDLE + Duration::from_millis(100)).await;
        vllm.health().await.unwrap();
        let peers = peers.lock();
        assert_eq!(peers.len(), 2);
        assert_ne!(peers[0], peers[1]);
    }
}
