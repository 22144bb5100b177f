//! New weights for a running engine: from a folder, or streamed in one body. Everything is checked before the engine sees
//! any of it, and it takes them between two passes; a failure leaves the old ones.

pub mod attempt;
pub mod delta;
pub mod folder;
pub mod frame;
pub mod incoming;
pub mod source;
pub mod upload;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use futures::Stream;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use self::attempt::PolicyVersion;
use self::incoming::most_bytes;
use super::follow::Follower;
use super::service::Service;
use super::updates::Update;
use crate::engine::staging::NewWeights;
use crate::model::digest::Hash;
use crate::serving::body::{self, Object};
use crate::serving::error::ApiError;
use crate::serving::query::Query;
use crate::serving::values::wrong;

/// What the engine has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadedWeights {
    /// The policy version.
    pub weight_version: String,
    /// The actor's attempt that gave it them; absent for those that it started with, and where whoever gave them said none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// [`digest`](crate::model::digest::digest) of the tensors, as they were streamed or as the engine has them; of weights that came as a [delta],
    /// [`digest_after`](delta::digest_after) it. Absent for those that it started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Whether it takes the next version as a [delta] from these.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub takes_delta: bool,
}

impl LoadedWeights {
    /// Weights of which no digest is known.
    pub fn of(weights: PolicyVersion) -> Self {
        Self {
            weight_version: weights.version.to_string(),
            attempt: weights.attempt,
            digest: None,
            takes_delta: false,
        }
    }

    /// Which they are.
    ///
    /// # Errors
    /// What is said of the version when it is no whole number.
    pub fn policy(&self) -> Result<PolicyVersion, String> {
        let version = self.weight_version.parse();
        Ok(PolicyVersion {
            attempt: self.attempt,
            version: version.map_err(|_| format!("{:?} is no version", self.weight_version))?,
        })
    }

    /// Whether they are of that policy version.
    pub fn is_version(&self, version: u64) -> bool {
        self.policy().is_ok_and(|policy| policy.version == version)
    }
}

/// A version as vLLM writes it: a text. Ours are numbers of completed steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    /// As a number.
    Number(u64),
    /// As text.
    Text(String),
}

// By hand: the error of an untagged enum names neither the field nor what fits.
impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let read = match &value {
            Value::String(text) => Some(Self::Text(text.clone())),
            other => other.as_u64().map(Self::Number),
        };
        read.ok_or_else(|| wrong("weight_version", &value, "a whole number, as a number or as text"))
    }
}

impl Version {
    /// # Errors
    /// 400 when it is no whole number.
    pub fn number(&self) -> Result<u64, ApiError> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Text(text) => text.parse().map_err(|_| {
                ApiError::field(
                    "weight_version",
                    format!("{text:?} is no policy version: want a whole number"),
                )
            }),
        }
    }
}

/// Query of an update.
#[derive(Debug, Default, Deserialize)]
pub struct UploadQuery {
    /// Of a stream.
    weight_version: Option<String>,
    /// The actor's attempt whose weights they are; who is no actor of a job has none.
    attempt: Option<u32>,
    /// The stream is a [delta] from the weights of this digest.
    delta_from: Option<String>,
}

impl UploadQuery {
    /// Which weights the stream has.
    ///
    /// # Errors
    /// 400 when it has no version, or one that is no whole number.
    pub fn policy(&self) -> Result<PolicyVersion, ApiError> {
        let version = self.weight_version.clone().map(Version::Text);
        let version = version.ok_or_else(|| ApiError::field("weight_version", "is missing from the query"))?;
        Ok(PolicyVersion {
            attempt: self.attempt,
            version: version.number()?,
        })
    }
}

/// `POST /update_weights`: JSON names a folder, `application/octet-stream` carries the tensors themselves, or a [delta].
///
/// # Errors
/// 400 when tensors do not fit the model or their digest is another one, 409 while another update runs, for weights of an older attempt, and
/// for a delta from others than the engine has.
pub async fn update(
    State(service): State<Service>,
    Query(query): Query<UploadQuery>,
    request: Request,
) -> Result<Json<LoadedWeights>, ApiError> {
    service.model()?;
    if is_stream(request.headers()) {
        let (policy, stream) = (query.policy()?, request.into_body().into_data_stream());
        let taken = match &query.delta_from {
            None => take(&service, policy, stream).await,
            Some(base) => take_delta(&service, policy, base, stream).await,
        };
        return taken.map(Json);
    }
    let Object(asked): Object<folder::FolderUpdate> = body::json(&service.bodies, request).await?;
    let policy = PolicyVersion {
        attempt: query.attempt,
        version: asked.weight_version.number()?,
    };
    let update = Arc::new(service.updates.begin()?);
    let read = folder::load(service.model()?, asked, update.clone());
    replace(&service, policy, update, read).await.map(Json)
}

