//! One try of a reconcile: how long it may take, and where a refusal is reported.

use std::sync::Arc;

use kube::core::DeserializeGuard;
use kube::runtime::controller::Action as Next;
use ppo_crds::PpoJob;
use tokio::time::timeout;

use super::error::Error;
use super::reconcile;
use crate::context::Context;
use crate::events;
use crate::world::JobKey;

/// Reconciles within the deadline. A node that dies after it took a request never answers it, and no connection breaks: without an
/// end the job would be left alone for ever, and its turn to write with it. Ending it between any two steps is what a process that is
/// killed does, too: the status was first, and names say what is there already.
///
/// # Errors
/// Why it has to be tried again.
pub async fn attempt(object: Arc<DeserializeGuard<PpoJob>>, context: Arc<Context>) -> Result<Next, Error> {
    let seconds = context.reconcile_deadline.as_secs();
    let ended = timeout(context.reconcile_deadline, told(object, context)).await;
    ended.unwrap_or(Err(Error::Late { seconds }))
}

/// Reconciles, and tells whoever has to do something for the next try to succeed.
async fn told(object: Arc<DeserializeGuard<PpoJob>>, context: Arc<Context>) -> Result<Next, Error> {
    let ended = reconcile(object.clone(), context.clone()).await;
    if let Err(error) = &ended {
        if error.is_of_unserved_gang() {
            context.served.doubt();
        }
        // A webhook that may only be restarting, or quota that came a moment before, is told of once that has lasted.
        let lasting = || {
            error.passing()?;
            context.refused.words(&JobKey::of(object.as_ref()), context.now())
        };
        if let Some(words) = error.refused().or_else(lasting) {
            events::refused(object.as_ref(), &words, &context).await;
        }
    }
    ended
}
