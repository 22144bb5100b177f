//! Every panel of the dashboards that the chart gives Grafana shows something of a running job.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::ListParams;
use ppo_tests::Prometheus;
use serde_json::Value;

use super::rules::names;
use crate::job::{Job, NAME};
use crate::monitoring::{asked_variables, filled, list, metric_lists, panels, text};

/// What cannot show anything in a short healthy run, and why not: exactly these.
const SILENT: [(&str, &str); 2] = [
    (
        "engines.json, Prefix cache: A",
        "the builtin engine has no prefix cache; vLLM has one, and its door hands its metrics on",
    ),
    (
        "training.json, Added by the reward role: A",
        "only a reward server of the user's own adds numbers, and no rule or model",
    ),
];

/// Seconds that the dashboards look back, and between two points of a curve.
const RANGE: u64 = 300;
const STEP: u64 = 5;

/// A query as Grafana sends it.
struct Query {
    place: String,
    expression: String,
    instant: bool,
}

/// The dashboards, as Grafana's sidecar finds them.
pub async fn dashboards(job: &Job<'_>) -> Vec<(String, Value)> {
    let maps: Api<ConfigMap> = Api::all(job.namespace.client.clone());
    let labelled = ListParams::default().labels("grafana_dashboard=1");
    let maps = maps.list(&labelled).await.unwrap().items;
    let files = maps.into_iter().flat_map(|map| map.data.unwrap());
    let dashboards: Vec<_> = files
        .map(|(file, text)| (file, serde_json::from_str(&text).unwrap()))
        .collect();
    assert_eq!(dashboards.len(), 4);
    dashboards
}

/// With the job chosen, and else what the dashboard opens with.
fn as_grafana(expression: &str, dashboard: &Value, job: &Job<'_>) -> String {
    let range = format!("{RANGE}s");
    let mut values = vec![
        ("namespace", job.namespace.name.as_str()),
        ("job", NAME),
        ("__range", &range),
    ];
    // Four times the data source's scrape interval, which is 15 s unless set.
    values.push(("__rate_interval", "1m"));
    let variables = list(dashboard, "/templating/list").iter();
    let custom = variables.filter(|variable| variable["type"] == "custom");
    values.extend(custom.map(|variable| (text(variable, "name"), text(&variable["current"], "value"))));
    filled(expression, &values)
}

fn queries(dashboards: &[(String, Value)], job: &Job<'_>) -> Vec<Query> {
    let mut queries = Vec::new();
    for (file, dashboard) in dashboards {
        for panel in panels(dashboard) {
            queries.extend(list(panel, "/targets").iter().map(|target| Query {
                place: format!("{file}, {}: {}", text(panel, "title"), text(target, "refId")),
                expression: as_grafana(text(target, "expr"), dashboard, job),
                instant: target["instant"] == true,
            }));
        }
    }
    queries
}

/// Whether there is a number in the answer.
async fn shows(prometheus: &Prometheus<'_>, query: &Query) -> Result<bool> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let (start, end, step) = ((now - RANGE).to_string(), now.to_string(), STEP.to_string());
    let asked = ("query", query.expression.as_str());
    let data = if query.instant {
        prometheus.get("api/v1/query", &[asked]).await?
    } else {
        let range = [asked, ("start", &start), ("end", &end), ("step", &step)];
        prometheus.get("api/v1/query_range", &range).await?
    };
    let is_number = |point: &Value| point[1].as_str().is_some_and(|value| value != "NaN");
    let shown = list(&data, "/result").iter().any(|series| {
        let points = list(series, "/values").iter();
        points.chain(series.get("value")).any(is_number)
    });
    Ok(shown)
}

/// Waits until every query shows something but those that `silent` lists; which are those.
async fn wait_for_all(
    prometheus: &Prometheus<'_>,
    job: &Job<'_>,
    mut queries: Vec<Query>,
    silent: &[&str],
) -> Vec<Query> {
    // What does not parse fails here, at once.
    for query in &queries {
        names(prometheus, &query.expression).await;
    }
    job.wait("every panel to show something", async || {
        let mut shown = Vec::new();
        for query in &queries {
            shown.push(shows(prometheus, query).await?);
        }
        let mut shown = shown.into_iter();
        queries.retain(|_| shown.next() != Some(true));
        let mut places = queries.iter().map(|query| query.place.as_str());
        ensure!(
            places.all(|place| silent.contains(&place)),
            "nothing in {:#?}",
            queries
                .iter()
                .map(|query| (&query.place, &query.expression))
                .collect::<Vec<_>>()
        );
        Ok(())
    })
    .await;
    queries
}

/// Every panel of every dashboard, and the variables that it offers to choose from.
pub async fn check(prometheus: &Prometheus<'_>, job: &Job<'_>, dashboards: &[(String, Value)]) {
    for (file, dashboard) in dashboards {
        for (variable, selector, label) in asked_variables(dashboard) {
            let path = format!("api/v1/label/{label}/values");
            let selector = as_grafana(selector, dashboard, job);
            let offered = prometheus.get(&path, &[("match[]", &selector)]).await.unwrap();
            let ours = if variable == "job" { NAME } else { &job.namespace.name };
            assert!(
                list(&offered, "").iter().any(|value| value == ours),
                "{file}: {offered}"
            );
        }
    }
    let silent = SILENT.map(|(place, _)| place);
    let left = wait_for_all(prometheus, job, queries(dashboards, job), &silent).await;
    let found: BTreeSet<&str> = left.iter().map(|query| query.place.as_str()).collect();
    assert_eq!(
        found,
        silent.into(),
        "what is reached now has to go from the list SILENT"
    );
    // What these ask for is nevertheless something that our binaries export.
    let exported = metric_lists().concat();
    for query in &left {
        for name in names(prometheus, &query.expression).await {
            assert!(exported.contains(&format!("| {name} |")), "{}: {name}", query.place);
        }
    }
}

/// The marks over curves, once a pod was restarted.
pub async fn check_annotations(prometheus: &Prometheus<'_>, job: &Job<'_>, dashboards: &[(String, Value)]) {
    let mut queries = Vec::new();
    for (file, dashboard) in dashboards {
        queries.extend(list(dashboard, "/annotations/list").iter().map(|annotation| Query {
            place: format!("{file}, annotation {}", text(annotation, "name")),
            expression: as_grafana(text(annotation, "expr"), dashboard, job),
            instant: false,
        }));
    }
    assert!(!queries.is_empty());
    wait_for_all(prometheus, job, queries, &[]).await;
}
