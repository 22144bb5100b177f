//! An API server of made-up pods, whose logs open, are refused or never answer.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::{Path, RawQuery};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use ppo_crds::spec::Role;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::*;

/// Longest wait for what should come at once.
const SOON: Duration = Duration::from_secs(10);

fn state(value: Value) -> ContainerState {
    serde_json::from_value(value).unwrap()
}

fn pod(role: &str, index: u32, state: Value) -> Value {
    json!({
        "metadata": {"name": format!("a-{role}-{index}"), "uid": format!("{role}{index}"),
                     "labels": {"ppojob.dev/job": "a", "ppojob.dev/role": role, "ppojob.dev/index": index.to_string()}},
        "spec": {"containers": [{"name": "worker"}]},
        "status": {"containerStatuses": [{"name": "worker", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                                          "state": state}]},
    })
}

fn typed(pod: Value) -> Pod {
    serde_json::from_value(pod).unwrap()
}

fn args() -> LogsArgs {
    LogsArgs {
        name: "a".into(),
        role: None,
        index: None,
        follow: true,
        tail: None,
        since: None,
        since_time: None,
        container: "worker".into(),
        all_containers: false,
        previous: false,
        timestamps: false,
    }
}

/// The log of a pod: that of index 0 never opens, that of index 1 is refused, the others have a line.
async fn log(Path(name): Path<String>) -> (StatusCode, String) {
    match name.rsplit('-').next() {
        Some("0") => pending().await,
        Some("1") => (StatusCode::INTERNAL_SERVER_ERROR, "the node does not answer".into()),
        _ => (StatusCode::OK, format!("2026-01-01T00:00:01Z a line of {name}\n")),
    }
}

fn job_in(phase: &str) -> Value {
    json!({
        "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "a", "namespace": "n"},
        "spec": {"model": {"policy": {"path": "/m"}}, "prompts": {"source": {"path": "/p.jsonl"}},
                 "roles": {"reward": {"rules": [{"json": {}}]}}},
        "status": {"phase": phase},
    })
}

fn list(pods: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": pods})
}

const JOB: &str = "/apis/ppojob.dev/v1alpha1/namespaces/n/ppojobs/a";
const PODS: &str = "/api/v1/namespaces/n/pods";
const LOG: &str = "/api/v1/namespaces/n/pods/{name}/log";

/// A connection to a cluster of one job with these pods.
async fn cluster(phase: &str, pods: Value) -> Connection {
    let (job, pods) = (job_in(phase), list(pods));
    let router = Router::new()
        .route(JOB, get(move || async move { Json(job) }))
        .route(PODS, get(move || async move { Json(pods) }))
        .route(LOG, get(log));
    Connection::served(router).await
}

fn followed() -> (Followed, mpsc::Receiver<Message>) {
    let (sender, messages) = mpsc::channel(16);
    let followed = Followed {
        readings: HashMap::new(),
        has_looked: false,
        forbidden: None,
        tasks: JoinSet::new(),
        sender,
    };
    (followed, messages)
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(SOON, future).await.unwrap()
}

/// One look, once the API server has answered.
async fn looked(connection: &Connection, followed: &mut Followed) -> Look {
    let found = soon(ask(connection, &args(), Duration::ZERO)).await.unwrap();
    look(connection, &args(), followed, found)
}

/// Passes on what is written.
struct Written(mpsc::UnboundedSender<String>);

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let _ = self.0.send(String::from_utf8_lossy(bytes).into_owned());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn lines_are_printed_while_the_api_server_does_not_say_which_pods_there_are() {
    let (requests, waits) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (job, pods) = (
        job_in("Running"),
        list(json!([pod("rollout", 2, json!({"running": {}}))])),
    );
    let asked_again = waits.clone();
    let of_job = move || async move {
        // Whether there is such a job, its pods, and from then on nothing.
        if requests.fetch_add(1, Ordering::SeqCst) >= 2 {
            asked_again.notify_one();
            pending::<()>().await;
        }
        Json(job)
    };
    let of_log = move || async move {
        waits.notified().await;
        "2026-01-01T00:00:01Z a late line\n"
    };
    let router = Router::new()
        .route(JOB, get(of_job))
        .route(PODS, get(move || async move { Json(pods) }))
        .route(LOG, get(of_log));
    let (connection, args) = (Connection::served(router).await, args());
    let (sender, mut written) = mpsc::unbounded_channel();
    let writer = Writer::onto(Written(sender), false);
    tokio::select! {
        ended = follow(&connection, &args, writer) => panic!("{ended:?}"),
        text = soon(written.recv()) => {
            let text = text.unwrap();
            assert!(text.contains("a late line"), "{text}");
        }
    }
}

