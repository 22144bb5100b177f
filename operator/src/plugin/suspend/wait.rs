//! Waits until a job is suspended, or runs.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use k8s_openapi::jiff::Timestamp;
use ppo_crds::PpoJob;
use ppo_crds::status::Phase;
use tokio::time::{Instant, sleep};

use crate::condition::{self, kind};
use crate::plugin::connection::Connection;
use crate::plugin::explain::explain;
use crate::plugin::refusal::{PATIENCE, is_lasting, is_not_found};
use crate::plugin::{job, printer, situation, unreadable};
use crate::status::SUSPENDED;

/// Pause between two looks at the job.
const PAUSE: Duration = Duration::from_secs(1);

/// Until when is waited.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    length: Duration,
    deadline: Instant,
}

impl Limit {
    pub(super) fn from_now(length: Duration) -> Self {
        let deadline = Instant::now() + length;
        Self { length, deadline }
    }
}

/// Waits for the effect in one job, and says what it waits for, each line behind `prefix`.
pub(super) async fn wait(connection: &Connection, name: &str, suspend: bool, limit: Limit, prefix: &str) -> Result<()> {
    let (deadline, mut shown) = (limit.deadline, String::new());
    let mut answered = Instant::now();
    loop {
        let job = match read(connection, name).await? {
            Ok(job) => job,
            Err(away) => {
                ride_out(away, answered, deadline)?;
                sleep(pause(deadline)).await;
                continue;
            }
        };
        answered = Instant::now();
        let state = match outcome(&job, suspend) {
            Outcome::Reached(state) => return printer::print(&format!("{prefix}{state}\n")),
            Outcome::Impossible(why) => bail!("{name} {why}"),
            Outcome::Waits(state) => state,
        };
        if state != shown {
            printer::print(&format!("{prefix}{state}\n"))?;
            shown = state;
        }
        if Instant::now() >= deadline {
            bail!(
                "gave up after {} s: {name} {shown}. {}",
                limit.length.as_secs_f64(),
                cause(connection, name).await
            );
        }
        sleep(pause(deadline)).await;
    }
}

fn pause(deadline: Instant) -> Duration {
    PAUSE.min(deadline.saturating_duration_since(Instant::now()))
}

/// The job; the inner error is of an API server that is away, and may be back at the next look.
async fn read(connection: &Connection, name: &str) -> Result<Result<PpoJob>> {
    let object = match connection.jobs().get(name).await {
        Ok(object) => object,
        Err(error) if is_not_found(&error) => bail!("{name} was deleted meanwhile"),
        Err(error) => {
            let is_lasting = is_lasting(&error);
            let refused = job::request(connection, "get").refused(error);
            return if is_lasting { Err(refused) } else { Ok(Err(refused)) };
        }
    };
    match unreadable::decode(&object) {
        Ok(job) => Ok(Ok(job)),
        Err(misfit) => Err(unreadable::explained(connection, name, &misfit).await),
    }
}

/// Goes on though the API server is `away`, which last `answered` then, unless that has lasted or the time to wait is over.
fn ride_out(away: anyhow::Error, answered: Instant, deadline: Instant) -> Result<()> {
    let (now, silent) = (Instant::now(), answered.elapsed());
    if now < deadline && silent <= PATIENCE {
        return Ok(());
    }
    Err(anyhow!(
        "gave up: {away:#} (no other answer for {} s); what was asked for stays so, and `kubectl ppo status` says what came of it",
        silent.as_secs()
    ))
}

enum Outcome {
    Reached(String),
    Impossible(String),
    Waits(String),
}

/// How far the job is on its way to Suspended or Running.
fn outcome(job: &PpoJob, suspend: bool) -> Outcome {
    if job.spec.run_policy.suspend != suspend {
        let who = if suspend { "resumed" } else { "suspended" };
        return Outcome::Impossible(format!("was {who} by somebody else meanwhile"));
    }
    let status = job.status.clone().unwrap_or_default();
    if status.observed_generation < job.metadata.generation {
        return Outcome::Waits("waits for the operator to see the change".into());
    }
    let ready = status.ready.clone().unwrap_or_else(|| "no".into());
    let suspended = condition::get(&status.conditions, kind::SUSPENDED);
    let is_over = suspended.is_some_and(|suspended| suspended.reason == SUSPENDED);
    match (status.phase, suspend) {
        (Some(Phase::Suspended), true) if is_over => Outcome::Reached("Suspended: its pods are gone".into()),
        (Some(Phase::Running), false) => Outcome::Reached(format!("Running: {ready} pods ready")),
        (Some(Phase::Succeeded), false) => Outcome::Reached("Succeeded".into()),
        (Some(phase @ (Phase::Succeeded | Phase::Failed)), _) => {
            Outcome::Impossible(format!("ended meanwhile: {phase:?}"))
        }
        (_, true) => Outcome::Waits("waits for its pods to save a checkpoint and stop".into()),
        (Some(Phase::Queued), false) => Outcome::Waits("is Queued: it waits for quota".into()),
        (Some(Phase::Scheduling), false) => Outcome::Waits("is Scheduling: its pods wait for nodes".into()),
        (Some(phase), false) => Outcome::Waits(format!("is {phase:?}: {ready} pods ready")),
        (None, false) => Outcome::Waits("waits for the operator".into()),
    }
}

