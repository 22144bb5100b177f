//! The CustomResourceDefinition: kube's derivation of it, made structural and strict, with the [rules](crate::cel) put in.

use std::sync::OnceLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::{PpoJob, cel};

const HEADER: &str = "\
# Generated from crds/src/spec by `cargo run -p ppo-crds --bin crdgen > crds/ppojob.yaml`. Do not edit.
# `UPDATE_EXPECT=1 cargo test -p ppo-crds` writes it too.
";

/// The CustomResourceDefinition to install. Use this one, not `PpoJob::crd()`, which lacks the CEL rules.
///
/// # Errors
/// When the derived definition does not read back as one, which is a bug.
pub fn crd() -> serde_json::Result<CustomResourceDefinition> {
    let mut crd = serde_json::to_value(PpoJob::crd())?;
    if let Some(root) = crd.pointer_mut(SCHEMA) {
        normalise(root);
        cel::insert(root);
        merge_lists_by_key(root);
    }
    crd["metadata"]["annotations"] = json!({CONTRACT_ANNOTATION: fingerprint(&crd["spec"])});
    serde_json::from_value(crd)
}

/// Annotation of the CRD with the fingerprint of its schema: an operator acts only on the CRD that it was built with.
pub const CONTRACT_ANNOTATION: &str = "ppojob.dev/contract";

/// The fingerprint of this crate's CRD.
///
/// # Errors
/// As [`crd`].
pub fn contract() -> serde_json::Result<String> {
    let annotations = crd()?.metadata.annotations.unwrap_or_default();
    Ok(annotations.get(CONTRACT_ANNOTATION).cloned().unwrap_or_default())
}

/// Hash of all but the words.
fn fingerprint(spec: &Value) -> String {
    let mut spec = spec.clone();
    remove_words(&mut spec);
    let hash = Sha256::digest(spec.to_string());
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn remove_words(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            // A property may have the name of a keyword: only a keyword's value is a text.
            fields.retain(|key, value| !(["description", "message"].contains(&key.as_str()) && value.is_string()));
            fields.values_mut().for_each(remove_words);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_words),
        _ => {}
    }
}

/// `crds/ppojob.yaml`: the definition as text, with a header that says how it is made.
///
/// # Errors
/// As [`crd`].
pub fn crd_yaml() -> Result<String, Box<dyn std::error::Error>> {
    let yaml = serde_yaml::to_string(&crd()?)?;
    let lines: String = yaml.lines().map(|line| with_point(line) + "\n").collect();
    Ok(format!("{HEADER}{lines}"))
}

/// A line whose value is a number with an exponent and no point, such as `1e-6`, gets one: readers of YAML 1.1 take it for a text.
fn with_point(line: &str) -> String {
    let pointed = || {
        let (key, value) = line.rsplit_once(' ')?;
        let (digits, exponent) = value.split_once('e')?;
        let is_key = key.ends_with(':') && !key.trim_start_matches([' ', '-']).contains(' ');
        let is_number = digits.parse::<i64>().is_ok() && exponent.parse::<i64>().is_ok();
        (is_key && is_number).then(|| format!("{key} {digits}.0e{exponent}"))
    };
    pointed().unwrap_or_else(|| line.to_owned())
}

/// The schema of `spec`, as JSON. Null if it cannot be derived, which a test would tell.
pub fn spec_schema() -> &'static Value {
    static SPEC: OnceLock<Value> = OnceLock::new();
    SPEC.get_or_init(|| {
        let crd = crd().and_then(serde_json::to_value).unwrap_or_default();
        crd.pointer(&format!("{SCHEMA}/properties/spec"))
            .cloned()
            .unwrap_or_default()
    })
}

const SCHEMA: &str = "/spec/versions/0/schema/openAPIV3Schema";

/// Makes a derived schema what the API server wants: no unsigned formats (it warns of formats it does not know), no
/// `nullable` (a null is then pruned, which is what leaving the field out means), no defaults inside lists, descriptions as paragraphs.
fn normalise(schema: &mut Value) {
    let Value::Object(node) = schema else { return };
    node.remove("nullable");
    if node.get("default") == Some(&Value::Null) {
        node.remove("default");
    }
    // An empty block such as `fixed: {}` derives `false`, which a structural schema may not say: pruning does it.
    if node.get("additionalProperties").is_some_and(Value::is_boolean) {
        node.remove("additionalProperties");
    }
    let format = match node.get("format").and_then(Value::as_str) {
        Some("uint8" | "uint16" | "uint32") => Some("int32"),
        Some("uint" | "uint64") => Some("int64"),
        _ => None,
    };
    if let Some(format) = format {
        node.insert("format".into(), json!(format));
        node.entry("minimum").or_insert(json!(0));
    }
    if let Some(Value::String(text)) = node.get_mut("description") {
        *text = text
            .split("\n\n")
            .map(|paragraph| paragraph.replace('\n', " "))
            .collect::<Vec<_>>()
            .join("\n\n");
    }
    if let Some(Value::Object(properties)) = node.get_mut("properties") {
        properties.values_mut().for_each(normalise);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = node.get_mut(key) {
            normalise(inner);
        }
    }
    if let Some(items) = node.get_mut("items") {
        remove_defaults(items);
    }
}

/// Inside lists nobody but our own types fills defaults in. Whoever compares a manifest with what is stored, as tools that apply from Git
/// do, compares lists whole: what the API server adds there would be a difference for ever.
fn remove_defaults(schema: &mut Value) {
    let Value::Object(node) = schema else { return };
    node.remove("default");
    if let Some(Value::Object(properties)) = node.get_mut("properties") {
        properties.values_mut().for_each(remove_defaults);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = node.get_mut(key) {
            remove_defaults(inner);
        }
    }
}

/// Server-side apply merges these lists entry by entry, so two writers of the status do not undo each other.
fn merge_lists_by_key(root: &mut Value) {
    for (list, key) in [("conditions", "type"), ("roles", "name")] {
        if let Some(node) = root
            .pointer_mut(&format!("/properties/status/properties/{list}"))
            .and_then(Value::as_object_mut)
        {
            merge_by_key(node, key);
        }
    }
}

fn merge_by_key(list: &mut Map<String, Value>, key: &str) {
    // The API server refuses a default on a list with keys that server-side apply owns by entry.
    list.remove("default");
    list.insert("x-kubernetes-list-type".into(), json!("map"));
    list.insert("x-kubernetes-list-map-keys".into(), json!([key]));
}
