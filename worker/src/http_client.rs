//! The one way to make an HTTP client: TLS by rustls with ring. `reqwest::Client::new()` would panic without the provider
//! that [`builder`] installs. Also reads the error message out of a refused request's answer.

use std::error::Error;
use std::time::Duration;

use reqwest::Response;
use serde_json::Value;

/// Bytes that are read of an answer which says no.
const MOST_READ: usize = 64 << 10;
/// Bytes that are told of it.
const MOST_TOLD: usize = 2000;

/// After so long a connection to a server that runs on uvicorn, as vLLM and most reward servers do, is not used again: uvicorn closes it
/// after five idle seconds, a busy one before it has read what was sent in time, and a call that meets that breaks.
pub const UVICORN_IDLE: Duration = Duration::from_secs(1);

/// A client builder with TLS ready and this program's user agent.
pub fn builder() -> reqwest::ClientBuilder {
    // Err means that a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().user_agent(concat!("ppo-worker/", env!("CARGO_PKG_VERSION")))
}

/// The innermost cause: reqwest's own words name only the URL.
pub fn innermost(error: &reqwest::Error) -> String {
    let mut inner: &dyn Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

/// What an answer says no with, as far as it is [told](said).
pub async fn refusal(mut answer: Response) -> String {
    let mut body = Vec::new();
    // What broke off is told as far as it came.
    while let Ok(Some(chunk)) = answer.chunk().await {
        body.extend_from_slice(&chunk);
        if body.len() > MOST_READ {
            break;
        }
    }
    said(&body)
}

/// What the body of an error says: the message in OpenAI's shape, or the text as it is. Nobody reads more of it than its beginning.
pub fn said(body: &[u8]) -> String {
    let parsed: Option<Value> = serde_json::from_slice(body).ok();
    let message = parsed
        .as_ref()
        .and_then(|body| body.pointer("/error/message")?.as_str());
    let text = message.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
    text[..text.floor_char_boundary(MOST_TOLD)].trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_error_its_message_is_told_or_the_beginning_of_its_text() {
        assert_eq!(said(br#"{"error": {"message": "out of memory"}}"#), "out of memory");
        assert_eq!(said(b" upstream error\n"), "upstream error");
        assert_eq!(said(br#"{"error": "no"}"#), r#"{"error": "no"}"#);
        assert_eq!(said(b""), "");
        // A character of two bytes is not cut in half.
        let long = format!("x{}", "\u{e9}".repeat(MOST_TOLD));
        assert_eq!(said(long.as_bytes()).len(), MOST_TOLD - 1);
    }
}
