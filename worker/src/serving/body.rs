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
    Ok((parse(text)?, room))
}

/// Parses a body as JSON.
///
/// # Errors
/// 400 with the path of the field that is wrong, or with the place where it is no JSON.
pub fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, ApiError> {
    // Only what does not fit is read again with its path, which costs something for every number of a list.
    serde_json::from_slice(text).map_err(|error| {
        let fault = serde_path_to_error::deserialize::<_, T>(&mut serde_json::Deserializer::from_slice(text)).err();
        let field = fault.as_ref().and_then(|fault| fault.path().iter().next());
        match (field.map(ToString::to_string), &fault) {
            (Some(field), Some(fault)) if error.is_data() => {
                misfit(fault.path().to_string(), &field, &fault.inner().to_string())
            }
            _ => ApiError::bad(format!("the body is not what is wanted here: {error}")),
        }
    })
}

/// The error for what stands at `path`, inside `field`. Words that begin with the field's name say the place themselves.
fn misfit(path: String, field: &str, words: &str) -> ApiError {
    let goes_on = |next: char| next.is_alphanumeric() || next == '_';
    match words.strip_prefix(field) {
        Some(rest) if !rest.starts_with(goes_on) => ApiError {
            param: Some(path.into()),
            ..ApiError::bad(words.to_owned())
        },
        _ => ApiError::field(path, words),
    }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Lists = BTreeMap<String, Vec<u32>>;

    #[test]
    fn a_field_that_does_not_fit_is_named_by_its_path_with_what_was_given_and_what_fits() {
        let error = parse::<Lists>(br#"{"a": [], "b": [1, "x"]}"#).unwrap_err();
        assert_eq!(
            (error.status, error.param.as_deref()),
            (StatusCode::BAD_REQUEST, Some("b[1]"))
        );
        let words = r#"b[1]: invalid type: string "x", expected u32"#;
        assert!(error.message.starts_with(words), "{error}");
    }

    #[test]
    fn a_body_that_is_no_json_or_something_else_as_a_whole_is_no_fields_fault() {
        for (text, words) in [("[]", "invalid type"), (r#"{"a": [1,"#, "EOF"), ("{} 1", "trailing")] {
            let error = parse::<Lists>(text.as_bytes()).unwrap_err();
            assert_eq!(error.param, None, "{error}");
            assert!(error.message.contains(words), "{error}");
        }
    }

    #[test]
    fn words_that_name_their_field_are_not_named_again() {
        let said = |field: &str| misfit(field.to_owned(), field, "labels[1] is none").message;
        assert_eq!(said("labels"), "labels[1] is none");
        assert_eq!(said("label"), "label: labels[1] is none");
    }
}
