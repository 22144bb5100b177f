//! What Prometheus is told of a job, and that nothing of it is left when the job is gone.

use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::actor::report;
use crate::job::Stage;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jobs_gauges_come_with_it_and_go_with_it() {
    let stage = Stage::running("seen", json!({})).await;
    // It runs from its first ready engine on.
    stage
        .status("all pods to be ready", |status| status.ready.as_deref() == Some("4/4"))
        .await;
    let actor = stage.actor().await;
    actor.say(Some(report("seen", 40, 25.0)));
    let operator = stage.operator.as_ref().unwrap();
    let text = stage
        .wait("the actor's words in the metrics", async || {
            let text = operator.metrics().await?;
            anyhow::ensure!(text.contains("ppojob_step{"), "{text}");
            Ok(text)
        })
        .await;
    let value = |metric: &str, labels: &str| -> Option<f64> {
        let labels = format!("job=\"seen\",namespace=\"{}\"{labels}", stage.namespace.name);
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{metric}{{{labels}}} ")))?;
        line.parse().ok()
    };
    assert_eq!(value("ppojob_phase", ",phase=\"Running\""), Some(1.0), "{text}");
    assert_eq!(value("ppojob_step", ""), Some(40.0));
    assert_eq!(
        value("ppojob_role_pods", ",role=\"rollout\",state=\"ready\""),
        Some(2.0)
    );
    let silence = value("ppojob_seconds_since_progress", "").unwrap();
    assert!((25.0..60.0).contains(&silence), "{silence}");
    assert!(text.contains("\nppo_operator_queue_depth 0\n"), "{text}");

    stage.jobs.delete(stage.name, &DeleteParams::default()).await.unwrap();
    stage
        .wait("every series of the job to be gone", async || {
            let text = operator.metrics().await?;
            anyhow::ensure!(!text.contains("job=\"seen\""), "{text}");
            Ok(())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_was_deleted_and_is_held_by_a_finalizer_has_no_phase_any_more() {
    let stage = Stage::running("held", json!({})).await;
    let finalizers = |held: serde_json::Value| Patch::Merge(json!({"metadata": {"finalizers": held}}));
    let given = PatchParams::default();
    let held = finalizers(json!(["example.com/held"]));
    stage.jobs.patch(stage.name, &given, &held).await.unwrap();
    stage.jobs.delete(stage.name, &DeleteParams::default()).await.unwrap();
    let operator = stage.operator.as_ref().unwrap();
    stage
        .wait("its phase to be gone", async || {
            let text = operator.metrics().await?;
            anyhow::ensure!(!text.contains("ppojob_phase{job=\"held\""), "{text}");
            Ok(())
        })
        .await;
    stage.jobs.get(stage.name).await.unwrap();
    stage
        .jobs
        .patch(stage.name, &given, &finalizers(json!([])))
        .await
        .unwrap();
}