/// The first thing that holds the job up, for who waited in vain.
async fn cause(connection: &Connection, name: &str) -> String {
    let Ok(evidence) = situation::read(connection, name).await else {
        return String::new();
    };
    let findings = explain(&evidence, Timestamp::now());
    match findings.into_iter().find(|finding| finding.blocks) {
        Some(finding) => format!("{} What helps: {}", finding.what, finding.fix),
        None => format!("`kubectl ppo why {name}` says more"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::http::StatusCode;
    use axum::response::IntoResponse;
    use axum::routing::get;
    use axum::{Json, Router};
    use serde_json::json;

    use super::*;
    use crate::plugin::suspend::tests::job;

    /// A connection to a cluster whose job runs, and which answers the first request for it with this code.
    async fn stumbling(code: StatusCode) -> Connection {
        let requests = Arc::new(AtomicUsize::new(0));
        let running = job(false, 1, json!({"phase": "Running", "observedGeneration": 1}));
        let of_job = move || async move {
            match requests.fetch_add(1, Ordering::SeqCst) {
                0 => (code, "no").into_response(),
                _ => Json(running).into_response(),
            }
        };
        let router = Router::new().route("/apis/ppojob.dev/v1alpha1/namespaces/n/ppojobs/a", get(of_job));
        Connection::served(router).await
    }

    #[tokio::test]
    async fn waiting_goes_on_when_the_api_server_is_away_for_a_moment_and_ends_when_it_will_say_nothing_else() {
        let waited = async |code: StatusCode, limit: Duration| {
            let connection = stumbling(code).await;
            wait(&connection, "a", false, Limit::from_now(limit), "")
                .await
                .map_err(|error| error.to_string())
        };
        let limit = Duration::from_secs(60);
        assert_eq!(waited(StatusCode::INTERNAL_SERVER_ERROR, limit).await, Ok(()));
        for (code, words) in [
            (StatusCode::UNAUTHORIZED, "does not know you"),
            (StatusCode::FORBIDDEN, "you may not get ppojobs"),
            (StatusCode::NOT_FOUND, "a was deleted meanwhile"),
        ] {
            let said = waited(code, limit).await.unwrap_err();
            assert!(said.contains(words), "{said}");
        }
        // Its time is over.
        let said = waited(StatusCode::INTERNAL_SERVER_ERROR, Duration::ZERO)
            .await
            .unwrap_err();
        assert!(
            said.starts_with("gave up: ") && said.contains("refuses to get ppojobs"),
            "{said}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_stays_away_is_not_waited_for_to_the_end() {
        let (answered, deadline) = (Instant::now(), Instant::now() + 5 * PATIENCE);
        tokio::time::advance(PATIENCE - Duration::from_secs(1)).await;
        assert!(ride_out(anyhow!("no cluster answers"), answered, deadline).is_ok());
        tokio::time::advance(Duration::from_secs(2)).await;
        let said = ride_out(anyhow!("no cluster answers"), answered, deadline)
            .unwrap_err()
            .to_string();
        assert!(
            said.contains("no cluster answers (no other answer for 121 s)"),
            "{said}"
        );
    }

    #[test]
    fn a_phase_of_before_the_change_does_not_count() {
        let stale = job(true, 2, json!({"phase": "Suspended", "observedGeneration": 1}));
        assert!(matches!(outcome(&stale, true), Outcome::Waits(state) if state.contains("operator")));
        let suspended = |reason: &str| {
            let condition = json!({"type": "Suspended", "status": "True", "reason": reason, "message": "",
                                   "lastTransitionTime": "2026-01-01T00:00:00Z"});
            job(
                true,
                2,
                json!({"phase": "Suspended", "observedGeneration": 2, "conditions": [condition]}),
            )
        };
        // Its actor saves a checkpoint.
        let saves = outcome(&suspended("Suspending"), true);
        assert!(matches!(saves, Outcome::Waits(state) if state.contains("save")));
        assert!(matches!(outcome(&suspended("Suspended"), true), Outcome::Reached(_)));
    }

    #[test]
    fn waiting_ends_when_the_job_does_or_somebody_else_decides_otherwise() {
        let failed = job(false, 1, json!({"phase": "Failed", "observedGeneration": 1}));
        assert!(matches!(outcome(&failed, false), Outcome::Impossible(_)));
        let resumed = job(false, 3, json!({"phase": "Running", "observedGeneration": 3}));
        assert!(matches!(outcome(&resumed, true), Outcome::Impossible(why) if why.contains("resumed")));
    }

    #[test]
    fn a_resumed_job_says_what_it_waits_for() {
        let queued = job(false, 2, json!({"phase": "Queued", "observedGeneration": 2}));
        assert!(matches!(outcome(&queued, false), Outcome::Waits(state) if state.contains("quota")));
    }
}
