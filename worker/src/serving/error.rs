//! Errors as OpenAI's clients read them, in vLLM's words.

use std::borrow::Cow;
use std::time::Duration;

use axum::Json;
use axum::http::header::{CONNECTION, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::engine::EngineError;

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// What is wrong and what would help.
    pub message: Cow<'static, str>,
    /// The field that is wrong.
    pub param: Option<Cow<'static, str>>,
}

impl ApiError {
    /// An error with this status.
    pub fn new(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            message: message.into(),
            param: None,
        }
    }

    /// The request is wrong.
    pub fn bad(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// A field of the request is wrong.
    pub fn field(param: impl Into<Cow<'static, str>>, message: impl std::fmt::Display) -> Self {
        let param = param.into();
        let message = format!("{param}: {message}");
        Self {
            param: Some(param),
            ..Self::bad(message)
        }
    }

    /// The request is right but cannot be served now.
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    /// Another update of the weights is running.
    pub fn updating() -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "another update of the weights is running: wait for it",
        )
    }

    /// New weights did not arrive in time.
    pub fn late(limit: Duration) -> Self {
        let words = format!(
            "the new weights were not there within {} s; the old ones stay",
            limit.as_secs_f64()
        );
        Self::new(StatusCode::GATEWAY_TIMEOUT, words)
    }

    /// Something here failed.
    pub fn internal(error: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }

    /// The error object, as it also stands in a stream that breaks off.
    pub fn body(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind(),
            "param": self.param,
            "code": self.status.as_u16(),
        }})
    }

    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "AuthenticationError",
            404 => "NotFoundError",
            429 => "RateLimitError",
            503 => "ServiceUnavailableError",
            400..=499 => "BadRequestError",
            _ => "InternalServerError",
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if matches!(
            self.status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        ) {
            response
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        // Any may be said before the whole body was read: the client must not send its next request behind what is left, on a connection
        // that is about to end. Only how many wait is looked at behind the body.
        if self.status != StatusCode::TOO_MANY_REQUESTS {
            response
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let status = match &error {
            EngineError::Refused(_) => StatusCode::BAD_REQUEST,
            EngineError::QueueFull { .. } => StatusCode::TOO_MANY_REQUESTS,
            EngineError::Paused | EngineError::Asleep | EngineError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
            EngineError::Overtaken => StatusCode::CONFLICT,
            EngineError::Deadline { .. } => StatusCode::GATEWAY_TIMEOUT,
            // Asked again it would be answered the same.
            EngineError::NoToken { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            EngineError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_may_come_before_the_body_was_read_ends_its_connection_and_that_of_a_full_server_does_not() {
        let closes = |status: u16| {
            let status = StatusCode::from_u16(status).unwrap();
            let response = ApiError::new(status, "words").into_response();
            response.headers().get(CONNECTION).is_some_and(|value| value == "close")
        };
        for status in [400, 401, 403, 404, 405, 408, 409, 413, 415, 500, 503, 504] {
            assert!(closes(status), "{status}");
        }
        assert!(!closes(429));
    }
}
