//! The same of all jobs with some labels: what keeps one of them as it is keeps none of the others.

use anyhow::{Result, bail};
use kube::ResourceExt as _;
use kube::api::ListParams;

use super::change::{Change, apply, over, warn_of_misfit};
use super::wait::{Limit, wait};
use crate::plugin::cli::ResumeArgs;
use crate::plugin::connection::Connection;
use crate::plugin::{job, printer};

/// Sets it in each job with these labels, and then waits for the effect in all when asked to. Jobs that have ended are no error: labels
/// outlive the runs that they were given to.
pub(super) async fn set(connection: &Connection, args: &ResumeArgs, selector: &str, change: Change) -> Result<()> {
    let list = connection.jobs().list(&ListParams::default().labels(selector)).await;
    let jobs = list
        .map_err(|error| job::request(connection, "list").refused(error))?
        .items;
    if jobs.is_empty() {
        anstream::eprintln!(
            "No PpoJobs in namespace {} have labels {selector}.",
            connection.namespace
        );
        return Ok(());
    }
    let (mut applied, mut failures) = (Vec::new(), Failures::default());
    for job in &jobs {
        if let Some(over) = over(job) {
            anstream::eprintln!("{} {over}: it stays as it is", job.name_any());
            continue;
        }
        let line = apply(connection, job, change).await;
        if let Some(line) = failures.note(line) {
            applied.push(job);
            failures.note(printer::print(&line));
        }
    }
    let limit = Limit::from_now(args.timeout);
    for job in applied {
        match args.wait {
            true => {
                let name = job.name_any();
                let waited = wait(connection, &name, change.suspend, limit, &format!("{name}: ")).await;
                failures.note(waited);
            }
            false => warn_of_misfit(connection, job).await,
        }
    }
    failures.end(jobs.len(), selector, change)
}

/// What went wrong so far.
#[derive(Default)]
struct Failures {
    count: usize,
    /// Whoever reads what is printed has seen enough. The jobs are changed all the same.
    unread: Option<anyhow::Error>,
}

impl Failures {
    /// What there is, else says why not.
    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => return Some(value),
            Err(error) if printer::is_broken_pipe(&error) => self.unread = Some(error),
            Err(error) => {
                self.count += 1;
                anstream::eprintln!("error: {}", printer::visible(&format!("{error:#}")));
            }
        }
        None
    }

    fn end(self, jobs: usize, selector: &str, change: Change) -> Result<()> {
        if self.count > 0 {
            bail!(
                "{} of the {jobs} jobs with labels {selector} are not {}, each for the reason above",
                self.count,
                change.done()
            );
        }
        self.unread.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use axum::extract::{Path, RawQuery};
    use axum::http::StatusCode;
    use axum::response::IntoResponse;
    use axum::routing::get;
    use axum::{Json, Router};
    use serde_json::{Value, json};

    use super::*;

    fn job(name: &str, status: Value) -> Value {
        json!({
            "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": name, "generation": 1},
            "spec": {"model": {"policy": {"path": "/m"}}, "prompts": {"source": {"path": "/p.jsonl"}},
                     "roles": {"reward": {"rules": [{"json": {}}]}}},
            "status": status,
        })
    }

    /// A cluster of these jobs, all with the label `team=math`, and what was asked of them in turn: names of those that were changed, and looks
    /// at one. The one called `refused` may not be changed.
    async fn cluster(jobs: Vec<Value>) -> (Connection, Arc<Mutex<Vec<String>>>) {
        let changed = Arc::new(Mutex::new(Vec::new()));
        let (seen, looked, known) = (changed.clone(), changed.clone(), jobs.clone());
        let list = move |RawQuery(query): RawQuery| async move {
            let asked = query.unwrap_or_default().contains("labelSelector=team%3Dmath");
            let items = if asked { jobs } else { Vec::new() };
            Json(json!({"apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJobList", "metadata": {}, "items": items}))
        };
        let find = move |name: &str| known.iter().find(|job| job["metadata"]["name"] == name).cloned();
        let of_get = find.clone();
        let look = move |Path(name): Path<String>| async move {
            looked.lock().unwrap().push(format!("look at {name}"));
            Json(of_get(&name))
        };
        let of_job = get(look).patch(move |Path(name): Path<String>| async move {
            if name == "refused" {
                return (StatusCode::FORBIDDEN, "no").into_response();
            }
            let job = find(&name);
            seen.lock().unwrap().push(name);
            Json(job).into_response()
        });
        let path = "/apis/ppojob.dev/v1alpha1/namespaces/n/ppojobs";
        let router = Router::new()
            .route(path, get(list))
            .route(&format!("{path}/{{name}}"), of_job);
        (Connection::served(router).await, changed)
    }

    fn args(wait: bool) -> ResumeArgs {
        ResumeArgs {
            name: None,
            selector: Some("team=math".into()),
            wait,
            timeout: Duration::ZERO,
        }
    }

    async fn suspended(connection: &Connection, args: &ResumeArgs) -> Result<()> {
        let change = Change {
            suspend: true,
            is_agreed: false,
        };
        super::super::set(connection, args, change).await
    }

    #[tokio::test]
    async fn all_jobs_with_the_labels_are_suspended_but_those_that_have_ended() {
        let running = |name: &str| job(name, json!({"phase": "Running", "observedGeneration": 1}));
        let jobs = vec![running("a"), job("done", json!({"phase": "Succeeded"})), running("b")];
        let (connection, changed) = cluster(jobs).await;
        suspended(&connection, &args(false)).await.unwrap();
        assert!(changed.lock().unwrap().iter().eq(["a", "b"]));
        let others = ResumeArgs {
            selector: Some("team=none".into()),
            ..args(false)
        };
        suspended(&connection, &others).await.unwrap();
    }

    #[tokio::test]
    async fn a_job_that_may_not_be_changed_or_would_lose_its_checkpoints_keeps_no_other_from_it_and_is_counted() {
        let running = |name: &str| job(name, json!({"phase": "Running"}));
        let trained = job("trained", json!({"phase": "Running", "progress": {"step": 3}}));
        let (connection, changed) = cluster(vec![running("refused"), trained, running("z")]).await;
        let error = suspended(&connection, &args(false)).await.unwrap_err().to_string();
        assert!(
            error.contains("2 of the 3 jobs with labels team=math are not suspended"),
            "{error}"
        );
        assert!(changed.lock().unwrap().iter().eq(["z"]));
    }

    #[tokio::test]
    async fn all_jobs_are_changed_before_any_is_waited_for_and_each_of_them_is_looked_at() {
        let running = |name: &str| job(name, json!({"phase": "Running", "observedGeneration": 1}));
        let (connection, changed) = cluster(vec![running("a"), running("b")]).await;
        let error = suspended(&connection, &args(true)).await.unwrap_err().to_string();
        // To each look they are as before, as if somebody had resumed them meanwhile.
        assert!(error.contains("2 of the 2 jobs"), "{error}");
        let asked = changed.lock().unwrap();
        assert!(asked.iter().eq(["a", "b", "look at a", "look at b"]), "{asked:?}");
    }
}
