//! A call from role to role that failed.

use ppo_crds::spec::Role;

use super::Member;

/// A failed call: which pod of which role, where, why, and whether another try may help.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{} {pod} ({url}): {cause}", role.name())]
pub struct CallError {
    /// The role that was called.
    pub role: Role,
    /// Its pod, or the server's address.
    pub pod: String,
    /// What was asked.
    pub url: String,
    /// Why there is no answer.
    pub cause: String,
    /// Whether the same call may succeed later, or elsewhere. What the other side understood and refused stays refused.
    pub may_pass: bool,
    /// Status of an answer that says no; None where there was no answer, or not what was asked for.
    pub status: Option<u16>,
    /// Whether there was no connection: the pod starts, or is gone.
    pub unreachable: bool,
}

impl CallError {
    /// A call of `path` at a member of a role.
    pub fn new(role: Role, member: &Member, path: &str, cause: String, may_pass: bool) -> Self {
        Self {
            role,
            pod: member.name.clone(),
            url: member.url(path),
            cause,
            may_pass,
            status: None,
            unreachable: false,
        }
    }

    /// Whether it says no more than that the pod starts, or is made anew.
    pub fn starts(&self) -> bool {
        self.unreachable || self.status == Some(503)
    }
}
