//! A remote reward: client of OpenRLHF's protocol, over several URLs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt};
use ppo_crds::spec::RemoteRewardSpec;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, LOCATION, RETRY_AFTER};
use reqwest::{Client, Url};
use serde_json::Value;

use super::answer::{Read, read_answer};
use super::mix::Scores;
use super::names::Names;
use super::protocol::ScoreRequest;
use super::retry::Failure;
use super::sample::ScoredSample;
use super::unreached::unreached;
use crate::backoff::{Retry, after_status};
use crate::http_client::UVICORN_IDLE;
use crate::outcome::ServerFailed;
use crate::telemetry::Live;

/// How a remote reward is called.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// Called as given, path included. Batches go to them in turn; a retry goes to the next one.
    pub urls: Vec<String>,
    /// For one call, connecting and reading the whole answer included.
    pub timeout: Duration,
    /// Tries after the first one, of a call that may fare better.
    pub max_retries: u32,
    /// Calls in flight at once, over all URLs.
    pub max_concurrency: usize,
    /// Samples per call, at most.
    pub batch_size: usize,
    /// Longest answer that is read.
    pub max_body_bytes: usize,
    /// The first wait lies between 0 and this; every round over the URLs doubles it.
    pub backoff_base: Duration,
    /// Longest wait of our own between two tries, and longest `Retry-After` that is obeyed in full.
    pub backoff_cap: Duration,
    /// Sent as `Authorization: Bearer`.
    pub token: Option<String>,
}

impl From<&RemoteRewardSpec> for RemoteOptions {
    /// The manifest's settings; the token comes from the environment variable `PPO_REWARD_TOKEN`.
    fn from(spec: &RemoteRewardSpec) -> Self {
        Self {
            urls: spec.urls.clone(),
            timeout: Duration::from_secs(spec.timeout_seconds.max(1).into()),
            max_retries: spec.max_retries,
            max_concurrency: spec.max_concurrency.max(1) as usize,
            batch_size: spec.batch_size.max(1) as usize,
            max_body_bytes: 16 << 20,
            backoff_base: Duration::from_millis(500),
            backoff_cap: Duration::from_secs(60),
            token: std::env::var("PPO_REWARD_TOKEN").ok().filter(|token| !token.is_empty()),
        }
    }
}

/// A client of one or several reward servers.
#[derive(Debug)]
pub struct RemoteReward {
    client: Client,
    urls: Vec<Url>,
    authorization: Option<HeaderValue>,
    options: RemoteOptions,
    /// Of the further logs.
    names: Names,
    /// See [`RemoteReward::report_to`].
    live: Option<Arc<Live>>,
}

