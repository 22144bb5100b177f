//! One look at one job: read, plan, record, apply.

pub use attempt::attempt;
pub use error::Error;
pub use read::Subject;
pub use refusals::Refusals;

mod apply;
mod attempt;
mod error;
mod late;
mod read;
mod record;
mod refusals;
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
    context.metrics.observe(&job.checked, &plan.status, &seen);
    let refused = apply::all(&job, &plan.status, plan.waves, &context).await.err();
    if let Some(error) = refused {
        return record::refusal(&job, &seen, &plan.status, error, &context).await;
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
