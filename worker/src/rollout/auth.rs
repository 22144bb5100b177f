//! Who may call.

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::error::ApiError;

/// The bearer token that callers must send; None lets everybody in. Only its digest is kept, so that comparing takes the
/// same time for every guess, whatever its length.
#[derive(Clone, Debug)]
pub struct Door {
    token: Option<[u8; 32]>,
    open_metrics: bool,
}

impl Door {
    /// A door for `token`; with `open_metrics` `/metrics` needs none.
    pub fn new(token: Option<&str>, open_metrics: bool) -> Self {
        Self {
            token: token.map(digest),
            open_metrics,
        }
    }

    fn opens(&self, path: &str, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else { return true };
        if matches!(path, "/health" | "/healthz") || (path == "/metrics" && self.open_metrics) {
            return true;
        }
        let header = headers
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let (scheme, given) = header.split_once(' ').unwrap_or_default();
        scheme.eq_ignore_ascii_case("bearer") && bool::from(digest(given.trim()).ct_eq(token))
    }
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// Stands before every path, those that do not exist included.
pub async fn authorize(State(door): State<Door>, request: Request, next: Next) -> Response {
    if door.opens(request.uri().path(), request.headers()) {
        return next.run(request).await;
    }
    ApiError::new(
        StatusCode::UNAUTHORIZED,
        "this server wants the header Authorization: Bearer <token>, and this request has none or another one",
    )
    .into_response()
}
