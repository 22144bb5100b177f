//! What every request at the door sees.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex as SyncMutex, OnceLock, PoisonError};

use axum::http::StatusCode;
use tokio::sync::{Mutex, OwnedRwLockReadGuard, RwLock, watch};

use super::abort::Names;
use super::client::Vllm;
use crate::model::ModelConfig;
use crate::rollout::auth::Door;
use crate::rollout::body::Bodies;
use crate::rollout::error::ApiError;
use crate::rollout::limits::Limits;
use crate::rollout::settings::{Settings, VllmSettings};

/// The door's state; clones are the same one.
#[derive(Clone)]
pub struct Service(Arc<Shared>);

/// See [`Service`].
pub struct Shared {
    /// Who may call.
    pub door: Door,
    /// Bounds.
    pub limits: Limits,
    /// Bodies that are being read.
    pub bodies: Bodies,
    /// The server behind the door.
    pub vllm: Vllm,
    /// Requests under way, by name.
    pub names: Names,
    /// Where new weights are written for vLLM to read.
    pub folder: PathBuf,
    /// Counts folders of weights: a version may come twice.
    pub folders: AtomicU64,
    /// Held while weights are received and loaded.
    pub updating: Arc<Mutex<()>>,
    /// The communicator that vLLM has joined, by its id.
    joined: SyncMutex<Option<String>>,
    /// Why the door has to end.
    end: watch::Sender<Option<String>>,
    /// The policy's shape; set once vLLM is up.
    model: OnceLock<ModelConfig>,
    /// The version that vLLM has; None after an update that failed half-way.
    version: Arc<RwLock<Option<u64>>>,
}

/// The version that a request is generated with; while this lives no other is loaded.
pub type Version = OwnedRwLockReadGuard<Option<u64>>;

impl std::ops::Deref for Service {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Service {
    /// A door that lets nobody in yet.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn new(settings: &Settings, vllm: VllmSettings) -> reqwest::Result<Self> {
        Ok(Self(Arc::new(Shared {
            door: Door::new(settings.token.as_deref(), settings.open_metrics).at(settings.address.ip()),
            limits: settings.limits.clone(),
            bodies: Bodies::new(settings.limits.clone()),
            vllm: Vllm::new(vllm.address)?,
            names: Names::default(),
            folder: vllm.folder,
            folders: AtomicU64::new(0),
            updating: Arc::default(),
            joined: SyncMutex::default(),
            end: watch::Sender::default(),
            model: OnceLock::new(),
            version: Arc::default(),
        })))
    }

    /// Lets requests in: vLLM is up with `version` of `model`.
    pub async fn ready(&self, model: ModelConfig, version: u64) {
        *self.version.write().await = Some(version);
        if self.model.set(model).is_err() {
            tracing::error!("a model is served already; the second is not taken");
        }
    }

    /// The policy's shape.
    ///
    /// # Errors
    /// 503 until vLLM is up: nothing is let in before.
    pub fn model(&self) -> Result<&ModelConfig, ApiError> {
        let starting = || ApiError::unavailable(format!("vLLM at {} is still starting", self.vllm.address()));
        self.0.model.get().ok_or_else(starting)
    }

    /// Holds the version for a request. Waits while weights are loaded.
    ///
    /// # Errors
    /// 503 when vLLM's weights are in doubt.
    pub async fn hold(&self) -> Result<(Version, u64), ApiError> {
        let held = self.version.clone().read_owned().await;
        let version = held.ok_or_else(|| {
            ApiError::unavailable("an update of vLLM's weights failed half-way: this door ends, and vLLM with it")
        })?;
        Ok((held, version))
    }

    /// The version, unless it is being changed or in doubt.
    pub fn version(&self) -> Option<u64> {
        self.version.try_read().ok().and_then(|version| *version)
    }

    /// Whether vLLM has joined the communicator of that id.
    pub fn has_joined(&self, id: &str) -> bool {
        let joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        joined.as_deref() == Some(id)
    }

    /// Notes which communicator vLLM has joined.
    pub fn set_joined(&self, id: Option<String>) {
        *self.joined.lock().unwrap_or_else(PoisonError::into_inner) = id;
    }

    /// Lets the door end, and so the pod: vLLM is in a state that it may not leave.
    pub fn end(&self, words: String) {
        self.end.send_replace(Some(words));
    }

    /// Waits until the door [has to end](Self::end); why.
    pub async fn ended(&self) -> String {
        let mut end = self.end.subscribe();
        let words = end.wait_for(Option::is_some).await;
        // The sender lives as long as the service.
        words.ok().and_then(|words| words.clone()).unwrap_or_default()
    }

    /// Runs `change` unless another update runs. A caller that goes does not cut it short: there is no way back.
    ///
    /// # Errors
    /// 409 while another update runs; what `change` says.
    pub async fn alone<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, ApiError>> + Send + 'static,
    ) -> Result<T, ApiError> {
        let service = self.clone();
        let running = async move {
            let Ok(_alone) = service.updating.try_lock() else {
                return Err(ApiError::updating());
            };
            change.await
        };
        tokio::spawn(running).await.map_err(ApiError::internal)?
    }

    /// Changes the version once no request is in flight; new ones wait. It is None while `change` runs, and after it failed.
    ///
    /// # Errors
    /// 504 when requests are still in flight after the limit of an update; what `change` says.
    pub async fn change(
        &self,
        version: u64,
        change: impl Future<Output = Result<(), ApiError>>,
    ) -> Result<(), ApiError> {
        let limit = self.limits.update_timeout;
        let held = tokio::time::timeout(limit, self.version.write()).await;
        let mut held = held.map_err(|_| {
            let words = format!(
                "requests were still in flight after {} s; the old weights stay",
                limit.as_secs_f64()
            );
            ApiError::new(StatusCode::GATEWAY_TIMEOUT, words)
        })?;
        *held = None;
        change.await?;
        *held = Some(version);
        Ok(())
    }
}
