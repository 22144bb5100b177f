//! Calls from role to role over HTTP: the job's token, a deadline, and an error that names role, pod, URL and cause.

use std::time::Duration;

use ppo_crds::pod::env;
use ppo_crds::spec::Role;
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{CallError, Member};
use crate::http_client::{innermost, said};

/// To connect.
const CONNECT: Duration = Duration::from_secs(5);
/// Between two looks at whether a pod that computes is still there.
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// An idle connection is given up before the other side closes it.
const IDLE: Duration = Duration::from_secs(15);
/// Longest answer that is read.
const LONGEST_ANSWER: usize = 256 << 20;

/// Calls other roles.
#[derive(Clone, Debug)]
pub struct Caller {
    client: Client,
    token: String,
    /// See [`PROBE_EVERY`].
    pub(crate) probe_every: Duration,
}

impl Caller {
    /// A caller with the job's token.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn new(token: String) -> reqwest::Result<Self> {
        // Pods are reached directly, whatever proxy the image was built behind.
        let client = crate::http_client::builder()
            .connect_timeout(CONNECT)
            .pool_idle_timeout(IDLE)
            .no_proxy()
            .build()?;
        Ok(Self {
            client,
            token,
            probe_every: PROBE_EVERY,
        })
    }

    /// A request with the token.
    pub fn request(&self, method: Method, member: &Member, path: &str) -> RequestBuilder {
        self.client.request(method, member.url(path)).bearer_auth(&self.token)
    }

    /// Posts JSON and reads JSON.
    ///
    /// # Errors
    /// When there is no answer in time, or not what was asked for.
    pub async fn post<T: DeserializeOwned>(
        &self,
        role: Role,
        member: &Member,
        path: &str,
        body: &impl Serialize,
        deadline: Duration,
    ) -> Result<T, CallError> {
        let call = self.request(Method::POST, member, path).json(body);
        self.answer(role, member, path, deadline, call).await
    }

    /// Gets JSON.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub async fn get<T: DeserializeOwned>(
        &self,
        role: Role,
        member: &Member,
        path: &str,
        deadline: Duration,
    ) -> Result<T, CallError> {
        let call = self.request(Method::GET, member, path);
        self.answer(role, member, path, deadline, call).await
    }

    /// Sends a request and reads JSON.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub async fn answer<T: DeserializeOwned>(
        &self,
        role: Role,
        member: &Member,
        path: &str,
        deadline: Duration,
        call: RequestBuilder,
    ) -> Result<T, CallError> {
        let failed = |cause: String, may_pass: bool| CallError::new(role, member, path, cause, may_pass);
        let lost = |error: reqwest::Error| {
            let cause = match (error.is_timeout(), error.is_connect()) {
                // It was not waited for any longer, however long an answer may take.
                (true, true) => format!("no connection within {} s", CONNECT.min(deadline).as_secs()),
                (true, false) => format!("no answer within {} s", deadline.as_secs()),
                (false, _) => innermost(&error),
            };
            CallError {
                unreachable: error.is_connect(),
                ..failed(cause, true)
            }
        };
        let mut answer = call.timeout(deadline).send().await.map_err(lost)?;
        let status = answer.status();
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(lost)? {
            if body.len() + chunk.len() > LONGEST_ANSWER {
                let words = format!("an answer of more than {LONGEST_ANSWER} bytes{}", shorter(role));
                return Err(failed(words, false));
            }
            body.extend_from_slice(&chunk);
        }
        if !status.is_success() {
            // 4xx is what the other side understood and refused; but for 408, 409 and 429, which say "later".
            let later = [408, 409, 429].contains(&status.as_u16());
            let mut words = format!("{status}: {}", said(&body));
            if status == StatusCode::UNAUTHORIZED {
                let token = env::TOKEN;
                words += &format!(
                    "; all pods of a job have one {token}: this one is another job's, or was made with another {token}"
                );
            }
            return Err(CallError {
                status: Some(status.as_u16()),
                ..failed(words, status.is_server_error() || later)
            });
        }
        let read = serde_json::from_slice(&body);
        read.map_err(|error| failed(format!("not the answer that was expected: {error}"), false))
    }
}

/// What makes a role's answers shorter.
fn shorter(role: Role) -> &'static str {
    match role {
        Role::Reference => ": lower batch.microRolloutBatchSize",
        Role::Rollout => ": lower batch.nSamplesPerPrompt or generation.maxNewTokens",
        Role::Actor | Role::Reward => "",
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use tokio::net::{TcpSocket, TcpStream};

    use super::*;

    #[tokio::test]
    async fn a_pod_that_nobody_can_connect_to_was_not_waited_for_as_long_as_an_answer_may_take() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(0).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        // It waits to be taken, and there is no room for another: what comes then is dropped, as by a node that is lost.
        let _first = TcpStream::connect(&address).await.unwrap();
        let name = "math-reference-0".to_owned();
        let caller = Caller::new("token".into()).unwrap();
        let member = Member { name, address };
        let answer = caller.get::<u32>(Role::Reference, &member, "/x", 100 * CONNECT).await;
        let error = answer.unwrap_err();
        assert!(error.unreachable);
        assert_eq!(error.cause, "no connection within 5 s");
    }

    #[tokio::test]
    async fn a_pod_that_takes_another_token_is_named_with_what_gives_pods_theirs() {
        let router = Router::new().route("/x", get(|| async { (axum::http::StatusCode::UNAUTHORIZED, "no") }));
        let member = Member::serving("math-rollout-0", router).await;
        let caller = Caller::new("token".into()).unwrap();
        let answer = caller.get::<u32>(Role::Rollout, &member, "/x", CONNECT).await;
        let words = answer.unwrap_err().to_string();
        assert!(
            words.starts_with("rollout math-rollout-0 (http://")
                && words.contains("401 Unauthorized: no; all pods of a job have one PPO_TOKEN"),
            "{words}"
        );
    }
}
