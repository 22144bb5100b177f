//! The chart with values, as the objects a cluster would get.

use serde_json::Value;

use crate::tools::{chart, files, name, run};

/// The values that every check is made with: defaults, listed namespaces, everything on.
pub fn variants() -> Vec<(String, String)> {
    let variants = files(&chart().join("ci"), "yaml");
    assert!(variants.len() >= 3, "{variants:?}");
    let named = |path: &std::path::PathBuf| (name(path).to_owned(), path.display().to_string());
    variants.iter().map(named).collect()
}

/// `helm template` with these further arguments.
pub fn template(args: &[&str]) -> String {
    let fixed = ["template", "ppo", "charts/ppo-operator", "--namespace", "ppo-system"];
    run("helm", &[&fixed, args].concat(), "").unless_it_failed()
}

/// Its documents.
pub fn objects(text: &str) -> Vec<Value> {
    let documents = serde_yaml::Deserializer::from_str(text);
    let values = documents.map(|document| serde::Deserialize::deserialize(document).unwrap());
    values.filter(|value: &Value| !value.is_null()).collect()
}

/// The objects of a kind.
pub fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

/// The only object of a kind.
pub fn only<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let found = of_kind(objects, kind);
    assert_eq!(found.len(), 1, "{kind}: {found:?}");
    found[0]
}
