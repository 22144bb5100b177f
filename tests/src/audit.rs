//! The API server's audit log: who asked for what, how often.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::ControlPlane;

/// One request, as far as it is of interest here.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditEvent {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`.
    pub verb: String,
    /// Who asked.
    #[serde(default)]
    pub user: User,
    /// The client's User-Agent header.
    #[serde(default)]
    pub user_agent: String,
    /// Path and query.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// `ResponseStarted` (long-running requests) or `ResponseComplete`.
    pub stage: String,
    /// The object; none for discovery.
    pub object_ref: Option<ObjectRef>,
    /// What the server answered.
    pub response_status: Option<ResponseStatus>,
}

/// Who asked.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct User {
    /// `system:serviceaccount:<namespace>:<name>` for a service account.
    pub username: String,
}

/// The object of a request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ObjectRef {
    /// Plural name of its type.
    pub resource: String,
    /// `status`, `scale`, `binding`, or empty.
    pub subresource: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name; empty for lists and creations.
    pub name: String,
}

/// What the server answered.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResponseStatus {
    /// HTTP status.
    pub code: u16,
}

/// Numbers of requests by verb and resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests(pub BTreeMap<(String, String), usize>);

impl Requests {
    /// Requests that change something.
    pub fn writes(&self) -> usize {
        let reads = ["get", "list", "watch"];
        let writes = self.0.iter().filter(|((verb, _), _)| !reads.contains(&verb.as_str()));
        writes.map(|(_, count)| count).sum()
    }

    /// All requests.
    pub fn total(&self) -> usize {
        self.0.values().sum()
    }
}

impl fmt::Display for Requests {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((verb, resource), count) in &self.0 {
            writeln!(out, "{count:>7} {verb} {resource}")?;
        }
        Ok(())
    }
}

impl ControlPlane {
    /// Every request so far, from the position that an earlier call returned (0: from the start), and the new position.
    /// Needs [`Options::audited`](crate::Options::audited).
    ///
    /// # Errors
    /// When the cluster writes no audit log.
    pub fn audit_events(&self, from: usize) -> Result<(Vec<AuditEvent>, usize)> {
        let path = self.folder()?.join("audit.log");
        let log = std::fs::read(&path)
            .with_context(|| format!("{} cannot be read: start with Options::audited()", path.display()))?;
        // The server may be in the middle of a line.
        let end = log
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |newline| newline + 1);
        let mut events = Vec::new();
        for line in log[from.min(end)..end]
            .split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            events.push(serde_json::from_slice(line).context("a line of the audit log")?);
        }
        Ok((events, end))
    }
}

impl AuditEvent {
    /// Counts the requests of clients whose User-Agent starts with `user_agent`. A watch counts when it starts, all else when
    /// it is answered.
    pub fn count(events: &[Self], user_agent: &str) -> Requests {
        let mut requests = Requests::default();
        for event in events.iter().filter(|event| event.user_agent.starts_with(user_agent)) {
            let counted = if event.verb == "watch" {
                "ResponseStarted"
            } else {
                "ResponseComplete"
            };
            if event.stage == counted {
                *requests.0.entry((event.verb.clone(), event.resource())).or_default() += 1;
            }
        }
        requests
    }

    /// `pods`, `pods/status`; the path for what is no object.
    pub fn resource(&self) -> String {
        match &self.object_ref {
            Some(ObjectRef {
                resource, subresource, ..
            }) if subresource.is_empty() => resource.clone(),
            Some(ObjectRef {
                resource, subresource, ..
            }) => format!("{resource}/{subresource}"),
            None => self.request_uri.clone(),
        }
    }
}