/// Takes the weights of a stream, whoever sends it.
async fn take<S, E>(service: &Service, policy: PolicyVersion, stream: S) -> Result<LoadedWeights, ApiError>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::fmt::Display,
{
    let read = upload::receive(service.model()?, stream, service.limits.body_timeout);
    replace(service, policy, Arc::new(service.updates.begin()?), read).await
}

/// Takes what changed since the weights of digest `base`.
async fn take_delta<S, E>(
    service: &Service,
    policy: PolicyVersion,
    base: &str,
    stream: S,
) -> Result<LoadedWeights, ApiError>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::fmt::Display,
{
    let read = async {
        let model = service.model()?;
        let held = service.weights(model.engine.stats().policy_version);
        if held.digest.as_deref() != Some(base) {
            let words = "this engine has other weights than those that changed: send it all of the new ones";
            return Err(ApiError::new(StatusCode::CONFLICT, words));
        }
        let (changes, hash) = delta::arrival::receive(&model.config, stream, service.limits.body_timeout).await?;
        Ok((NewWeights::Changes(changes), delta::digest_after(base, hash)))
    };
    replace(service, policy, Arc::new(service.updates.begin()?), read).await
}

/// Reads weights aside, then swaps, as `update`: one at a time, until what still reads when the client has gone has ended too.
async fn replace(
    service: &Service,
    policy: PolicyVersion,
    _update: Arc<Update>,
    read: impl Future<Output = Result<(NewWeights, Hash), ApiError>>,
) -> Result<LoadedWeights, ApiError> {
    service.newest_attempt.admit(policy.attempt)?;
    let limit = limit(service)?;
    let read = tokio::time::timeout(limit, read).await;
    let (weights, digest) = read.map_err(|_| ApiError::late(limit))??;
    // A sender that goes now does not cut the swap short, and nobody notes it then.
    service.note_given(None);
    swap(service, policy.version, weights).await?;
    let loaded = LoadedWeights {
        digest: Some(digest.to_string()),
        takes_delta: true,
        ..LoadedWeights::of(policy)
    };
    service.note_given(Some(loaded.clone()));
    Ok(loaded)
}

/// For new weights, by what those of this model may weigh.
fn limit(service: &Service) -> Result<Duration, ApiError> {
    let bytes = most_bytes(&service.model()?.config);
    Ok(service.limits.update_deadline(bytes))
}

impl Follower for Service {
    fn policy(&self) -> impl Future<Output = Option<PolicyVersion>> + Send {
        let model = self.model().ok().filter(|_| !self.updates.is_running());
        let held = model.map(|model| self.weights(model.engine.stats().policy_version));
        std::future::ready(held.and_then(|held| held.policy().ok()))
    }

    async fn take<S, E>(&self, policy: PolicyVersion, stream: S) -> Result<(), ApiError>
    where
        S: Stream<Item = Result<Bytes, E>> + Send + Unpin,
        E: std::fmt::Display + Send,
    {
        take(self, policy, stream).await.map(drop)
    }
}

/// Whether a body is the tensors themselves.
pub fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/octet-stream"))
}

/// The engine takes the weights between two passes. From here on there is no way back, so nothing here is cut short by a
/// client that goes.
async fn swap(service: &Service, version: u64, weights: NewWeights) -> Result<(), ApiError> {
    let engine = service.model()?.engine.clone();
    let began = Instant::now();
    let limit = limit(service)?;
    let swapped = tokio::time::timeout(limit, tokio::spawn(engine.update_weights(weights, version))).await;
    let late = |_| {
        let message = format!(
            "the engine has not swapped within {} s; it still may",
            limit.as_secs_f64()
        );
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, message)
    };
    swapped.map_err(late)?.map_err(ApiError::internal)??;
    tracing::info!(
        "weights of version {version} are loaded; the swap took {:.3} s",
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

/// `GET /weight_info`: what the engine has, and of what it was given the digest and whose it is.
///
/// # Errors
/// 503 without a model.
pub async fn info(State(service): State<Service>) -> Result<Json<LoadedWeights>, ApiError> {
    // Others that are on their way are waited for.
    service.updates.none().await;
    Ok(Json(service.weights(service.model()?.engine.stats().policy_version)))
}
