//! The actor as an engine reaches it: which weights are published, and the weights.

use std::time::Duration;

use axum::body::Bytes;
use futures::Stream;
use ppo_crds::spec::Role;
use reqwest::Method;

use super::published::{INFO, WEIGHTS};
use super::{CallError, Caller, Member, Members};
use crate::http_client::{innermost, refusal};
use crate::rollout::weights::LoadedWeights;
use crate::rollout::weights::attempt::PolicyVersion;

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

    /// The weights `policy`, as [`frame`](crate::rollout::weights::frame) has them.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roles::{Publication, published};

    #[tokio::test]
    async fn an_actor_that_refuses_its_weights_is_told_with_its_own_words() {
        let member = Member::serving("math-actor-0", published::router(Publication::new(2), "token")).await;
        let actor = Actor::new(Members::Fixed(vec![member]), Caller::new("token".into()).unwrap());
        let policy = PolicyVersion {
            attempt: Some(1),
            version: 3,
        };
        let Err(refused) = actor.weights(policy).await else {
            panic!("weights of another attempt were given");
        };
        let words = refused.to_string();
        assert!(
            words.starts_with("actor math-actor-0 (") && words.contains("weights are of another attempt"),
            "{words}"
        );
    }
}
