//! Answers of an API server, made up.

use bytes::Bytes;
use futures::Stream;
use http::Response;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::json;

/// What a request can fail with before there is an answer.
pub(super) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The body of an answer.
pub(super) type Body = UnsyncBoxBody<Bytes, Failure>;

pub(super) fn whole(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

pub(super) fn streamed(lines: impl Stream<Item = Bytes> + Send + 'static) -> Body {
    use futures::StreamExt;
    StreamBody::new(lines.map(|line| Ok(http_body::Frame::data(line)))).boxed_unsync()
}

/// A refusal, as the API server words it.
pub(super) fn refusal(code: u16) -> Result<Response<Body>, Failure> {
    let reason = match code {
        409 => "Conflict",
        429 => "TooManyRequests",
        _ => "InternalError",
    };
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason,
        "message": "refused by the fault layer", "code": code});
    let mut answer = Response::builder()
        .status(code)
        .header("content-type", "application/json");
    if code == 429 {
        answer = answer.header("retry-after", "1");
    }
    Ok(answer.body(whole(body.to_string().into()))?)
}

/// Ends a watch as one whose place in history is gone: whoever watches has to list again.
pub(super) fn expired() -> Bytes {
    let line = json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "metadata": {},
        "status": "Failure", "reason": "Expired", "message": "too old resource version", "code": 410}});
    format!("{line}\n").into()
}
