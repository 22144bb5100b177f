//! The training reports of actors, fetched beside the reconciles so that a silent actor delays none of them.

mod heard;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use ppo_crds::pod::port;
use ppo_crds::report::Report;

use crate::world::{Actor, JobKey};

pub use heard::Heard;

/// For one answer.
const DEADLINE: Duration = Duration::from_secs(2);
/// Requests under way at once.
const CONCURRENT: usize = 32;
/// Longest answer that is read.
const LONGEST: usize = 64 * 1024;

/// The last report of each job, with the job's uid: anybody may make a pod that names the uid of a job in another namespace.
#[derive(Default)]
pub struct Reports(Mutex<HashMap<JobKey, (String, Heard)>>);

impl Reports {
    /// What the job's actor last said.
    pub fn heard(&self, key: &JobKey, uid: &str) -> Option<Heard> {
        let reports = self.0.lock();
        let (of, heard) = reports.get(key)?;
        (of == uid).then(|| heard.clone())
    }

    /// Forgets a job.
    pub fn forget(&self, key: &JobKey) {
        self.0.lock().remove(key);
    }

    /// Forgets jobs that are not `known`: an answer may come after its job was deleted.
    fn retain(&self, known: impl Fn(&JobKey, &str) -> bool) {
        self.0.lock().retain(|key, (uid, _)| known(key, uid));
    }

    /// For how long each of `actors` has finished no stage, in seconds; without those that never reported.
    pub fn silences(&self, actors: &[Actor], now: Timestamp) -> Vec<(JobKey, f64)> {
        let reports = self.0.lock();
        let silence = |actor: &Actor| {
            let (uid, heard) = reports.get(&actor.key)?;
            let current = *uid == actor.uid && heard.report.attempt == actor.attempt;
            current.then(|| (actor.key.clone(), heard.silence(now)))
        };
        actors.iter().filter_map(silence).collect()
    }

    fn note(&self, actor: &Actor, report: Report) {
        // A report of another job (an address used again) or of an earlier attempt says nothing of this one.
        if report.job != actor.key.name || report.attempt != actor.attempt {
            return;
        }
        let heard = Heard {
            report,
            at: Timestamp::now(),
        };
        self.0.lock().insert(actor.key.clone(), (actor.uid.clone(), heard));
    }
}

/// Asks every actor of `known` jobs, round after round, and tells of each answer. Runs until it is dropped.
pub async fn poll(
    reports: Arc<Reports>,
    client: reqwest::Client,
    interval: Duration,
    known: impl Fn(&JobKey, &str) -> bool,
    actors: impl Fn() -> Vec<Actor>,
    tell: impl Fn(&Actor),
) {
    let mut rounds = tokio::time::interval(interval);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        reports.retain(&known);
        let asked = actors().into_iter().filter(|actor| known(&actor.key, &actor.uid));
        let asked: Vec<Actor> = asked.collect();
        let answers = stream::iter(asked).map(|actor| {
            let client = client.clone();
            async move {
                let answer = fetch(&client, &actor).await;
                (actor, answer)
            }
        });
        let mut answers = answers.buffer_unordered(CONCURRENT);
        while let Some((actor, answer)) = answers.next().await {
            match answer {
                Ok(report) => reports.note(&actor, report),
                Err(error) => tracing::debug!(job = %actor.key, ip = actor.ip, %error, "no report"),
            }
            tell(&actor);
        }
    }
}

/// A client for reports. It goes where it is sent and nowhere else: a pod of a job must not make the operator ask others.
///
/// # Errors
/// When TLS cannot be set up.
pub fn client() -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder()
        .timeout(DEADLINE)
        .connect_timeout(DEADLINE)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .pool_max_idle_per_host(0)
        .build()
}

