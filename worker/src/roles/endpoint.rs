//! One engine behind its HTTP door, in vLLM's dialect.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use ppo_crds::spec::Role;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Body, Method, RequestBuilder};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::Publication;
use crate::engine::sampler::is_greedy;
use crate::engine::{Completion, FinishReason, Request};
use crate::http_client::{innermost, refusal};
use crate::pods::{CallError, Caller, Member};
use crate::rollout::generate::REQUEST_ID;
use crate::rollout::weights::LoadedWeights;
use crate::rollout::weights::attempt::PolicyVersion;
use crate::vllm::transfer::{Init, Transfer, WorldSize};

/// For an answer that needs no computing.
const SHORT: Duration = Duration::from_secs(10);

/// What says whether an engine is well.
const PROBE: &str = "/health";

/// One engine.
#[derive(Clone, Debug)]
pub struct Endpoint {
    member: Member,
    caller: Caller,
}

/// The fields of `/v1/completions` that training asks with.
#[derive(Serialize)]
struct Question<'a> {
    prompt: &'a [u32],
    n: usize,
    seeds: &'a [u64],
    temperature: f32,
    top_p: f32,
    top_k: usize,
    min_p: f32,
    max_tokens: usize,
    min_tokens: usize,
    stop_token_ids: &'a [u32],
    stop: &'a [String],
    /// Ends of sequences are among `stop_token_ids` where they end a response.
    ignore_eos: bool,
    /// None for greedy tokens: their log-probability is that of no draw, and would be computed from the whole vocabulary's logits.
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<usize>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    return_bare_logprobs: bool,
    return_token_ids: bool,
    return_weight_versions: bool,
    detokenize: bool,
    request_id: &'a str,
}

#[derive(Deserialize)]
struct Answer {
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    index: usize,
    finish_reason: Option<String>,
    token_ids: Vec<u32>,
    logprobs: Option<Logprobs>,
    weight_versions: Vec<Span>,
}

#[derive(Deserialize)]
struct Logprobs {
    token_logprobs: Vec<f32>,
}

/// Half-open, of output tokens.
#[derive(Deserialize)]
struct Span {
    version: String,
    start: usize,
    end: usize,
}

impl Endpoint {
    /// The engine at `member`.
    pub fn new(member: Member, caller: Caller) -> Self {
        Self { member, caller }
    }

    /// The pod's name.
    pub fn name(&self) -> &str {
        &self.member.name
    }

    /// Samples of one prompt, one for each seed. `name` is the request's for this engine's log.
    ///
    /// # Errors
    /// When there is no answer in time, or not what was asked for.
    pub async fn generate(
        &self,
        name: &str,
        request: &Request,
        deadline: Duration,
    ) -> Result<Vec<Completion>, CallError> {
        const PATH: &str = "/v1/completions";
        let params = &request.params;
        let greedy = is_greedy(params.temperature);
        let body = Question {
            prompt: &request.prompt,
            n: request.seeds.len(),
            seeds: &request.seeds,
            temperature: params.temperature,
            top_p: params.top_p,
            top_k: params.top_k,
            min_p: params.min_p,
            max_tokens: params.max_new_tokens,
            min_tokens: params.min_new_tokens,
            stop_token_ids: &params.stop_token_ids,
            stop: &params.stop,
            ignore_eos: true,
            logprobs: (!greedy).then_some(0),
            return_bare_logprobs: !greedy,
            return_token_ids: true,
            return_weight_versions: true,
            detokenize: !params.stop.is_empty(),
            request_id: name,
        };
        // In the header, too, where a proxy between the pods would write a name of its own.
        let named = |call: RequestBuilder| call.header(REQUEST_ID, name).json(&body);
        let answer: Answer = self.json(Method::POST, PATH, deadline, named).await?;
        self.completions(request, answer)
            .map_err(|cause| self.failed(PATH, cause, true))
    }

