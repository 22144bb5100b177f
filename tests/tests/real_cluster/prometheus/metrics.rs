//! What our lists of metrics promise is there once Prometheus has scraped a job of every role.

use std::collections::BTreeSet;

use anyhow::ensure;
use ppo_tests::Prometheus;
use serde_json::Value;

use crate::job::Job;
use crate::monitoring::{list, metric_lists};

/// What such a job does not export, and why not: exactly these.
const ABSENT: [(&str, &str); 2] = [
    ("ppo_draws", "a step draws once without batch.dynamicSampling"),
    (
        "ppo_extra",
        "only a reward server of the user's own adds numbers, and no rule or model",
    ),
];

/// Names and kinds of the lists.
fn promised() -> Vec<(String, bool)> {
    let lists = metric_lists().concat();
    let rows = lists
        .lines()
        .filter(|line| line.starts_with("| ppo") || line.starts_with("| vllm:"));
    let promised: Vec<_> = rows
        .map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            (cells[1].to_owned(), cells[2] == "histogram")
        })
        .collect();
    assert!(promised.len() > 70, "{promised:?}");
    promised
}

/// Every metric of the lists has a series, but those of [`ABSENT`].
pub async fn check(prometheus: &Prometheus<'_>, job: &Job<'_>) {
    let promised = promised();
    let absent = job
        .wait("every metric to be scraped", async || {
            let data = prometheus.get("api/v1/label/__name__/values", &[]).await?;
            let scraped: BTreeSet<&str> = list(&data, "").iter().filter_map(Value::as_str).collect();
            let is_absent = |(name, histogram): &&(String, bool)| match histogram {
                true => !scraped.contains(format!("{name}_bucket").as_str()),
                false => !scraped.contains(name.as_str()),
            };
            let absent: BTreeSet<String> = promised
                .iter()
                .filter(is_absent)
                .map(|(name, _)| name.clone())
                .collect();
            let known = |name: &String| ABSENT.iter().any(|(absent, _)| absent == name);
            ensure!(absent.iter().all(known), "nobody exports {absent:?}");
            Ok(absent)
        })
        .await;
    let listed: BTreeSet<String> = ABSENT.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(absent, listed, "what is scraped now has to go from the list ABSENT");
}
