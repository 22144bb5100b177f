//! A wrong value is refused, with words that name it.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::monitoring::list;
use crate::rendered::{objects, of_kind, only, template};
use crate::tools::{chart, files, name, run};

fn refusal(flags: &[&str]) -> String {
    let said = run(
        "helm",
        &[&["template", "ppo", "charts/ppo-operator"], flags].concat(),
        "",
    );
    assert!(!said.ok, "{flags:?} is taken");
    said.err
}

#[test]
fn an_unknown_value_is_refused_by_name_at_every_depth() {
    for (flag, named) in [
        ("replica=2", "'replica'"),
        ("image.repo=x", "'repo'"),
        ("monitoring.serviceMonitor.enable=true", "'enable'"),
        ("networkPolicy.egress.apiServer.port=6443", "'port'"),
        ("worker.image.pullPolicy=Always", "'pullPolicy'"),
        ("livenessProbe.exec=x", "'exec'"),
        ("worker.podTemplate.spec.hostNetwork=true", "'hostNetwork'"),
        // They need resourceClaims of the pod, for which there is no value.
        ("resources.claims[0].name=gpu", "'claims'"),
    ] {
        let error = refusal(&["--set", flag]);
        assert!(
            error.contains(named) && error.contains("not allowed"),
            "{flag}: {error}"
        );
    }
}

#[test]
fn a_value_that_could_not_work_is_refused() {
    for (flag, named) in [
        ("replicas=two", "/replicas"),
        ("replicas=-1", "/replicas"),
        ("concurrency=0", "/concurrency"),
        ("reportIntervalSeconds=600", "/reportIntervalSeconds"),
        ("log.format=xml", "/log/format"),
        ("image.pullPolicy=Sometimes", "/image/pullPolicy"),
        ("image.digest=sha256:12", "/image/digest"),
        ("watchNamespaces={Team_A}", "/watchNamespaces/0"),
        ("gpuResource=gpu", "/gpuResource"),
        ("service.port=70000", "/service/port"),
        ("monitoring.podMonitor.interval=soon", "/monitoring/podMonitor/interval"),
        // prometheus-operator takes the units from large to small alone.
        (
            "monitoring.podMonitor.interval=30s1m",
            "/monitoring/podMonitor/interval",
        ),
        ("service.labels.app\\.kubernetes\\.io/name=x", "/service/labels"),
        (
            "monitoring.rules.disabled={PpoJobFaild}",
            "/monitoring/rules/disabled/0",
        ),
        (
            "monitoring.rules.runbookBase=https://git.example.com/ml",
            "/monitoring/rules/runbookBase",
        ),
        ("extraArgs={run}", "/extraArgs/0"),
        // The template writes these itself, and no key may come twice.
        ("podAnnotations.checksum/pod-defaults=x", "/podAnnotations"),
        ("crds.annotations.ppojob\\.dev/contract=x", "/crds/annotations"),
        (
            "podAnnotations.kubectl\\.kubernetes\\.io/default-container=x",
            "/podAnnotations",
        ),
        (
            "worker.podTemplate.spec.containers[0].name=logs",
            "/worker/podTemplate/spec/containers/0/name",
        ),
    ] {
        let error = refusal(&["--set", flag]);
        assert!(error.contains(named), "{flag}: {error}");
    }
}

#[test]
fn values_that_contradict_each_other_are_refused_with_the_remedy() {
    let error = refusal(&["--set", "leaderElection=false"]);
    assert!(error.contains("set replicas to 1"), "{error}");
    let error = refusal(&["--set", "serviceAccount.create=false"]);
    assert!(error.contains("set serviceAccount.name"), "{error}");
    let flags = "monitoring.podMonitor.enabled=true,monitoring.podMonitor.interval=5s";
    let error = refusal(&["--set", flags]);
    assert!(error.contains("lower scrapeTimeout or raise interval"), "{error}");
}

/// Taken away with null, or missing among the values of an older release that `--reuse-values` brings.
#[test]
fn a_value_that_the_chart_cannot_do_without_is_missed_by_name() {
    for (flag, named) in [
        ("vllm=null", "'vllm'"),
        ("reportIntervalSeconds=null", "'reportIntervalSeconds'"),
        ("log.format=null", "'format'"),
        ("service.port=null", "'port'"),
        ("networkPolicy.egress.apiServer=null", "'apiServer'"),
    ] {
        let error = refusal(&["--set", flag]);
        assert!(
            error.contains(named) && error.contains("missing propert"),
            "{flag}: {error}"
        );
    }
}

