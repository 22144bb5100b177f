//! Why a reconcile has to be tried again, and what comes of that.

use kube::core::Status;

use crate::world::Kind;

/// Why a reconcile has to be tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request was refused or got no answer.
    #[error("{what}: {source}")]
    Request {
        /// What was asked.
        what: String,
        /// Kind of the job's object that was to be made or changed; None for anything else.
        kind: Option<Kind>,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// Another object has a name that the job needs.
    #[error("{kind} {name} belongs to {owner}; the job waits until it is gone")]
    NameTaken {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
        /// Whose it is.
        owner: String,
    },
    /// The job changed since it was read; nothing was deleted on the old word.
    #[error("the job changed since it was read")]
    Stale,
    /// It had no end: a request got no answer.
    #[error("no end within {seconds} s: the API server has left a request without an answer")]
    Late {
        /// The deadline.
        seconds: u64,
    },
}

impl Error {
    /// Of a request that `what` names, which is to make or change an object of the job of this `kind`, if any.
    pub fn request(what: impl Into<String>, kind: impl Into<Option<Kind>>) -> impl FnOnce(kube::Error) -> Self {
        let (what, kind) = (what.into(), kind.into());
        move |source| Self::Request {
            what,
            kind,
            source: Box::new(source),
        }
    }

    /// Every word of [`kind`](Self::kind).
    pub const KINDS: [&str; 7] = [
        "conflict",
        "throttled",
        "forbidden",
        "refused",
        "connection",
        "name-taken",
        "stale",
    ];

    /// The API server's answer, when it refused a request.
    fn refusal(&self) -> Option<&Status> {
        let Self::Request { source, .. } = self else {
            return None;
        };
        match source.as_ref() {
            kube::Error::Api(status) => Some(status),
            _ => None,
        }
    }

    /// Whether another try ends the same way: the API server takes a pod for invalid. What else it takes for invalid may be valid in a
    /// moment, such as another queue for a Workload that has just got quota.
    pub fn is_final(&self) -> bool {
        let of_pod = matches!(
            self,
            Self::Request {
                kind: Some(Kind::Pod),
                ..
            }
        );
        of_pod && self.refusal().is_some_and(Status::is_invalid)
    }

    /// Whether the API server does not serve a gang scheduler's kind any more: it was uninstalled.
    pub fn is_of_unserved_gang(&self) -> bool {
        let of_gang = matches!(self, Self::Request { kind: Some(kind), .. } if Kind::GANGS.contains(kind));
        of_gang && self.refusal().is_some_and(|status| status.code == 404)
    }

    /// Whether a person has to do something before another try can succeed.
    pub fn needs_a_person(&self) -> bool {
        let refused = |status: &Status| status.is_forbidden() || status.is_invalid();
        let taken = matches!(self, Self::NameTaken { .. });
        taken || self.is_of_unserved_gang() || self.refusal().is_some_and(refused)
    }

    /// What was refused and why, when a person has to do something about it.
    pub fn refused(&self) -> Option<String> {
        let words = match (self, self.refusal()) {
            (Self::Request { what, .. }, Some(status)) => format!("{what}: {}", status.message),
            _ => self.to_string(),
        };
        self.needs_a_person().then_some(words)
    }

    /// What was asked and answered, when a webhook that has to approve it did not answer.
    pub fn unanswered_webhook(&self) -> Option<String> {
        let Self::Request { what, source, .. } = self else {
            return None;
        };
        match source.as_ref() {
            kube::Error::Api(status) if status.code >= 500 && status.message.contains("webhook") => {
                Some(format!("{what}: {}", status.message))
            }
            _ => None,
        }
    }

    /// The word in metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Request { source, .. } => match source.as_ref() {
                kube::Error::Api(status) if status.is_conflict() => "conflict",
                kube::Error::Api(status) if status.code == 429 => "throttled",
                kube::Error::Api(status) if status.is_forbidden() => "forbidden",
                kube::Error::Api(_) => "refused",
                _ => "connection",
            },
            Self::NameTaken { .. } => "name-taken",
            Self::Stale => "stale",
            Self::Late { .. } => "connection",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(reason: &str, code: u16) -> Error {
        making(Kind::Pod, reason, code)
    }

    fn making(kind: Kind, reason: &str, code: u16) -> Error {
        let refusal = Status::failure("", reason).with_code(code);
        Error::request("an object", kind)(kube::Error::Api(refusal.boxed()))
    }

    #[test]
    fn only_a_pod_that_is_invalid_is_refused_for_ever() {
        assert!(answer("Invalid", 422).is_final());
        assert!(!answer("Forbidden", 403).is_final());
        // A queue may not change while Kueue reserves quota, which the watch has not shown yet.
        let workload = making(Kind::KueueWorkload, "Invalid", 422);
        assert!(workload.needs_a_person() && !workload.is_final());
    }

    #[test]
    fn a_refusal_is_told_in_the_api_servers_words_where_trying_again_does_not_help() {
        let status = Status::failure("exceeded quota: gpus", "Forbidden").with_code(403);
        let error = Error::request("creating Pod a-actor-0", Kind::Pod)(kube::Error::Api(status.boxed()));
        let words = "creating Pod a-actor-0: exceeded quota: gpus";
        assert_eq!(error.refused().as_deref(), Some(words));
        assert_eq!(answer("Conflict", 409).refused(), None);
    }

    #[test]
    fn a_kind_that_was_uninstalled_needs_a_person() {
        // The answer for a kind that is not served is plain text, without a reason.
        let gone = making(Kind::KueueWorkload, "Failed to parse error data", 404);
        assert!(gone.needs_a_person() && gone.is_of_unserved_gang());
        // What else is not found went with its job.
        assert!(!answer("NotFound", 404).needs_a_person());
    }

    #[test]
    fn every_kind_of_error_is_counted_from_the_start() {
        let errors = [
            answer("Conflict", 409),
            answer("TooManyRequests", 429),
            answer("Forbidden", 403),
            answer("Invalid", 422),
            Error::request("a pod", None)(kube::Error::LinesCodecMaxLineLengthExceeded),
            Error::NameTaken {
                kind: "Pod",
                name: "a".into(),
                owner: "b".into(),
            },
            Error::Stale,
        ];
        assert_eq!(errors.map(|error| error.kind()), Error::KINDS);
        assert!(Error::KINDS.contains(&Error::Late { seconds: 60 }.kind()));
    }
}
