//! One look at one job: read, plan, record, apply.

pub use read::Subject;

mod apply;
mod read;
mod record;
mod write;

use std::sync::Arc;
use std::time::Duration;

use kube::core::DeserializeGuard;
use kube::runtime::controller::Action as Next;
use ppo_crds::PpoJob;

use crate::context::Context;
use crate::plan::plan;
use crate::world::JobKey;

/// Longest pause before a webhook that did not answer is asked again.
const WEBHOOK_PAUSE: Duration = Duration::from_secs(5);

/// Why a reconcile has to be tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request was refused or got no answer.
    #[error("{what}: {source}")]
    Request {
        /// What was asked.
        what: String,
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
}

impl Error {
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

    /// Whether another try ends the same way: the API server takes the object for invalid.
    pub fn is_final(&self) -> bool {
        let Self::Request { source, .. } = self else {
            return false;
        };
        matches!(source.as_ref(), kube::Error::Api(status) if status.is_invalid())
    }

    /// Whether a person has to do something before another try can succeed.
    pub fn needs_a_person(&self) -> bool {
        match self {
            Self::NameTaken { .. } => true,
            Self::Request { source, .. } => {
                matches!(source.as_ref(), kube::Error::Api(status) if status.is_forbidden() || status.is_invalid())
            }
            Self::Stale => false,
        }
    }

    /// What was asked and answered, when a webhook that has to approve it did not answer.
    pub fn unanswered_webhook(&self) -> Option<String> {
        let Self::Request { what, source } = self else {
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
        }
    }
}

/// Brings the world one step closer to what the job says. Without a change in the world it writes nothing.
pub async fn reconcile(object: Arc<DeserializeGuard<PpoJob>>, context: Arc<Context>) -> Result<Next, Error> {
    let _timer = context.metrics.reconcile_seconds.start_timer();
    context.queued.lock().remove(&JobKey::of(object.as_ref()));
    let Some(job) = read::job(&object, &context).await else {
        return Ok(Next::await_change());
    };
    let seen = read::snapshot(&job, &context).await?;
    let now = context.now();
    let plan = plan(&job.checked, &seen, &job.status, &context.settings, now);
    // The status first: it holds the decisions, and what follows must not happen without them.
    let held_back = record::status(&job, &plan, &context).await?;
    context.metrics.observe(&job.checked, &plan.status);
    let refused = apply::all(&job, &plan.status, plan.waves, &context).await.err();
    if let Some(error) = refused {
        return record::refusal(&job, &plan.status, error, &context).await;
    }
    context.backoff.forget(&job.checked.key);
    let due = plan
        .wake
        .map(|wake| Duration::try_from(wake.duration_since(now)).unwrap_or_default());
    let patience = context.expected.patience(&job.checked.key);
    Ok(due
        .into_iter()
        .chain(held_back)
        .chain(patience)
        .min()
        .map_or_else(Next::await_change, Next::requeue))
}

/// Tries again, later each time.
pub fn retry(object: Arc<DeserializeGuard<PpoJob>>, error: &Error, context: Arc<Context>) -> Next {
    let key = JobKey::of(object.as_ref());
    let mut delay = context.backoff.next(&key);
    if error.unanswered_webhook().is_some() {
        // Nothing tells when it is back.
        delay = delay.min(WEBHOOK_PAUSE);
    }
    context
        .metrics
        .reconcile_errors
        .with_label_values(&[error.kind()])
        .inc();
    match error {
        // Somebody else wrote first: the watch brings the news.
        Error::Stale => tracing::debug!(job = %key, %error, "reconciled again soon"),
        _ => {
            tracing::warn!(job = %key, %error, delay_seconds = delay.as_secs_f64(), "a reconcile failed and is tried again")
        }
    }
    Next::requeue(delay)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn every_kind_of_error_is_counted_from_the_start() {
        let answer = |reason: &str, code: u16| Error::Request {
            what: "a pod".into(),
            source: Box::new(kube::Error::Api(Status::failure("", reason).with_code(code).boxed())),
        };
        let errors = [
            answer("Conflict", 409),
            answer("TooManyRequests", 429),
            answer("Forbidden", 403),
            answer("Invalid", 422),
            Error::Request {
                what: "a pod".into(),
                source: Box::new(kube::Error::LinesCodecMaxLineLengthExceeded),
            },
            Error::NameTaken {
                kind: "Pod",
                name: "a".into(),
                owner: "b".into(),
            },
            Error::Stale,
        ];
        assert_eq!(errors.map(|error| error.kind()), Error::KINDS);
    }
}