#[tokio::test]
async fn a_pod_whose_node_does_not_answer_holds_up_no_other_pods_log() {
    let running = || json!({"running": {}});
    let pods = json!([pod("rollout", 0, running()), pod("rollout", 2, running())]);
    let connection = cluster("Running", pods).await;
    let (mut followed, mut messages) = followed();
    for _ in 0..2 {
        assert_eq!(looked(&connection, &mut followed).await, Look::Reads);
    }
    let message = soon(messages.recv()).await.unwrap();
    let (pod, line) = followed.note(message).unwrap();
    assert_eq!(
        (pod.as_str(), line.text.as_str()),
        ("rollout-2", "a line of a-rollout-2")
    );
    // The other one is still being opened.
    assert!(followed.note(soon(messages.recv()).await.unwrap()).is_none());
    let open = followed.readings.values().filter(|reading| reading.is_open);
    assert_eq!(open.count(), 1);
}

#[tokio::test]
async fn a_log_that_is_refused_is_asked_for_again_while_the_job_goes_on_and_not_after_its_end() {
    let pods = || json!([pod("rollout", 1, json!({"terminated": {"exitCode": 0}}))]);
    let (running, ended) = (cluster("Running", pods()).await, cluster("Succeeded", pods()).await);
    let (mut followed, mut messages) = followed();
    for connection in [&running, &running, &ended] {
        assert_eq!(looked(connection, &mut followed).await, Look::Reads);
        assert!(followed.note(soon(messages.recv()).await.unwrap()).is_none());
    }
    let found = looked(&ended, &mut followed).await;
    assert_eq!(found, Look::Ended("Succeeded".into()));
}

#[test]
fn flags_that_choose_no_pod_or_no_container_are_named_in_what_is_waited_for() {
    let pods: Vec<Pod> = (0..2)
        .map(|index| typed(pod("rollout", index, json!({"waiting": {}}))))
        .collect();
    let said = |args: &LogsArgs| awaited(args, Phase::Running, &pods);
    assert!(said(&args()).contains("no running pods"), "{}", said(&args()));
    let other = LogsArgs {
        role: Some(Role::Rollout),
        index: Some(7),
        ..args()
    };
    assert!(
        said(&other).contains("the 2 pods of a (Running) is chosen by --role rollout --index 7"),
        "{}",
        said(&other)
    );
    let vllm = LogsArgs {
        container: "vllm".into(),
        ..args()
    };
    assert!(
        said(&vllm).contains("has a container vllm, they have worker"),
        "{}",
        said(&vllm)
    );
    let none_yet = awaited(&other, Phase::Pending, &[]);
    assert!(none_yet.contains("no running pods (Pending)"), "{none_yet}");
}

#[test]
fn a_log_is_opened_again_while_its_container_runs_and_once_more_after_it_ended() {
    let (running, ended) = (
        state(json!({"running": {}})),
        state(json!({"terminated": {"exitCode": 0}})),
    );
    let read = Reading::default();
    assert!(read.has_more(&running) && read.has_more(&ended));
    assert!(!Reading { is_open: true, ..read }.has_more(&running));
    assert!(!Reading { is_last: true, ..read }.has_more(&ended));
    assert!(!read.has_more(&state(json!({"waiting": {"reason": "ContainerCreating"}}))));
}

#[test]
fn a_container_that_was_restarted_in_its_pod_has_a_log_of_its_own() {
    let pod = |restarts: i32| {
        let mut pod = pod("actor", 0, json!({"running": {}}));
        pod["status"]["containerStatuses"][0]["restartCount"] = json!(restarts);
        typed(pod)
    };
    let (args, [first, second]) = (args(), [0, 1].map(pod));
    let of = |pod: &Pod| runs(pod, &args).map(|(run, _)| run).collect::<Vec<_>>();
    assert_eq!((of(&first).len(), of(&second).len()), (1, 1));
    assert_ne!(of(&first), of(&second));
}

