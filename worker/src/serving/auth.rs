//! Checks the token of a request.

use std::net::IpAddr;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, EXPECT, HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::error::ApiError;

/// How long the body of a refused request is read on.
const DRAIN: Duration = Duration::from_secs(1);

/// The bearer token that callers must send; None lets everybody in. Only its digest is kept, so that comparing takes the
/// same time for every guess, whatever its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Door {
    token: Option<[u8; 32]>,
    open_metrics: bool,
    /// Whoever calls has to mean this machine.
    is_local: bool,
}

impl Door {
    /// A door for `token`; with `open_metrics` `/metrics` needs none.
    pub fn new(token: Option<&str>, open_metrics: bool) -> Self {
        Self {
            token: token.map(digest),
            open_metrics,
            is_local: false,
        }
    }

    /// The door of a server that listens on `address`. One without a token that listens on loopback is for programs of this machine,
    /// and a browser is one, whatever page it shows: see [`is_from_here`].
    pub fn at(mut self, address: IpAddr) -> Self {
        self.is_local = self.token.is_none() && address.is_loopback();
        self
    }

    fn opens(&self, path: &str, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else { return true };
        if matches!(path, "/health" | "/healthz" | "/ping") || (path == "/metrics" && self.open_metrics) {
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

/// Whether a request was meant for this machine and does not come from somebody else's page. A page may send requests without a body
/// anywhere (`no-cors`), and says from where in `Origin`; one whose name was made to point at 127.0.0.1 (DNS rebinding) may send and
/// read everything, and has that name in `Host`. No page can change either.
fn is_from_here(headers: &HeaderMap) -> bool {
    let named = |header| headers.get(header).map(|value| value.to_str().unwrap_or_default());
    let origin = named(ORIGIN).map(|origin| origin.split_once("://").is_some_and(|(_, host)| is_here(host)));
    named(HOST).is_some_and(is_here) && origin != Some(false)
}

/// Whether a `host:port` is this machine's.
fn is_here(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<Authority>() else {
        return false;
    };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// Stands before every path, those that do not exist included.
pub async fn authorize(State(door): State<Door>, request: Request, next: Next) -> Response {
    if door.is_local && !is_from_here(request.headers()) {
        let refusal = ApiError::new(
            StatusCode::FORBIDDEN,
            "this server has no token, so it answers only what was sent to localhost or 127.0.0.1 (header Host) and by no web page \
             of another machine (header Origin): to call it by other names, let it listen on another address, or give it a token \
             (--api-key-file of rollout and reward)",
        );
        return refuse(request, refusal);
    }
    if door.opens(request.uri().path(), request.headers()) {
        return next.run(request).await;
    }
    let refusal = ApiError::new(
        StatusCode::UNAUTHORIZED,
        "this server wants the header Authorization: Bearer <token>, and this request has none or another one",
    );
    refuse(request, refusal)
}

/// Answers a request that is not let in. A connection that is closed with bytes unread is reset, and a client that still sends weights
/// would hear of a broken pipe and not of its token: what it sends is read on for a while beside the answer, and thrown away.
fn refuse(request: Request, refusal: ApiError) -> Response {
    // Who waits to be told to go on sends nothing.
    if !request.headers().contains_key(EXPECT) {
        tokio::spawn(tokio::time::timeout(DRAIN, drain(request.into_body())));
    }
    refusal.into_response()
}

async fn drain(body: Body) {
    let mut pieces = body.into_data_stream();
    while let Some(Ok(_)) = pieces.next().await {}
}
