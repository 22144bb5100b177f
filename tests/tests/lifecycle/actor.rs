//! What the actor says of its training, and what happens when it says nothing good.

use k8s_openapi::jiff::Timestamp;
use ppo_crds::report::{Outcome, Reason, Report, Stage as Stages};
use ppo_crds::spec::Role;
use ppo_crds::status::{Phase, PpoJobStatus, Progress};
use ppo_tests::Operator;
use serde_json::json;

use crate::job::{Stage, role};

pub fn report(job: &str, step: u64, seconds_since_progress: f64) -> Report {
    Report {
        job: job.into(),
        attempt: 1,
        stage: Stages::Rollout,
        policy_version: step,
        progress: Progress {
            reward: Some(0.5),
            kl: Some(0.01),
            ..Progress::at(step, 100)
        },
        seconds_since_progress,
        waiting_for: String::new(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_actors_progress_is_the_jobs_and_kubectl_shows_it() {
    let stage = Stage::running("steps", json!({})).await;
    let actor = stage.actor().await;
    actor.say(Some(report("steps", 40, 1.0)));
    let status = stage
        .status("progress of a job that is whole", |status| {
            let step = status.progress.as_ref().map(|progress| progress.step);
            step == Some(40) && status.ready.as_deref() == Some("4/4")
        })
        .await;
    assert_eq!(role(&status, Role::Rollout).policy_version, Some(40));
    let table = stage
        .namespace
        .kubectl(&["get", "ppo"])
        .await
        .unwrap()
        .success()
        .unwrap();
    let line = table.lines().nth(1).unwrap();
    for word in ["Running", "40/100", "0.5", "0.01", "4/4"] {
        assert!(line.contains(word), "{word} in {table}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_that_starts_keeps_what_the_one_before_it_heard_until_the_actor_speaks_again() {
    let mut stage = Stage::running("heard", json!({})).await;
    let actor = stage.actor().await;
    actor.say(Some(report("heard", 40, 1.0)));
    let version = |status: &PpoJobStatus| role(status, Role::Rollout).policy_version;
    stage.status("a version", |status| version(status) == Some(40)).await;
    actor.say(None);
    stage.operator.take().unwrap().stop().await.unwrap();
    stage.operator = Some(Operator::start(&stage.namespace));
    // With what it says of the change it has written all else that it would say.
    stage.looked_at_anew().await;
    let status = stage.status("a status", |_| true).await;
    assert_eq!(version(&status), Some(40));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_actor_that_ended_after_its_last_report_says_how_far_it_came() {
    let stage = Stage::running("end", json!({})).await;
    let actor = stage.actor().await;
    actor.say(Some(report("end", 40, 1.0)));
    let step = |status: &PpoJobStatus| status.progress.as_ref().map(|progress| progress.step);
    stage.status("a report", |status| step(status) == Some(40)).await;
    let outcome = Outcome {
        reason: Reason::Completed,
        message: "all steps are made".into(),
        progress: Some(Progress::at(100, 100)),
    };
    let message = serde_json::to_string(&outcome).unwrap();
    let pod = stage.pod_name("actor-0");
    stage.namespace.complete_pod_saying(&pod, &message).await.unwrap();
    let status = stage
        .status("the end", |status| status.phase == Some(Phase::Succeeded))
        .await;
    assert_eq!(status.progress.unwrap().summary, "100/100");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_of_another_job_or_of_an_earlier_or_later_attempt_is_not_believed() {
    let stage = Stage::running("own", json!({})).await;
    let actor = stage.actor().await;
    let of_attempt = |attempt: u32, step: u64| Report {
        attempt,
        ..report("own", step, 1.0)
    };
    for other in [report("somebody-elses", 99, 1.0), of_attempt(0, 98), of_attempt(7, 97)] {
        actor.say(Some(other.clone()));
        actor.is_heard().await.unwrap();
        stage.looked_at_anew().await;
        let status = stage.status("a status", |_| true).await;
        assert_eq!(status.progress, None, "{other:?}");
    }
    actor.say(Some(report("own", 3, 1.0)));
    let status = stage.status("progress", |status| status.progress.is_some()).await;
    assert_eq!(status.progress.unwrap().step, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_hangs_is_restarted_and_told_of_with_its_stage_and_whom_it_waits_for() {
    let stage = Stage::running("hung", json!({"spec": {"runPolicy": {"progressDeadlineSeconds": 30}}})).await;
    let uid = stage.uid("actor-0").await;
    let actor = stage.actor().await;
    actor.say(Some(Report {
        waiting_for: "hung-rollout-1".into(),
        ..report("hung", 5, 31.0)
    }));
    stage.replaced("actor-0", &uid).await;
    let status = stage.phase(Phase::Running).await;
    assert_eq!((status.restarts, role(&status, Role::Actor).attempt), (1, 2));
    for words in ["stage rollout", "hung-rollout-1"] {
        stage.tells(words).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_actor_whom_the_kubelet_hears_and_the_operator_does_not_runs_on_and_holds_up_nobody() {
    let stage = Stage::running("silent", json!({"spec": {"runPolicy": {"progressDeadlineSeconds": 3}}})).await;
    let uid = stage.uid("actor-0").await;
    stage.runs_another("other").await;
    let started = stage.phase(Phase::Running).await.start_time.unwrap().0;
    stage
        .wait("the deadline to pass", async || {
            let passed = Timestamp::now().duration_since(started).as_secs();
            anyhow::ensure!(passed > 3, "{passed} s have passed");
            Ok(())
        })
        .await;
    // What the first look leads to is done before the second.
    for _ in 0..2 {
        stage.looked_at_anew().await;
    }
    assert_eq!(stage.uid("actor-0").await, uid);
}