impl RemoteReward {
    /// A client; nothing is called yet.
    ///
    /// # Errors
    /// No URL, one that is not http or https, or a token that no header can carry.
    pub fn new(options: RemoteOptions) -> Result<Self> {
        if options.urls.is_empty() {
            bail!("roles.reward.remote.urls is empty, want at least one URL");
        }
        let urls = options.urls.iter().map(|text| parse_url(text)).collect::<Result<_>>()?;
        let authorization = match &options.token {
            None => None,
            Some(token) => {
                let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
                    .context("PPO_REWARD_TOKEN holds characters that an HTTP header cannot carry")?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        // A redirect would turn the POST into a GET without the samples.
        let client = crate::http_client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(options.timeout)
            .pool_idle_timeout(UVICORN_IDLE)
            .build()
            .context("cannot set up the HTTP client of the remote reward")?;
        Ok(Self {
            client,
            urls,
            authorization,
            options,
            names: Names::default(),
            live: None,
        })
    }

    /// From now on `live` is told of every answer, and of a server that failed, for as long as it is waited for.
    pub fn report_to(&mut self, live: Arc<Live>) {
        self.live = Some(live);
    }

    /// Scores of all samples, in order. Batches run side by side; the first that fails for good ends the call.
    ///
    /// # Errors
    /// Names the URL, the status or cause, the first sample of the failed batch and the beginning of the answer.
    pub async fn score(&self, samples: &[ScoredSample]) -> Result<Scores> {
        let size = self
            .options
            .batch_size
            .min(samples.len().div_ceil(self.urls.len()))
            .max(1);
        // Not a closure: the compiler cannot prove that one over borrowed batches may be sent to another thread.
        let mut calls = Vec::new();
        for (number, batch) in samples.chunks(size).enumerate() {
            calls.push(self.batch(number, batch));
        }
        let answers: Vec<Scores> = futures::stream::iter(calls)
            .buffered(self.options.max_concurrency.max(1))
            .try_collect()
            .await?;
        Ok(join(answers))
    }

    /// One batch, tried until it succeeds, fails for good or has no tries left.
    async fn batch(&self, number: usize, samples: &[ScoredSample]) -> Result<Scores> {
        let request = ScoreRequest::of(samples);
        let body = serde_json::to_vec(&request).context("cannot write the samples as JSON")?;
        let mut tries = 0;
        loop {
            let url = &self.urls[(number + tries as usize) % self.urls.len()];
            let failure = match self.call(url, body.clone(), samples).await {
                Ok(mut scores) => {
                    if let Some(live) = &self.live {
                        live.goes_on();
                        if tries > 0 {
                            live.wait_for("");
                        }
                    }
                    self.names.keep(&mut scores.extra);
                    return Ok(scores);
                }
                Err(failure) => failure,
            };
            if let Some(live) = &self.live {
                live.wait_for(&shown(url));
            }
            let options = &self.options;
            let rounds = tries / self.urls.len() as u32;
            let wait = failure.retry.pause(options.backoff_base, options.backoff_cap, rounds);
            let Some(wait) = wait.filter(|_| tries < options.max_retries) else {
                let (first, last) = (samples[0].index, samples[samples.len() - 1].index);
                let no_more = match failure.retry {
                    Retry::Never => "; not tried again, as it would answer the same",
                    Retry::Backoff | Retry::After(_) => "",
                };
                let words = format!(
                    "remote reward {} failed for samples {first} to {last} (try {} of {}{no_more}): {}",
                    shown(url),
                    tries + 1,
                    options.max_retries + 1,
                    failure.cause
                );
                return Err(ServerFailed(words).into());
            };
            tracing::warn!(
                url = shown(url),
                sample = samples[0].index,
                tries,
                ?wait,
                "remote reward: {}; trying again",
                failure.cause
            );
            tokio::time::sleep(wait).await;
            tries += 1;
        }
    }

    async fn call(&self, url: &Url, body: Vec<u8>, samples: &[ScoredSample]) -> Result<Scores, Failure> {
        let mut request = self
            .client
            .post(url.clone())
            .header(CONTENT_TYPE, "application/json")
            .body(body);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        let mut response = request.send().await.map_err(|error| self.broken(error))?;
        let status = response.status();
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let target = response.headers().get(LOCATION).filter(|_| status.is_redirection());
        let redirected = target.map(|target| redirected(url, target));
        let limit = self.options.max_body_bytes;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.broken(error))? {
            if body.len() + chunk.len() > limit {
                return Err(Failure::lasting(format!(
                    "{status}: the answer is longer than {limit} bytes"
                )));
            }
            body.extend_from_slice(&chunk);
        }
        if !status.is_success() {
            let cause = format!("{status}: {}", redirected.unwrap_or_else(|| snippet(&body)));
            return Err(Failure {
                cause,
                retry: after_status(status, retry_after.as_deref()),
            });
        }
        let read = read_answer(&body, samples);
        let Read { scores, left_out } = read.map_err(|cause| Failure {
            cause: format!("{status}: {cause}: {}", snippet(&body)),
            retry: if is_cut_off(&body) {
                Retry::Backoff
            } else {
                Retry::Never
            },
        })?;
        if let Some(why) = left_out {
            self.names.tell(&why);
        }
        Ok(scores)
    }

    /// The connection failed or the deadline passed: another try may fare better.
    fn broken(&self, error: reqwest::Error) -> Failure {
        if error.is_timeout() {
            return Failure::passing(format!("no complete answer within {:?}", self.options.timeout));
        }
        Failure::passing(unreached(&error, |name| std::env::var(name).ok()))
    }
}

/// A URL as logs and records name it: who it is called as, and with which password, is nobody else's business.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // Neither fails where there is a user: such a URL has a host.
    if url.set_password(None).is_ok() && !url.username().is_empty() {
        let _ = url.set_username("***");
    }
    url.into()
}

/// Where the server at `url` says that it is. It may be relative (RFC 9110, 10.2.2).
fn redirected(url: &Url, target: &HeaderValue) -> String {
    let target = String::from_utf8_lossy(target.as_bytes());
    let whole = url
        .join(&target)
        .map_or_else(|_| target.to_string(), |whole| shown(&whole));
    format!(
        "it redirects to {whole}, and redirects are not followed; if that is the reward server, put it into roles.reward.remote.urls"
    )
}

fn parse_url(text: &str) -> Result<Url> {
    let url = Url::parse(text).with_context(|| format!("roles.reward.remote.urls: {text:?} is not a URL"))?;
    if !matches!(url.scheme(), "http" | "https") {
        bail!("roles.reward.remote.urls: {text:?}: want http:// or https://");
    }
    Ok(url)
}

/// Puts the batches' answers together. An extra that only some of them have is NaN for the others' samples.
fn join(answers: Vec<Scores>) -> Scores {
    let mut joined = Scores::default();
    for answer in answers {
        let (before, count) = (joined.scores.len(), answer.scores.len());
        joined.scores.extend(answer.scores);
        joined.compared.extend(answer.compared);
        for (name, values) in answer.extra {
            let column = joined.extra.entry(name).or_default();
            column.resize(before, f32::NAN);
            column.extend(values);
        }
        for column in joined.extra.values_mut() {
            column.resize(before + count, f32::NAN);
        }
    }
    joined
}

/// Whether it ends before its JSON does: a server, or a proxy before it, gave up midway, and had not said how long the answer is.
fn is_cut_off(body: &[u8]) -> bool {
    !body.is_empty() && serde_json::from_slice::<Value>(body).is_err_and(|error| error.is_eof())
}

/// The beginning of a body, on one line.
fn snippet(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(400)]);
    let line: String = text
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .take(200)
        .collect();
    if line.is_empty() {
        "(empty answer)".to_owned()
    } else {
        format!("answer begins {line:?}")
    }
}

#[cfg(test)]
mod tests;
