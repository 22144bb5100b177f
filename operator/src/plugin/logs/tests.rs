//! An API server of one job with one pod, whose log is what a test says.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::RawQuery;
use axum::http::StatusCode;
use axum::routing::{MethodRouter, get};
use axum::{Json, Router};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use tokio::time::sleep;

use super::since::Since;
use super::*;

fn args() -> LogsArgs {
    LogsArgs {
        name: "a".into(),
        role: None,
        index: None,
        follow: false,
        tail: None,
        since: None,
        since_time: None,
        container: "worker".into(),
        all_containers: false,
        previous: false,
        timestamps: false,
    }
}

async fn with_log(log: MethodRouter) -> Connection {
    let job = json!({
        "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "a"}, "status": {"phase": "Running"},
    });
    let pod = json!({
        "metadata": {"name": "a-actor-0", "labels": {"ppojob.dev/role": "actor", "ppojob.dev/index": "0"}},
        "spec": {"containers": [{"name": "worker"}], "initContainers": [{"name": "copy-model"}]},
    });
    let pods = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [pod]});
    let router = Router::new()
        .route(
            "/apis/ppojob.dev/v1alpha1/namespaces/n/ppojobs/a",
            get(move || async move { Json(job) }),
        )
        .route("/api/v1/namespaces/n/pods", get(move || async move { Json(pods) }))
        .route("/api/v1/namespaces/n/pods/{name}/log", log);
    Connection::served(router).await
}

/// Keeps what is written.
struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the command says in the end.
async fn printed(connection: &Connection) -> Result<()> {
    print_all(connection, &args(), Writer::onto(io::sink(), false)).await
}

/// One line, and then the connection is gone.
async fn broken() -> Body {
    let line = stream::once(async { Ok::<_, io::Error>("2026-01-01T00:00:01Z a line\n") });
    let end = stream::once(async {
        sleep(Duration::from_millis(200)).await;
        Err(io::Error::other("gone"))
    });
    Body::from_stream(line.chain(end))
}

#[tokio::test]
async fn a_log_that_breaks_off_is_an_error_and_one_that_ends_is_none() {
    let words = printed(&with_log(get(broken)).await).await.unwrap_err().to_string();
    assert!(
        words.contains("1 of the logs of a could not be read to the end"),
        "{words}"
    );
    let whole = get(|| async { "2026-01-01T00:00:01Z a line\n" });
    printed(&with_log(whole).await).await.unwrap();
}

#[tokio::test]
async fn who_may_not_read_logs_is_told_the_right_that_is_missing() {
    let log = get(|| async { (StatusCode::FORBIDDEN, "no") });
    let words = printed(&with_log(log).await).await.unwrap_err().to_string();
    assert!(words.contains("you may not get pods/log in namespace n"), "{words}");
}

#[tokio::test]
async fn a_log_is_read_on_from_the_second_of_its_last_line_not_from_the_next_one() {
    let query =
        |RawQuery(query): RawQuery| async move { format!("2026-01-01T00:00:09Z {}\n", query.unwrap_or_default()) };
    let connection = with_log(get(query)).await;
    let last: Timestamp = "2026-01-01T00:00:01.7Z".parse().unwrap();
    let log = open(&connection, &args(), "a-actor-0", "worker", Some(last))
        .await
        .unwrap();
    let asked = Box::pin(log).next().await.unwrap().unwrap().text;
    assert!(asked.contains("sinceTime=2026-01-01T00%3A00%3A01Z"), "{asked}");
}

#[tokio::test]
async fn how_far_back_a_log_is_read_is_asked_for_where_it_is_first_opened_and_not_where_it_is_read_on() {
    let query =
        |RawQuery(query): RawQuery| async move { format!("2026-01-01T00:00:09Z {}\n", query.unwrap_or_default()) };
    let connection = with_log(get(query)).await;
    let args = LogsArgs {
        since: Some(Since::parse("1h").unwrap()),
        ..args()
    };
    let last: Timestamp = "2026-01-01T00:00:01Z".parse().unwrap();
    for (after, is_asked) in [(None, true), (Some(last), false)] {
        let log = open(&connection, &args, "a-actor-0", "worker", after).await.unwrap();
        let asked = Box::pin(log).next().await.unwrap().unwrap().text;
        assert_eq!(asked.contains("sinceSeconds=360"), is_asked, "{asked}");
        assert_eq!(asked.contains("sinceTime="), !is_asked, "{asked}");
    }
}

#[tokio::test]
async fn a_time_to_read_from_is_asked_for_in_its_second_until_lines_have_been_read() {
    let query =
        |RawQuery(query): RawQuery| async move { format!("2026-01-01T00:00:09Z {}\n", query.unwrap_or_default()) };
    let connection = with_log(get(query)).await;
    let args = LogsArgs {
        since_time: Some("2026-01-01T00:00:03.9Z".parse().unwrap()),
        ..args()
    };
    let last: Timestamp = "2026-01-01T00:00:05Z".parse().unwrap();
    for (after, second) in [(None, 3), (Some(last), 5)] {
        let log = open(&connection, &args, "a-actor-0", "worker", after).await.unwrap();
        let asked = Box::pin(log).next().await.unwrap().unwrap().text;
        let from = format!("sinceTime=2026-01-01T00%3A00%3A0{second}Z");
        assert!(asked.contains(&from) && !asked.contains("sinceSeconds"), "{asked}");
    }
}

#[tokio::test]
async fn of_all_containers_each_log_is_read_and_its_lines_are_told_apart() {
    let line = |RawQuery(query): RawQuery| async move {
        let query = query.unwrap_or_default();
        match query.contains("container=copy-model") {
            true => "2026-01-01T00:00:01Z copied\n",
            false => "2026-01-01T00:00:02Z trains\n",
        }
    };
    let connection = with_log(get(line)).await;
    let args = LogsArgs {
        all_containers: true,
        ..args()
    };
    let written = Arc::new(Mutex::new(Vec::new()));
    let writer = Writer::onto(Written(written.clone()), false);
    print_all(&connection, &args, writer).await.unwrap();
    let written = String::from_utf8(written.lock().unwrap().clone()).unwrap();
    let shown = anstream::adapter::strip_str(&written).to_string();
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines, [["actor-0/copy-model", "copied"], ["actor-0/worker", "trains"]]);
}

#[tokio::test]
async fn a_number_of_lines_is_asked_for_and_none_where_all_are_wanted() {
    let query =
        |RawQuery(query): RawQuery| async move { format!("2026-01-01T00:00:09Z {}\n", query.unwrap_or_default()) };
    let connection = with_log(get(query)).await;
    for (tail, is_asked) in [(Some(7), true), (Some(-1), false), (None, false)] {
        let args = LogsArgs { tail, ..args() };
        let log = open(&connection, &args, "a-actor-0", "worker", None).await.unwrap();
        let asked = Box::pin(log).next().await.unwrap().unwrap().text;
        assert_eq!(asked.contains("tailLines"), is_asked, "{asked}");
        assert_eq!(asked.contains("tailLines=7"), is_asked, "{asked}");
    }
}
