//! The dashboards ask for what exists, explain themselves, and reach a cluster as Grafana's sidecar wants them.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::metrics::check;
use crate::monitoring::{self, asked_variables, dashboards, list, panels, text};
use crate::rendered::{objects, of_kind, template};

/// An expression with Grafana's variables and those that the dashboard defines, as Prometheus would see it.
pub fn filled(expression: &str, dashboard: &Value) -> String {
    let mut values = vec![("__rate_interval", "5m"), ("__interval", "1m"), ("__range", "6h")];
    for variable in list(dashboard, "/templating/list") {
        let value = if variable["type"] == "custom" { "30m" } else { "some" };
        values.push((text(variable, "name"), value));
    }
    monitoring::filled(expression, &values)
}

/// Every expression of a dashboard, with where it stands.
fn expressions(file: &str, dashboard: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for panel in panels(dashboard) {
        for target in list(panel, "/targets") {
            let place = format!("{file}, panel {:?}, {}", text(panel, "title"), text(target, "refId"));
            found.push((place, filled(text(target, "expr"), dashboard)));
        }
    }
    for annotation in list(dashboard, "/annotations/list") {
        found.push((
            format!("{file}, annotation"),
            filled(text(annotation, "expr"), dashboard),
        ));
    }
    for (variable, selector, label) in asked_variables(dashboard) {
        let asked = format!("count by ({label}) ({})", filled(selector, dashboard));
        found.push((format!("{file}, variable {variable}"), asked));
    }
    found
}

#[test]
fn every_expression_asks_for_metrics_and_labels_that_exist() {
    for (file, dashboard) in dashboards() {
        check(&expressions(&file, &dashboard));
    }
}

#[test]
fn a_legend_names_labels_that_its_expression_leaves() {
    for (file, dashboard) in dashboards() {
        for panel in panels(&dashboard) {
            for target in list(panel, "/targets") {
                let legend = text(target, "legendFormat").split("{{").skip(1);
                for label in legend.map(|rest| rest.split_once("}}").unwrap().0) {
                    let expression = text(target, "expr");
                    let groups = expression
                        .split("by (")
                        .skip(1)
                        .map(|rest| rest.split_once(')').unwrap().0);
                    let kept = groups.flat_map(|group| group.split(", ")).any(|kept| kept == label);
                    assert!(kept, "{file}, {}: {label} is not in {expression}", panel["title"]);
                }
            }
        }
    }
}

#[test]
fn what_the_dashboards_were_asked_to_show_is_there() {
    let mut named = BTreeSet::new();
    for (file, dashboard) in dashboards() {
        named.extend(check(&expressions(&file, &dashboard)));
    }
    for metric in [
        "ppo_stage_seconds",
        "ppo_step_seconds",
        "ppo_tokens_per_second",
        "ppo_generation_tokens_per_second",
        "ppo_score",
        "ppo_reward",
        "ppo_kl",
        "ppo_clip_fraction_ratio",
        "ppo_entropy",
        "ppo_explained_variance",
        "ppo_actor_grad_norm",
        "ppo_critic_grad_norm",
        "ppo_response_length_tokens",
        "ppo_logprob_difference",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions_total",
        "vllm:generation_tokens_total",
        "vllm:prompt_tokens_total",
        "ppojob_phase",
        "ppojob_role_pods",
        "ppojob_restarts",
    ] {
        assert!(named.contains(metric), "no dashboard shows {metric}");
    }
    for (metric, _) in crate::metrics::exported()
        .iter()
        .filter(|(metric, _)| metric.starts_with("ppo_operator_"))
    {
        assert!(named.contains(metric), "no dashboard shows {metric}");
    }
}

#[test]
fn every_panel_says_what_it_shows_in_which_unit() {
    for (file, dashboard) in dashboards() {
        for panel in panels(&dashboard) {
            let unit = panel.pointer("/fieldConfig/defaults/unit").and_then(Value::as_str);
            assert!(
                text(panel, "description").len() > 10 && unit.is_some(),
                "{file}: {}",
                panel["title"]
            );
        }
    }
}

#[test]
fn dashboards_are_told_apart_and_take_namespace_and_data_source_from_their_user() {
    let mut identities = BTreeSet::new();
    for (file, dashboard) in dashboards() {
        assert!(
            identities.insert(text(&dashboard, "uid").to_owned()),
            "{file}: its uid is taken"
        );
        let variables: Vec<&str> = list(&dashboard, "/templating/list")
            .iter()
            .map(|one| text(one, "name"))
            .collect();
        assert!(
            variables.contains(&"datasource") && variables.contains(&"namespace"),
            "{file}: {variables:?}"
        );
        assert!(
            variables.contains(&"job") || file == "operator.json",
            "{file}: {variables:?}"
        );
        // One Prometheus may have several clusters, whose label for them has no fixed name.
        let filters = list(&dashboard, "/templating/list")
            .iter()
            .find(|one| one["type"] == "adhoc");
        assert_eq!(filters.unwrap()["datasource"]["uid"], "${datasource}", "{file}");
        for panel in panels(&dashboard) {
            assert_eq!(
                panel["datasource"]["uid"], "${datasource}",
                "{file}: {}",
                panel["title"]
            );
        }
        let mut ids: Vec<u64> = list(&dashboard, "/panels")
            .iter()
            .map(|panel| panel["id"].as_u64().unwrap())
            .collect();
        ids.sort_unstable();
        assert!(
            ids.windows(2).all(|pair| pair[0] != pair[1]),
            "{file}: two panels have the same id"
        );
    }
    assert_eq!(identities.len(), 4);
}

#[test]
fn panels_fill_the_grid_without_lying_on_one_another() {
    for (file, dashboard) in dashboards() {
        let mut taken = BTreeSet::new();
        for panel in list(&dashboard, "/panels") {
            let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            assert!(at("x") + at("w") <= 24, "{file}: {} is too wide", panel["title"]);
            for x in at("x")..at("x") + at("w") {
                for y in at("y")..at("y") + at("h") {
                    assert!(taken.insert((x, y)), "{file}: {} lies on another panel", panel["title"]);
                }
            }
        }
    }
}

#[test]
fn the_chart_gives_grafana_every_dashboard_word_for_word() {
    let rendered = objects(&template(&["--set", "monitoring.dashboards.enabled=true"]));
    let maps = of_kind(&rendered, "ConfigMap");
    let dashboards = dashboards();
    assert_eq!(maps.len(), dashboards.len());
    for (file, dashboard) in dashboards {
        let map = maps.iter().find(|map| map["data"].get(&file).is_some()).unwrap();
        assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1", "{file}");
        assert_eq!(
            serde_json::from_str::<Value>(text(&map["data"], &file)).unwrap(),
            dashboard,
            "{file}"
        );
    }
}
