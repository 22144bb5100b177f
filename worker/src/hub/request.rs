//! A request to the hub, repeated while another try may succeed.

use std::time::Duration;

use anyhow::{Result, bail};
use reqwest::header::{RANGE, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode};

use super::Hub;
use crate::backoff::{Retry, after_status};

/// Tries of one request; a download goes on where the one before broke off.
const TRIES: u32 = 5;
/// Longest wait between two tries, also where the hub asks for a longer one.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// An answer that may be another one later.
#[derive(Debug, thiserror::Error)]
#[error("{status}")]
struct Passing {
    status: StatusCode,
    retry: Retry,
}

impl Hub {
    /// What `request` to `url` comes to, which is made again after a pause where it broke off or the hub was busy. `arrived` says how many
    /// bytes of it are here: behind a try that brought more than there ever were, tries are counted anew.
    ///
    /// # Errors
    /// Those of its last try, below the URL.
    pub(super) async fn insist<T>(
        &self,
        url: &str,
        arrived: impl Fn() -> u64,
        request: impl AsyncFn() -> Result<T>,
    ) -> Result<T> {
        let (mut tries, mut most) = (0, arrived());
        loop {
            let error = match request().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let here = arrived();
            if here > most {
                (tries, most) = (0, here);
            }
            let pause = retry(&error).pause(self.first_pause, LONGEST_PAUSE, tries);
            tries += 1;
            let Some(pause) = pause.filter(|_| tries < TRIES) else {
                return Err(error.context(url.to_owned()));
            };
            tracing::warn!("{url}: {error:#}; trying again in {:.1} s", pause.as_secs_f64());
            tokio::time::sleep(pause).await;
        }
    }

    /// A file, or what the hub says of a model, from byte `from` on if the hub can.
    ///
    /// # Errors
    /// No answer, or one that is none, with what would help.
    pub(super) async fn get(&self, client: &Client, url: &str, from: u64) -> Result<Response> {
        let mut request = client.get(url);
        if from > 0 {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await.map_err(|error| {
            let hint =
                "no answer: is the hub reachable from here? HF_ENDPOINT names a mirror; a model on disk is a path";
            if error.is_connect() {
                anyhow::Error::new(error).context(hint)
            } else {
                error.into()
            }
        })?;
        match response.status() {
            status if status.is_success() => Ok(response),
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                let help = match self.token {
                    Some(_) => {
                        "the token (of HF_TOKEN, or of `hf auth login`) may not read it, or is valid no longer: accept the model's terms on \
                         its page at the hub with the token's account, or set HF_TOKEN to another one"
                    }
                    None => "set HF_TOKEN to a token that may read it",
                };
                bail!("{status}: the model is private, gated or misspelt; {help}")
            }
            StatusCode::NOT_FOUND => bail!("404: no such model or revision; check hub.id and hub.revision"),
            status => {
                let wait = response.headers().get(RETRY_AFTER);
                let retry = after_status(status, wait.and_then(|value| value.to_str().ok()));
                Err(Passing { status, retry }.into())
            }
        }
    }
}

/// Whether another try may fare better than one that ended so: what broke off on its way may.
fn retry(error: &anyhow::Error) -> Retry {
    match error.downcast_ref::<Passing>() {
        Some(passing) => passing.retry,
        None if error.is::<reqwest::Error>() => Retry::Backoff,
        None => Retry::Never,
    }
}
