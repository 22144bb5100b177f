//! What every request at the door sees.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use axum::http::StatusCode;
use parking_lot::Mutex as SyncMutex;
use tokio::sync::{OwnedRwLockReadGuard, RwLock, watch};

use super::abort::Names;
use super::client::Vllm;
use super::room::Room;
use crate::model::ModelConfig;
use crate::rollout::inflight::InFlight;
use crate::rollout::listing::Listing;
use crate::rollout::settings::{Settings, VllmSettings};
use crate::rollout::updates::Updates;
use crate::rollout::weights::attempt::{NewestAttempt, PolicyVersion};
use crate::serving::auth::Door;
use crate::serving::body::Bodies;
use crate::serving::error::ApiError;
use crate::serving::limits::Limits;

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
    /// Samples that wait or run.
    pub in_flight: InFlight,
    /// Questions that vLLM has.
    pub room: Room,
    /// Log-probabilities of answers that are not written yet.
    pub listing: Listing,
    /// Requests under way, by name.
    pub names: Names,
    /// Where new weights are written for vLLM to read.
    pub folder: PathBuf,
    /// Counts folders of weights: a version may come twice.
    pub folders: AtomicU64,
    /// Whether weights are received and loaded.
    pub updates: Updates,
    /// Of the actor, which gives them.
    pub newest_attempt: NewestAttempt,
    /// The communicator that vLLM has joined, by its id.
    joined: SyncMutex<Option<String>>,
    /// Why the door has to end.
    end: watch::Sender<Option<String>>,
    /// The policy's shape; set once vLLM is up.
    model: OnceLock<ModelConfig>,
    /// Which weights vLLM has; None after an update that failed half-way.
    held: Arc<RwLock<Option<PolicyVersion>>>,
}

/// The weights that a request is generated with; while this lives no others are loaded.
pub type Held = OwnedRwLockReadGuard<Option<PolicyVersion>>;

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
            in_flight: InFlight::new(settings.limits.samples),
            room: Room::new(&settings.limits, settings.model.rollout.max_sequences),
            listing: Listing::new(settings.limits.listed),
            names: Names::default(),
            folder: vllm.folder,
            folders: AtomicU64::new(0),
            updates: Updates::default(),
            newest_attempt: NewestAttempt::default(),
            joined: SyncMutex::default(),
            end: watch::Sender::default(),
            model: OnceLock::new(),
            held: Arc::default(),
        })))
    }

    /// Lets requests in: vLLM is up with `version` of `model`, which this door has not given it.
    pub async fn ready(&self, model: ModelConfig, version: u64) {
        *self.held.write().await = Some(PolicyVersion { attempt: None, version });
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

    /// Holds the weights for a request, and says which they are. Waits while others are loaded.
    ///
    /// # Errors
    /// 503 when vLLM's weights are in doubt.
    pub async fn hold(&self) -> Result<(Held, PolicyVersion), ApiError> {
        let held = self.held.clone().read_owned().await;
        let policy = held.ok_or_else(|| {
            ApiError::unavailable("an update of vLLM's weights failed half-way: this door ends, and vLLM with it")
        })?;
        Ok((held, policy))
    }

    /// Which weights vLLM has, unless they are being changed or in doubt.
    pub fn held(&self) -> Option<PolicyVersion> {
        self.held.try_read().ok().and_then(|held| *held)
    }

    /// Whether vLLM has joined the communicator of that id.
    pub fn has_joined(&self, id: &str) -> bool {
        let joined = self.joined.lock();
        joined.as_deref() == Some(id)
    }

    /// Notes which communicator vLLM has joined.
    pub fn set_joined(&self, id: Option<String>) {
        *self.joined.lock() = id;
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
            let _update = service.updates.begin()?;
            change.await
        };
        tokio::spawn(running).await.map_err(ApiError::internal)?
    }

    /// Gives vLLM the weights `policy` once no request is in flight; new ones wait. It has none while `change` runs, and after it failed.
    ///
    /// # Errors
    /// 504 when requests are still in flight after the limit of an update; what `change` says.
    pub async fn change(
        &self,
        policy: PolicyVersion,
        change: impl Future<Output = Result<(), ApiError>>,
    ) -> Result<(), ApiError> {
        let limit = self.limits.update_timeout;
        let held = tokio::time::timeout(limit, self.held.write()).await;
        let mut held = held.map_err(|_| {
            let words = format!(
                "requests were still in flight after {} s; the old weights stay",
                limit.as_secs_f64()
            );
            ApiError::new(StatusCode::GATEWAY_TIMEOUT, words)
        })?;
        *held = None;
        change.await?;
        *held = Some(policy);
        Ok(())
    }
}
