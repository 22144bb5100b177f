//! A Prometheus that finds a running job and its operator by the chart's monitors, and what dashboards and alerts make of it.

mod admission;
mod metrics;
mod panels;
mod rules;
mod targets;

use ppo_crds::status::Phase;
use ppo_tests::{MONITORING, Prometheus, RELEASE};
use serde_json::{Value, json};

use crate::job::Job;
use crate::world::world;

/// The chart's values under `monitoring`, with everything on.
pub fn values() -> Value {
    let every_second =
        json!({"enabled": true, "interval": "1s", "scrapeTimeout": "1s", "labels": {"release": RELEASE}});
    json!({
        "scraperNamespaces": [MONITORING],
        "serviceMonitor": every_second, "podMonitor": every_second,
        "rules": {"enabled": true, "labels": {"release": RELEASE}},
        "dashboards": {"enabled": true},
    })
}

/// A job of every role that shows what a panel can show: held-out prompts with two samples each, a test set of each of their eight answers,
/// several sources of reward, a KL in the loss, a correction of what the engines drew. It fails at the second failure of a pod, and does not
/// end before.
fn patch() -> Value {
    let held_out = json!({"pvc": {"claimName": "data", "path": "prompts.jsonl"}});
    let model = json!({"source": {"pvc": {"claimName": "data", "path": "rm"}}, "weight": 0.5});
    json!({
        "steps": 100_000,
        "evaluation": {
            "source": held_out, "everySteps": 2, "maxPrompts": 8, "temperature": 1, "nSamplesPerPrompt": 2, "setField": "answer",
        },
        "algorithm": {"kl": {"placement": "loss"}, "clip": {"dual": 3.0}, "rolloutCorrection": {}},
        "roles": {"reward": {"model": model, "placement": {"gpusPerNode": 0}}},
        "failurePolicy": {"maxRestarts": 1},
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prometheus_scrapes_every_pod_by_the_charts_monitors_and_every_panel_and_alert_has_its_data() {
    let Some(world) = world().await else { return };
    let _node = world.keep_node().await;
    let job = Job::prepare(world, "prometheus", patch()).await;
    job.apply().await;
    let prometheus = Prometheus::start(&world.cluster, &targets::documented()).await.unwrap();
    job.phase(Phase::Running).await;
    job.step(4).await;
    let targets = targets::check(&prometheus, &job).await;
    admission::check(&job, &targets).await;
    let dashboards = panels::dashboards(&job).await;
    panels::check(&prometheus, &job, &dashboards).await;
    metrics::check(&prometheus, &job).await;
    rules::check(&prometheus, &job).await;

    job.kill("rollout-1").await;
    rules::fires(&prometheus, &job, "PpoJobRestartBudgetLow").await;
    panels::check_annotations(&prometheus, &job, &dashboards).await;
    job.kill("reference-0").await;
    job.phase(Phase::Failed).await;
    rules::fires(&prometheus, &job, "PpoJobFailed").await;
    prometheus.stop().await.unwrap();
}
