//! What every request of a server sees. It starts without a model, so that probes are answered while one loads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex as SyncMutex;

use super::inflight::InFlight;
use super::listing::Listing;
use super::metrics::Metrics;
use super::model::Model;
use super::settings::Settings;
use super::unread::Unread;
use super::updates::Updates;
use super::weights::LoadedWeights;
use super::weights::attempt::{NewestAttempt, PolicyVersion};
use crate::serving::auth::Door;
use crate::serving::body::Bodies;
use crate::serving::error::ApiError;
use crate::serving::limits::Limits;
use crate::tokenizer::Encoding;

/// A server's state; clones are the same one.
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
    /// Texts that are made token ids.
    pub encoding: Encoding,
    /// Requests that have no answer yet, by name.
    pub in_flight: InFlight,
    /// Log-probabilities of answers that are being written.
    pub listing: Listing,
    /// Room for answers that are on their way.
    pub unread: Unread,
    /// What `/metrics` shows.
    pub metrics: Metrics,
    /// Whether new weights are on their way.
    pub updates: Updates,
    /// The weights that the engine was given last. None: none yet, or others take their place at this moment.
    given: SyncMutex<Option<LoadedWeights>>,
    /// Of the actor, which gives them.
    pub newest_attempt: NewestAttempt,
    started: u64,
    model: OnceLock<Model>,
    /// Held while a pause or its end is noted and told to the engine.
    pausing: SyncMutex<()>,
    paused: AtomicBool,
    closed: AtomicBool,
    stopping: AtomicBool,
}

impl std::ops::Deref for Service {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Service {
    /// A service without a model: what needs one answers 503.
    ///
    /// # Errors
    /// When a metric's name is not one Prometheus takes.
    pub fn new(settings: &Settings) -> anyhow::Result<Self> {
        let limits = settings.limits.clone();
        Ok(Self(Arc::new(Shared {
            door: Door::new(settings.token.as_deref(), settings.open_metrics).at(settings.address.ip()),
            bodies: Bodies::new(limits.clone()),
            encoding: Encoding::default(),
            in_flight: InFlight::new(limits.samples),
            listing: Listing::new(limits.listed),
            unread: Unread::new(limits.unread_bytes),
            metrics: Metrics::new(&settings.model.served_name)?,
            updates: Updates::default(),
            given: SyncMutex::default(),
            newest_attempt: NewestAttempt::default(),
            limits,
            started: super::response::now(),
            model: OnceLock::new(),
            pausing: SyncMutex::default(),
            paused: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        })))
    }

    /// Serves `model` from now on. A second model is not taken.
    pub fn ready(&self, model: Model) {
        self.metrics.time_tokens(&model.engine);
        if self.0.model.set(model).is_err() {
            tracing::error!("a model is served already; the second is not taken");
        }
    }

    /// The model.
    ///
    /// # Errors
    /// 503 while it loads, and when its engine has failed.
    pub fn model(&self) -> Result<&Model, ApiError> {
        let Some(model) = self.0.model.get() else {
            return Err(ApiError::unavailable("the model is still loading"));
        };
        match model.engine.failure() {
            None => Ok(model),
            Some(failure) => Err(ApiError::unavailable(failure.to_string())),
        }
    }

    /// Whether the engine lives, or is still being made.
    ///
    /// # Errors
    /// 503 with the cause once it is over.
    pub fn alive(&self) -> Result<(), ApiError> {
        let failure = self.0.model.get().and_then(|model| model.engine.failure());
        failure.map_or(Ok(()), |failure| Err(ApiError::unavailable(failure.to_string())))
    }

    /// When the server started, seconds since 1970.
    pub fn started(&self) -> u64 {
        self.0.started
    }

    /// The model, if requests are let in.
    ///
    /// # Errors
    /// As [`model`](Self::model), and 503 while paused or stopping.
    pub fn admit(&self) -> Result<&Model, ApiError> {
        if self.is_stopping() {
            return Err(ApiError::unavailable("this server is shutting down: ask another one"));
        }
        if self.0.closed.load(Ordering::Acquire) {
            return Err(ApiError::unavailable("generation is paused: try again after /resume"));
        }
        self.model()
    }

    /// The weights that the engine, which says that it has `version`, has.
    pub fn weights(&self, version: u64) -> LoadedWeights {
        let given = self.0.given.lock();
        // It may have others since.
        let given = given.as_ref().filter(|given| given.is_version(version));
        given
            .cloned()
            .unwrap_or_else(|| LoadedWeights::of(PolicyVersion { attempt: None, version }))
    }

    /// Notes which weights the engine was given; None while it swaps.
    pub fn note_given(&self, weights: Option<LoadedWeights>) {
        *self.0.given.lock() = weights;
    }

    /// Notes a pause, of which `closed` ones refuse new requests, or its end, and tells the engine by `tell`. Both hear of several in the
    /// same order, whoever calls.
    pub fn set_paused<T>(&self, paused: bool, closed: bool, tell: impl FnOnce() -> T) -> T {
        let _order = self.0.pausing.lock();
        self.0.paused.store(paused, Ordering::Release);
        self.0.closed.store(closed, Ordering::Release);
        tell()
    }

    /// Whether generation is paused.
    pub fn is_paused(&self) -> bool {
        self.0.paused.load(Ordering::Acquire)
    }

    /// From now on requests are refused.
    pub fn stop(&self) {
        self.0.stopping.store(true, Ordering::Release);
    }

    /// Whether the server ends.
    pub fn is_stopping(&self) -> bool {
        self.0.stopping.load(Ordering::Acquire)
    }
}