#[test]
fn a_container_for_debugging_and_those_of_preparation_are_followed_where_they_are_asked_for() {
    let mut pod = pod("actor", 0, json!({"running": {}}));
    let status = |name: &str| {
        let state = json!({"running": {}});
        json!([{"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}])
    };
    pod["status"]["initContainerStatuses"] = status("copy-model");
    pod["status"]["ephemeralContainerStatuses"] = status("debugger");
    let pod = typed(pod);
    let followed = |args: &LogsArgs| {
        let containers = runs(&pod, args).map(|(run, _)| run.container);
        containers.collect::<Vec<_>>()
    };
    let debugger = LogsArgs {
        container: "debugger".into(),
        ..args()
    };
    assert_eq!(followed(&debugger), ["debugger"]);
    let all = LogsArgs {
        all_containers: true,
        ..args()
    };
    assert_eq!(followed(&all), ["copy-model", "worker", "debugger"]);
    assert_eq!(followed(&args()), ["worker"]);
}

#[test]
fn a_log_that_breaks_off_is_read_on_though_its_container_has_ended_and_is_lost_when_that_never_helps() {
    let ended = state(json!({"terminated": {"exitCode": 0}}));
    let mut reading = Reading::default();
    reading.stop(&Stop::Cut(false));
    assert!(reading.has_more(&ended) && !reading.is_lost());
    for _ in 1..TRIES {
        assert!(reading.has_more(&ended));
        reading.stop(&Stop::Cut(true));
    }
    assert!(!reading.has_more(&ended) && reading.is_lost());
    let mut whole = Reading::default();
    for stop in [Stop::Cut(true), Stop::End(true)] {
        whole.stop(&stop);
    }
    assert!(!whole.has_more(&ended) && !whole.is_lost());
}

#[test]
fn a_log_that_was_silent_from_the_start_is_read_on_from_a_time_and_ends_with_its_job() {
    let running = state(json!({"running": {}}));
    let mut reading = Reading::default();
    reading.stop(&Stop::Quiet(false));
    assert!(reading.has_more(&running) && reading.last.is_some());
    let last = reading.last;
    reading.stop(&Stop::Quiet(true));
    assert!(!reading.has_more(&running) && !reading.is_lost());
    assert_eq!(reading.last, last);
}

#[tokio::test]
async fn who_may_not_read_logs_or_list_pods_is_told_so_and_does_not_wait() {
    let forbidden = || get(|| async { (StatusCode::FORBIDDEN, "no") });
    let job = || get(|| async { Json(job_in("Running")) });
    let pods = || get(|| async { Json(list(json!([pod("rollout", 2, json!({"running": {}}))]))) });
    let no_logs = Router::new()
        .route(JOB, job())
        .route(PODS, pods())
        .route(LOG, forbidden());
    let no_pods = Router::new().route(JOB, job()).route(PODS, forbidden());
    for (router, right) in [
        (no_logs, "you may not get pods/log"),
        (no_pods, "you may not list pods"),
    ] {
        let connection = Connection::served(router).await;
        let writer = Writer::onto(std::io::sink(), false);
        let error = soon(follow(&connection, &args(), writer)).await.unwrap_err();
        assert!(error.to_string().contains(right), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_never_answers_ends_the_command() {
    let never = get(|| async { pending::<StatusCode>().await });
    let connection = Connection::served(Router::new().route(JOB, never)).await;
    let writer = Writer::onto(std::io::sink(), false);
    let ended = timeout(connection.answer * 2, follow(&connection, &args(), writer)).await;
    assert!(ended.unwrap().is_err());
}

#[tokio::test]
async fn of_a_container_that_begins_while_logs_are_followed_no_line_is_left_out() {
    let query =
        |RawQuery(query): RawQuery| async move { format!("2026-01-01T00:00:01Z {}\n", query.unwrap_or_default()) };
    let connection = Connection::served(Router::new().route(LOG, get(query))).await;
    let (mut followed, mut messages) = followed();
    let args = LogsArgs {
        tail: Some(0),
        ..args()
    };
    for (index, is_cut) in [(2, true), (3, false)] {
        let pods = vec![typed(pod("rollout", index, json!({"running": {}})))];
        let found = look(&connection, &args, &mut followed, Some((Phase::Running, pods)));
        assert_eq!(found, Look::Reads);
        let (_, line) = followed.note(soon(messages.recv()).await.unwrap()).unwrap();
        assert_eq!(line.text.contains("tailLines=0"), is_cut, "{}", line.text);
        assert!(followed.note(soon(messages.recv()).await.unwrap()).is_none());
    }
}
