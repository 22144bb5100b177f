//! Every alert is loaded, evaluates, asks for series that are there, and fires when it should.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use ppo_tests::Prometheus;
use serde_json::Value;

use crate::job::{Job, NAME};
use crate::monitoring::{alerts, list, text};

/// The metrics that an expression selects, by Prometheus' own parser.
pub async fn names(prometheus: &Prometheus<'_>, expression: &str) -> BTreeSet<String> {
    let tree = prometheus
        .get("api/v1/parse_query", &[("query", expression)])
        .await
        .unwrap();
    let mut found = BTreeSet::new();
    collect(&tree, &mut found);
    found
}

fn collect(node: &Value, found: &mut BTreeSet<String>) {
    if matches!(text(node, "type"), "vectorSelector" | "matrixSelector") {
        found.insert(text(node, "name").to_owned());
    }
    match node {
        Value::Array(nodes) => nodes.iter().for_each(|node| collect(node, found)),
        Value::Object(fields) => fields.values().for_each(|node| collect(node, found)),
        _ => {}
    }
}

/// The alerts as Prometheus has them.
async fn loaded(prometheus: &Prometheus<'_>) -> Result<Vec<Value>> {
    let data = prometheus.get("api/v1/rules", &[("type", "alert")]).await?;
    let groups = list(&data, "/groups").iter();
    Ok(groups.flat_map(|group| list(group, "/rules").to_vec()).collect())
}

/// Exactly our alerts are there, each evaluates, and all series that it asks for are scraped.
pub async fn check(prometheus: &Prometheus<'_>, job: &Job<'_>) {
    let alerts = alerts();
    let wanted: BTreeSet<&str> = alerts.iter().map(|(_, alert)| text(alert, "alert")).collect();
    job.wait("every alert to be evaluated", async || {
        let rules = loaded(prometheus).await?;
        let found: BTreeSet<&str> = rules.iter().map(|rule| text(rule, "name")).collect();
        ensure!(found == wanted, "{found:?}");
        for rule in &rules {
            ensure!(rule["health"] == "ok", "{rule:#}");
        }
        Ok(())
    })
    .await;
    for (_, alert) in &alerts {
        // An alert that looks at itself asks Prometheus, which has nothing of it before it fires.
        let named = names(prometheus, text(alert, "expr")).await;
        for name in named.iter().filter(|name| *name != "ALERTS") {
            let series = prometheus.get("api/v1/series", &[("match[]", name)]).await.unwrap();
            assert!(
                !list(&series, "").is_empty(),
                "{}: nobody exports {name}",
                alert["alert"]
            );
        }
    }
}

/// Waits until an alert fires for the job.
pub async fn fires(prometheus: &Prometheus<'_>, job: &Job<'_>, name: &str) {
    job.wait(&format!("alert {name}"), async || {
        let rules = loaded(prometheus).await?;
        let rule = rules
            .iter()
            .find(|rule| rule["name"] == name)
            .context("it is not loaded")?;
        let ours = |alert: &&Value| {
            let labels = &alert["labels"];
            alert["state"] == "firing" && labels["namespace"] == *job.namespace.name && labels["job"] == NAME
        };
        list(rule, "/alerts")
            .iter()
            .find(ours)
            .with_context(|| format!("{rule:#}"))?;
        Ok(())
    })
    .await;
}
