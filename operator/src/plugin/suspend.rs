//! `kubectl ppo suspend` and `resume`.

mod change;
mod labels;
mod wait;

use anyhow::{Result, bail};

use super::cli::{ResumeArgs, SuspendArgs};
use super::connection::Connection;
use super::{job, printer};
use change::{Change, apply, over, warn_of_misfit};
use wait::{Limit, wait};

pub use change::MANAGER;

/// Suspends jobs, unless that costs their checkpoints and who asks has not agreed to it.
pub async fn suspend(connection: &Connection, args: &SuspendArgs) -> Result<()> {
    let change = Change {
        suspend: true,
        is_agreed: args.discard_checkpoints,
    };
    set(connection, &args.jobs, change).await
}

/// Lets jobs go on, which costs nothing.
pub async fn resume(connection: &Connection, args: &ResumeArgs) -> Result<()> {
    let change = Change {
        suspend: false,
        is_agreed: true,
    };
    set(connection, args, change).await
}

async fn set(connection: &Connection, args: &ResumeArgs, change: Change) -> Result<()> {
    match (&args.name, &args.selector) {
        (Some(name), _) => of_name(connection, args, name, change).await,
        (None, Some(selector)) => labels::set(connection, args, selector, change).await,
        (None, None) => bail!("give NAME, or -l SELECTOR"),
    }
}

/// Sets it in one job, and waits for the effect when asked to.
async fn of_name(connection: &Connection, args: &ResumeArgs, name: &str, change: Change) -> Result<()> {
    let job = job::object(connection, name).await?;
    if let Some(over) = over(&job) {
        bail!("{name} {over}: it cannot be {}", change.done());
    }
    printer::print(&apply(connection, &job, change).await?)?;
    if args.wait {
        return wait(connection, name, change.suspend, Limit::from_now(args.timeout), "").await;
    }
    warn_of_misfit(connection, &job).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use axum::routing::get;
    use axum::{Json, Router};
    use ppo_crds::PpoJob;
    use serde_json::json;

    use super::*;

    /// A job of that spec, generation and status.
    pub fn job(suspend: bool, generation: i64, status: serde_json::Value) -> PpoJob {
        serde_json::from_value(json!({
            "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "a", "generation": generation},
            "spec": {"model": {"policy": {"path": "/m"}}, "prompts": {"source": {"path": "/p.jsonl"}},
                     "roles": {"reward": {}}, "runPolicy": {"suspend": suspend}},
            "status": status,
        }))
        .unwrap()
    }

    fn args(discard_checkpoints: bool) -> SuspendArgs {
        let jobs = ResumeArgs {
            name: Some("a".into()),
            selector: None,
            wait: false,
            timeout: Duration::ZERO,
        };
        SuspendArgs {
            jobs,
            discard_checkpoints,
        }
    }

    #[tokio::test]
    async fn a_job_whose_checkpoints_go_with_its_pod_is_left_as_it_is_unless_that_is_meant() {
        let patches = Arc::new(AtomicUsize::new(0));
        let (counted, trained) = (
            patches.clone(),
            job(false, 1, json!({"phase": "Running", "progress": {"step": 3}})),
        );
        let patched = trained.clone();
        let of_job = get(move || async move { Json(trained) }).patch(move || async move {
            counted.fetch_add(1, Ordering::SeqCst);
            Json(patched)
        });
        let router = Router::new().route("/apis/ppojob.dev/v1alpha1/namespaces/n/ppojobs/a", of_job);
        let connection = Connection::served(router).await;
        let error = suspend(&connection, &args(false)).await.unwrap_err().to_string();
        assert!(
            error.contains("a is not suspended: its checkpoints go with its pod"),
            "{error}"
        );
        assert_eq!(patches.load(Ordering::SeqCst), 0);
        suspend(&connection, &args(true)).await.unwrap();
        assert_eq!(patches.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_job_that_was_deleted_is_neither_suspended_nor_resumed() {
        let mut going = job(false, 1, json!({"phase": "Running"}));
        going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let router = Router::new().route(
            "/apis/ppojob.dev/v1alpha1/namespaces/n/ppojobs/a",
            get(move || async move { Json(going) }),
        );
        let (connection, args) = (Connection::served(router).await, args(false));
        for asked in [suspend(&connection, &args).await, resume(&connection, &args.jobs).await] {
            let error = asked.unwrap_err().to_string();
            assert!(error.contains("a was deleted"), "{error}");
        }
    }
}