    fn completions(&self, request: &Request, answer: Answer) -> Result<Vec<Completion>, String> {
        let wanted = request.seeds.len();
        if answer.choices.len() != wanted {
            return Err(format!("{} choices in answer to {wanted} seeds", answer.choices.len()));
        }
        let mut completions: Vec<Option<Completion>> = (0..wanted).map(|_| None).collect();
        for choice in answer.choices {
            let index = choice.index;
            let place = completions
                .get_mut(index)
                .ok_or_else(|| format!("there is no choice {index}"))?;
            *place = Some(completion(choice, is_greedy(request.params.temperature))?);
        }
        let all: Option<Vec<Completion>> = completions.into_iter().collect();
        all.ok_or_else(|| "a choice occurs twice".to_owned())
    }

    /// Which weights the engine has.
    ///
    /// # Errors
    /// When there is no answer, also while its model loads.
    pub async fn policy(&self) -> Result<PolicyVersion, CallError> {
        const PATH: &str = "/weight_info";
        let loaded: LoadedWeights = self.json(Method::GET, PATH, SHORT, |call| call).await?;
        loaded.policy().map_err(|cause| self.failed(PATH, cause, false))
    }

    /// Streams the published weights of `version`, a piece at a time; the engine checks their hash and swaps between two
    /// passes. One that has the version before gets what changed, where that is little.
    ///
    /// # Errors
    /// When they did not arrive whole and in time; the engine then has the old ones.
    pub async fn update_weights(
        &self,
        publication: &Publication,
        version: u64,
        deadline: Duration,
    ) -> Result<(), CallError> {
        let path = update_path(publication.policy(version));
        let reading = publication.read(version);
        let reading = reading.ok_or_else(|| self.failed(&path, "another version is published by now".into(), true))?;
        let began = Instant::now();
        if let Some((delta, base)) = reading.delta_for(self.name()) {
            let pieces = reading.pieces(&delta).map(Ok::<_, Infallible>);
            let body = Body::wrap_stream(futures::stream::iter(pieces));
            let from = format!("{path}&delta_from={base}");
            match self.send_stream(body, &from, deadline).await {
                Ok(loaded) => {
                    reading.note_held(self.name(), loaded);
                    return Ok(());
                }
                // It is another one under the same name, or was given others since; it may not have waited for what it refuses.
                Err(refused) => tracing::info!("{refused}; all of the weights are sent"),
            }
        }
        let left = deadline.saturating_sub(began.elapsed());
        if left.is_zero() {
            let late = format!(
                "what changed of the weights was not taken within {} s",
                deadline.as_secs()
            );
            return Err(self.failed(&path, late, true));
        }
        let unread = |error: anyhow::Error| self.failed(&path, format!("the weights cannot be read: {error:#}"), false);
        let stream = reading.stream().map_err(unread)?;
        let loaded = self.send_stream(Body::wrap_stream(stream), &path, left).await?;
        reading.note_held(self.name(), loaded);
        Ok(())
    }

    async fn send_stream(&self, body: Body, path: &str, deadline: Duration) -> Result<LoadedWeights, CallError> {
        self.json(Method::POST, path, deadline, |call| {
            call.header(CONTENT_TYPE, "application/octet-stream").body(body)
        })
        .await
    }

