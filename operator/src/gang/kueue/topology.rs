//! The nodes that Kueue chose, decoded: its assignments are compressed (`TopologyAssignment` in Kueue's
//! `apis/kueue/v1beta2/workload_types.go`, which explains the format).

use std::collections::BTreeMap;

use serde_json::Value;

/// For each pod the labels of its node, in the order of the assignment. Empty without one.
pub fn nodes(assignment: &Value) -> Vec<BTreeMap<String, String>> {
    let levels: Vec<&str> = list(&assignment["levels"]).filter_map(Value::as_str).collect();
    list(&assignment["slices"])
        .flat_map(|slice| domains(slice, &levels))
        .collect()
}

fn domains(slice: &Value, levels: &[&str]) -> Vec<BTreeMap<String, String>> {
    let count = usize::try_from(slice["domainCount"].as_u64().unwrap_or_default()).unwrap_or_default();
    let pods = |domain: usize| {
        let counts = &slice["podCounts"];
        let pods = counts["universal"]
            .as_u64()
            .or_else(|| counts["individual"][domain].as_u64());
        usize::try_from(pods.unwrap_or_default()).unwrap_or_default()
    };
    let labels = |domain: usize| {
        let values = list(&slice["valuesPerLevel"]);
        let named = levels.iter().zip(values);
        named
            .filter_map(|(level, values)| Some(((*level).to_string(), value(values, domain)?)))
            .collect::<BTreeMap<_, _>>()
    };
    (0..count)
        .flat_map(|domain| std::iter::repeat_n(labels(domain), pods(domain)))
        .collect()
}

fn value(values: &Value, domain: usize) -> Option<String> {
    if let Some(same) = values["universal"].as_str() {
        return Some(same.to_string());
    }
    let individual = &values["individual"];
    let part = |field: &str| individual[field].as_str().unwrap_or_default();
    let root = individual["roots"][domain].as_str()?;
    Some(format!("{}{root}{}", part("prefix"), part("suffix")))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_pod_gets_the_labels_of_its_domain() {
        // Example 2 of Kueue's own description of the format.
        let assignment = json!({
            "levels": ["block", "rack"],
            "slices": [{
                "domainCount": 2,
                "valuesPerLevel": [{"universal": "block-1"}, {"individual": {"prefix": "rack-", "roots": ["1", "2"]}}],
                "podCounts": {"individual": [4, 2]},
            }],
        });
        let nodes = nodes(&assignment);
        let racks: Vec<&str> = nodes.iter().map(|node| node["rack"].as_str()).collect();
        assert_eq!(racks, ["rack-1", "rack-1", "rack-1", "rack-1", "rack-2", "rack-2"]);
        assert!(nodes.iter().all(|node| node["block"] == "block-1"));
    }

    #[test]
    fn slices_follow_each_other_and_suffixes_count() {
        let slice = |prefix: &str, roots: &[&str]| {
            json!({"domainCount": roots.len(), "podCounts": {"universal": 1},
                   "valuesPerLevel": [{"individual": {"prefix": prefix, "suffix": ".example", "roots": roots}}]})
        };
        let assignment = json!({"levels": ["host"], "slices": [slice("a", &["1", "2"]), slice("b", &["3"])]});
        let hosts: Vec<String> = nodes(&assignment).iter().map(|node| node["host"].clone()).collect();
        assert_eq!(hosts, ["a1.example", "a2.example", "b3.example"]);
    }

    #[test]
    fn without_an_assignment_no_pod_is_pinned() {
        assert!(nodes(&Value::Null).is_empty());
    }
}
