//! The actor as an engine reaches it: which weights are published, and the weights.

use std::time::Duration;

use axum::body::Bytes;
use futures::Stream;
use ppo_crds::spec::Role;
use reqwest::Method;

use super::weights::LoadedWeights;
use super::weights::attempt::PolicyVersion;
use crate::http_client::{innermost, refusal};
use crate::pods::{CallError, Caller, Member, Members};

/// Which version is published.
pub const INFO: &str = "/weight_info";
/// The tensors of a version.
pub const WEIGHTS: &str = "/weights";

/// For an answer that needs no computing.
const SHORT: Duration = Duration::from_secs(10);

/// The actor's first rank, behind HTTP.
#[derive(Clone, Debug)]
pub struct Actor {
    members: Members,
    caller: Caller,
}

impl Actor {
    /// The actor whose pods are `members`.
    pub fn new(members: Members, caller: Caller) -> Self {
        Self { members, caller }
    }

    /// Which weights it has published.
    ///
    /// # Errors
    /// When there is no answer, also while its weights change.
    pub async fn policy(&self) -> Result<PolicyVersion, CallError> {
        let member = self.first(INFO).await?;
        let loaded: LoadedWeights = self.caller.get(Role::Actor, &member, INFO, SHORT).await?;
        let policy = loaded.policy();
        policy.map_err(|cause| CallError::new(Role::Actor, &member, INFO, cause, false))
    }

    /// The weights `policy`, as [`frame`](super::weights::frame) has them.
    ///
    /// # Errors
    /// When it does not answer, or has others by now.
    pub async fn weights(
        &self,
        policy: PolicyVersion,
    ) -> Result<impl Stream<Item = reqwest::Result<Bytes>> + Unpin + use<>, CallError> {
        let member = self.first(WEIGHTS).await?;
        let PolicyVersion { attempt, version } = policy;
        let attempt = attempt.map_or_else(String::new, |attempt| format!("&attempt={attempt}"));
        let path = format!("{WEIGHTS}?version={version}{attempt}");
        let failed = |cause: String| CallError::new(Role::Actor, &member, &path, cause, true);
        let call = self.caller.request(Method::GET, &member, &path);
        let answer = tokio::time::timeout(SHORT, call.send()).await;
        let answer = answer.map_err(|_| failed(format!("no answer within {} s", SHORT.as_secs())))?;
        let answer = answer.map_err(|error| failed(innermost(&error)))?;
        let status = answer.status();
        if !status.is_success() {
            let said = tokio::time::timeout(SHORT, refusal(answer)).await.unwrap_or_default();
            return Err(failed(format!("{status}: {said}")));
        }
        Ok(Box::pin(answer.bytes_stream()))
    }

    async fn first(&self, path: &str) -> Result<Member, CallError> {
        let present = self.members.present().await;
        present.into_iter().next().ok_or_else(|| CallError {
            role: Role::Actor,
            pod: self.members.words(),
            url: path.to_owned(),
            cause: "it has no address".into(),
            may_pass: true,
            status: None,
            unreachable: true,
        })
    }
}