#[test]
fn what_is_taken_away_with_null_is_left_to_the_cluster() {
    let flags = "livenessProbe=null,monitoring.serviceMonitor.enabled=true,monitoring.serviceMonitor.interval=null";
    let rendered = objects(&template(&["--set", flags]));
    let container = &only(&rendered, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(
        container["livenessProbe"],
        json!({"httpGet": {"path": "/healthz", "port": "http"}})
    );
    let endpoint = &only(&rendered, "ServiceMonitor")["spec"]["endpoints"][0];
    assert!(endpoint.get("interval").is_none(), "{endpoint}");
}

#[test]
fn a_name_that_yaml_would_read_as_something_else_stays_a_name() {
    let flags = [
        "--set-string",
        "watchNamespaces={1234,on}",
        "--set-string",
        "monitoring.scraperNamespaces={777}",
        "--set-string",
        "serviceAccount.name=12",
        "--set-string",
        "priorityClassName=1",
    ];
    let rendered = objects(&template(&flags));
    let roles = of_kind(&rendered, "Role");
    let namespaces: BTreeSet<&str> = roles
        .iter()
        .map(|role| role["metadata"]["namespace"].as_str().unwrap())
        .collect();
    assert_eq!(namespaces, BTreeSet::from(["1234", "on", "ppo-system"]));
    let policy = only(&rendered, "NetworkPolicy");
    let scraper = &policy["spec"]["ingress"][0]["from"][1]["namespaceSelector"]["matchLabels"];
    assert_eq!(scraper["kubernetes.io/metadata.name"], "777");
    let pod = &only(&rendered, "Deployment")["spec"]["template"]["spec"];
    assert_eq!(
        (&pod["serviceAccountName"], &pod["priorityClassName"]),
        (&json!("12"), &json!("1"))
    );
}

/// Paths of all values; a map that holds only what its user puts in is one value.
fn paths(values: &Value, schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    let known = schema.get("properties").and_then(Value::as_object);
    match (values.as_object(), known) {
        (Some(values), Some(known)) if !values.is_empty() => {
            for (key, value) in values {
                let schema = known
                    .get(key)
                    .unwrap_or_else(|| panic!("{path}.{key} is not in values.schema.json"));
                paths(value, schema, &format!("{path}.{key}"), found);
            }
        }
        _ => {
            found.insert(path.trim_start_matches('.').to_owned());
        }
    }
}

fn values() -> BTreeSet<String> {
    let read = |name: &str| fs::read_to_string(chart().join(name)).unwrap();
    let values: Value = serde_yaml::from_str(&read("values.yaml")).unwrap();
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let mut found = BTreeSet::new();
    paths(&values, &schema, "", &mut found);
    assert!(found.len() > 50, "{found:?}");
    found
}

#[test]
fn every_value_is_in_the_readme() {
    let readme = fs::read_to_string(chart().join("README.md")).unwrap();
    for value in values() {
        assert!(
            readme.contains(&format!("| `{value}` |")),
            "charts/ppo-operator/README.md has no row for {value}"
        );
    }
    let rows = readme
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    for (value, _) in rows {
        assert!(
            values().contains(value),
            "charts/ppo-operator/README.md: there is no value {value}"
        );
    }
}

/// A YAML file of the chart.
fn read(path: &str) -> Value {
    serde_yaml::from_str(&fs::read_to_string(chart().join(path)).unwrap()).unwrap()
}

#[test]
fn every_default_in_the_readme_is_the_charts() {
    let readme = fs::read_to_string(chart().join("README.md")).unwrap();
    let default = read("values.yaml");
    let values = values();
    for row in readme.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let value = cells[1].trim_matches('`');
        if !values.contains(value) {
            continue;
        }
        let found = default.pointer(&format!("/{}", value.replace('.', "/"))).unwrap();
        let said = cells[2].strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
        match said {
            Some(yaml) => assert_eq!(&serde_yaml::from_str::<Value>(yaml).unwrap(), found, "{row}"),
            // Nothing, or in words what the chart takes where nothing is given.
            None => assert!([json!(""), json!([]), json!({})].contains(found), "{row} is {found}"),
        }
    }
}

/// What a case of the chart's own unit tests sets a value to, by its whole path or in a map.
fn set_by<'a>(case: &'a Value, value: &str) -> Option<&'a Value> {
    let mut set = case["set"].as_object()?.iter();
    set.find_map(|(path, set)| set.pointer(&value.strip_prefix(path.as_str())?.replace('.', "/")))
}

#[test]
fn everything_is_tried_with_another_value_than_the_default() {
    let default = read("values.yaml");
    let installed = ["ci/namespaces-values.yaml", "ci/everything-values.yaml"].map(read);
    let suites = files(&chart().join("tests"), "yaml");
    let suites: Vec<Value> = suites
        .iter()
        .map(|path| read(&format!("tests/{}", name(path))))
        .collect();
    for value in values() {
        let pointer = format!("/{}", value.replace('.', "/"));
        let installed = installed.iter().filter_map(|values| values.pointer(&pointer));
        let cases = suites.iter().flat_map(|suite| list(suite, "/tests"));
        let mut tried = installed.chain(cases.filter_map(|case| set_by(case, &value)));
        let default = default.pointer(&pointer);
        assert!(
            tried.any(|tried| Some(tried) != default),
            "no file in charts/ppo-operator/ci and no case in charts/ppo-operator/tests sets {value}"
        );
    }
}

#[test]
fn the_definition_is_upgraded_with_the_chart_and_outlives_it() {
    let rendered = objects(&template(&[]));
    let mut crd = only(&rendered, "CustomResourceDefinition").clone();
    let metadata = crd["metadata"].as_object_mut().unwrap();
    let annotations = metadata["annotations"].as_object_mut().unwrap();
    assert_eq!(annotations.remove("helm.sh/resource-policy").unwrap(), "keep");
    assert_eq!(
        metadata.remove("labels").unwrap()["app.kubernetes.io/managed-by"],
        "Helm"
    );
    let wanted: Value = serde_yaml::from_str(&ppo_crds::crd_yaml().unwrap()).unwrap();
    assert_eq!(crd, wanted);

    let gone = objects(&template(&["--set", "crds.keep=false"]));
    let annotations = &only(&gone, "CustomResourceDefinition")["metadata"]["annotations"];
    assert_eq!(annotations, &wanted["metadata"]["annotations"]);
    assert!(!template(&["--set", "crds.install=false"]).contains("kind: CustomResourceDefinition"));
}