async fn fetch(client: &reqwest::Client, actor: &Actor) -> anyhow::Result<Report> {
    let host = if actor.ip.contains(':') {
        format!("[{}]", actor.ip)
    } else {
        actor.ip.clone()
    };
    let url = format!("http://{host}:{}/report", port::METRICS);
    let mut answer = client.get(url).send().await?.error_for_status()?;
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        anyhow::ensure!(
            body.len() + chunk.len() <= LONGEST,
            "the report is longer than {LONGEST} bytes"
        );
        body.extend_from_slice(&chunk);
    }
    Ok(serde_json::from_slice(&body)?)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    fn actor(namespace: &str, uid: &str) -> Actor {
        let key = JobKey {
            namespace: namespace.into(),
            name: "a".into(),
        };
        Actor {
            key,
            uid: uid.into(),
            ip: String::new(),
            attempt: 1,
        }
    }

    fn words(step: u64) -> serde_json::Value {
        serde_json::json!({
            "job": "a", "attempt": 1, "stage": "update", "policyVersion": step, "progress": {}, "secondsSinceProgress": 0.5,
        })
    }

    fn report(step: u64) -> Report {
        serde_json::from_value(words(step)).unwrap()
    }

    /// An actor of its own address of this machine, on which no other process of this test listens, and what listens there.
    async fn listening(network: u8) -> (Actor, TcpListener) {
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let ip = Ipv4Addr::new(127, network | high, middle, low);
        let listener = TcpListener::bind((ip, port::METRICS)).await.unwrap();
        let actor = Actor {
            ip: ip.to_string(),
            ..actor("n", "1")
        };
        (actor, listener)
    }

    /// Answers one question.
    async fn answer(listener: &TcpListener, body: &str) {
        let (mut connection, _) = listener.accept().await.unwrap();
        let _ = connection.read(&mut [0; 1024]).await.unwrap();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        connection.write_all(head.as_bytes()).await.unwrap();
        // Who has read enough hangs up.
        let _ = connection.write_all(body.as_bytes()).await;
    }

    #[tokio::test]
    async fn a_silent_actor_holds_up_nobody_and_a_report_that_is_too_long_is_not_believed() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let ((silent, _listens), (speaking, listener)) = (listening(64).await, listening(128).await);
        let client = client().unwrap();

        let (told, mut first) = tokio::sync::mpsc::unbounded_channel();
        let asked = poll(
            Arc::default(),
            client.clone(),
            Duration::from_secs(60),
            |_, _| true,
            || vec![silent.clone(), speaking.clone()],
            |actor| told.send(actor.ip.clone()).unwrap(),
        );
        let body = words(3).to_string();
        let answered = async { tokio::join!(first.recv(), answer(&listener, &body)).0 };
        let first = tokio::select! {
            () = asked => panic!("it asks no more"),
            first = answered => first,
        };
        assert_eq!(first, Some(speaking.ip.clone()));

        for (length, believed) in [(LONGEST, true), (LONGEST + 1, false)] {
            // Blanks after a report are no part of it.
            let body = format!("{body}{}", " ".repeat(length - body.len()));
            let (read, ()) = tokio::join!(fetch(&client, &speaking), answer(&listener, &body));
            assert_eq!(read.is_ok(), believed, "{length} bytes: {read:?}");
        }
    }

    #[test]
    fn a_report_from_another_namespace_is_not_the_jobs_whatever_uid_its_pod_names() {
        let reports = Reports::default();
        let (own, claims) = (actor("n", "1"), actor("elsewhere", "1"));
        reports.note(&own, report(3));
        reports.note(&claims, report(9));
        let version = |actor: &Actor| Some(reports.heard(&actor.key, &actor.uid)?.report.policy_version);
        assert_eq!(version(&own), Some(3));
        // A later job of the name has said nothing yet.
        assert_eq!(version(&actor("n", "2")), None);
        reports.retain(|key, uid| (key.namespace.as_str(), uid) == ("n", "1"));
        assert_eq!((version(&own), version(&claims)), (Some(3), None));
        assert!(reports.silences(&[claims], Timestamp::now()).is_empty());
    }

    #[tokio::test]
    async fn an_actor_cannot_send_the_operator_elsewhere() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (actor, other) = (
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
        );
        let (url, elsewhere) = (
            format!("http://{}/report", actor.local_addr().unwrap()),
            other.local_addr().unwrap(),
        );
        let redirects = async {
            let (mut connection, _) = actor.accept().await.unwrap();
            let _ = connection.read(&mut [0; 1024]).await.unwrap();
            let answer = format!("HTTP/1.1 302 Found\r\nlocation: http://{elsewhere}/\r\ncontent-length: 0\r\n\r\n");
            connection.write_all(answer.as_bytes()).await.unwrap();
        };
        let client = client().unwrap();
        let asked = tokio::select! {
            (answer, ()) = async { tokio::join!(client.get(url).send(), redirects) } => answer.unwrap().status().as_u16(),
            _ = other.accept() => panic!("the other server was asked"),
        };
        assert_eq!(asked, 302);
    }
}