    /// GPUs of a vLLM behind its door.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn world_size(&self) -> Result<usize, CallError> {
        let size: WorldSize = self.json(Method::GET, "/get_world_size", SHORT, |call| call).await?;
        Ok(size.world_size)
    }

    /// Lets vLLM join a communicator of the actor's `attempt`; it comes back when all ranks have come.
    ///
    /// # Errors
    /// When it does not join in time, and when a newer attempt has come.
    pub async fn join(&self, init: &Init, attempt: Option<u32>, deadline: Duration) -> Result<(), CallError> {
        let query = attempt.map_or_else(String::new, |attempt| format!("?attempt={attempt}"));
        let path = format!("/init_weight_transfer_engine{query}");
        let joined = self.json::<IgnoredAny>(Method::POST, &path, deadline, |call| call.json(init));
        joined.await.map(drop)
    }

    /// Lets vLLM receive what is sent by the communicator that it has joined.
    ///
    /// # Errors
    /// When it did not receive all in time; its weights are in doubt then.
    pub async fn receive(
        &self,
        policy: PolicyVersion,
        transfer: &Transfer,
        deadline: Duration,
    ) -> Result<(), CallError> {
        let path = update_path(policy);
        let received = self.json::<LoadedWeights>(Method::POST, &path, deadline, |call| call.json(transfer));
        received.await.map(drop)
    }

    /// Returns once the engine no longer answers its probe, as a node that is lost closes no connection, or says that it is not well.
    pub async fn gone(&self) -> CallError {
        const MISSES: u32 = 3;
        let mut misses = 0;
        loop {
            tokio::time::sleep(self.caller.probe_every).await;
            match self.probe().await {
                Ok(()) => misses = 0,
                Err(why) => {
                    misses += 1;
                    if misses == MISSES {
                        return self.failed(PROBE, format!("its probe failed {MISSES} times: {why}"), true);
                    }
                }
            }
        }
    }

    async fn probe(&self) -> Result<(), String> {
        let call = self.caller.request(Method::GET, &self.member, PROBE).timeout(SHORT);
        let answer = call.send().await.map_err(|error| innermost(&error))?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("{status}: {}", refusal(answer).await)),
        }
    }

    /// A sample came from another version than the one that was published.
    pub fn stale(&self, drawn: u64, wanted: u64) -> CallError {
        let cause = format!("tokens of policy version {drawn} in answer to a request for version {wanted}");
        self.failed("/v1/completions", cause, true)
    }

    async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        deadline: Duration,
        fill: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Result<T, CallError> {
        let call = self.caller.request(method, &self.member, path);
        self.caller
            .answer(Role::Rollout, &self.member, path, deadline, fill(call))
            .await
    }

    fn failed(&self, path: &str, cause: String, may_pass: bool) -> CallError {
        CallError::new(Role::Rollout, &self.member, path, cause, may_pass)
    }
}

/// Where an engine is given weights.
fn update_path(PolicyVersion { attempt, version }: PolicyVersion) -> String {
    let attempt = attempt.map_or_else(String::new, |attempt| format!("&attempt={attempt}"));
    format!("/update_weights?weight_version={version}{attempt}")
}

/// Greedy tokens have log-probability 0, as in [`Completion::logprobs`].
fn completion(choice: Choice, greedy: bool) -> Result<Completion, String> {
    let tokens = choice.token_ids;
    let logprobs = match choice.logprobs {
        _ if greedy => vec![0.0; tokens.len()],
        Some(logprobs) => logprobs.token_logprobs,
        None => return Err("no log-probabilities".into()),
    };
    if logprobs.len() != tokens.len() {
        return Err(format!(
            "{} log-probabilities for {} tokens",
            logprobs.len(),
            tokens.len()
        ));
    }
    let mut versions = Vec::with_capacity(tokens.len());
    for span in choice.weight_versions {
        if span.start != versions.len() || span.end > tokens.len() || span.end < span.start {
            return Err("the spans of weight versions do not cover the tokens".into());
        }
        let version = span.version.parse();
        let version: u64 = version.map_err(|_| format!("{:?} is no weight version", span.version))?;
        versions.resize(span.end, version);
    }
    if versions.len() != tokens.len() {
        return Err("tokens without a weight version".into());
    }
    let finish_reason = match choice.finish_reason.as_deref() {
        Some("stop") => FinishReason::Stop,
        Some("length") => FinishReason::Length,
        Some("abort") => return Err("handed back unfinished: the engine shuts down or was told to".into()),
        other => return Err(format!("finish reason {other:?}")),
    };
    Ok(Completion {
        tokens,
        logprobs,
        finish_reason,
        versions,
        top_logprobs: Vec::new(),
        prompt_logprobs: None,
    })
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;

    use super::*;
    use crate::serving::error::ApiError;

    #[tokio::test]
    async fn an_engine_that_says_that_it_is_not_well_is_gone_in_its_own_words() {
        let unwell = || async { ApiError::unavailable("the rollout engine failed: a pass has not ended for 900 s") };
        let member = Member::serving("math-rollout-0", Router::new().route(PROBE, get(unwell))).await;
        let mut caller = Caller::new("token".into()).unwrap();
        caller.probe_every = Duration::from_millis(1);
        let gone = tokio::time::timeout(SHORT, Endpoint::new(member, caller).gone()).await;
        let words = gone.unwrap().to_string();
        let said = "its probe failed 3 times: 503 Service Unavailable: the rollout engine failed: a pass has not";
        assert!(words.contains(said), "{words}");
    }
}
