//! Bodies of requests: read within limits of size, time and memory, then parsed.

use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use axum::http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::error::ApiError;
use super::limits::Limits;

/// Bounds of bodies, and the memory that all of them share.
pub struct Bodies {
    limits: Limits,
    /// KiB for bodies that are being read.
    memory: Semaphore,
}

impl Bodies {
    /// Bodies within `limits`.
    pub fn new(limits: Limits) -> Self {
        let memory = Semaphore::new((limits.all_body_bytes >> 10).clamp(1, Semaphore::MAX_PERMITS));
        Self { limits, memory }
    }
}

/// Reads the request's body and parses it as JSON. An empty body is an empty object.
///
/// # Errors
/// 400 with the place that is wrong, 408 when it comes too slowly, 413 when it is too long, 415 when it is no JSON, 503 when too many others are
/// being read.
pub async fn json<T: DeserializeOwned>(bodies: &Bodies, request: Request) -> Result<T, ApiError> {
    held(bodies, request).await.map(|(parsed, _room)| parsed)
}

/// As [`json`], with the memory that the body counts for: to be kept while its texts are.
///
/// # Errors
/// As [`json`].
pub async fn held<T: DeserializeOwned>(
    bodies: &Bodies,
    request: Request,
) -> Result<(T, SemaphorePermit<'_>), ApiError> {
    check_kind(request.headers())?;
    let limits = &bodies.limits;
    let announced = content_length(request.headers());
    let most = limits.body_bytes;
    if announced.is_some_and(|length| length > most) {
        return Err(too_long(most));
    }
    let late = || {
        ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not arrive within {} s", limits.body_timeout.as_secs_f64()),
        )
    };
    // A body of unknown length may become as long as the limit.
    let kibibytes = announced.unwrap_or(most).div_ceil(1 << 10).max(1);
    let kibibytes = u32::try_from(kibibytes).unwrap_or(u32::MAX);
    let room = bodies.memory.acquire_many(kibibytes);
    let room = tokio::time::timeout(limits.body_timeout, room)
        .await
        .map_err(|_| ApiError::unavailable("too many long requests are being read: try again"))?
        .map_err(ApiError::internal)?;
    let bytes = tokio::time::timeout(limits.body_timeout, axum::body::to_bytes(request.into_body(), most))
        .await
        .map_err(|_| late())?
        .map_err(|error| unreadable(&error, most))?;
    let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
    let parsed = serde_json::from_slice(text);
    let parsed = parsed.map_err(|error| ApiError::bad(format!("the body is not what is wanted here: {error}")))?;
    Ok((parsed, room))
}

/// A body must say that it is JSON. A page in somebody's browser cannot say so to a server that it does not belong to
/// without asking first, so it cannot change the weights of one on that person's machine.
fn check_kind(headers: &HeaderMap) -> Result<(), ApiError> {
    let is_empty = content_length(headers).unwrap_or(0) == 0 && !headers.contains_key(TRANSFER_ENCODING);
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let is_json = kind.is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("application/json"));
    if is_empty || is_json {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "send the header content-type: application/json",
    ))
}

/// What the client says its body is long.
pub fn content_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn unreadable(error: &axum::Error, most: usize) -> ApiError {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(cause) = source {
        if cause.to_string().contains("length limit") {
            return too_long(most);
        }
        source = cause.source();
    }
    ApiError::bad(format!("the body broke off: {error}"))
}

fn too_long(most: usize) -> ApiError {
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        format!("the body is longer than {most} bytes: send fewer prompts at once, or raise --max-body-bytes"),
    )
}
