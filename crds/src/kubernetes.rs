//! Blocks of Kubernetes' own types, whose fields our schema leaves open: what of a block its type does not have, or cannot read.

use std::sync::LazyLock;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::Value;

use crate::field::Step;
use crate::quantity::amount;

/// Why a [lost](lost) field is refused: no pod would have it.
pub(crate) const UNKNOWN: &str = "unknown field: Kubernetes has none of this name here";

/// Compares a block with what its type read of it: the paths of fields that are gone there. An empty one may be: left out is what
/// it means.
pub(crate) fn lost(given: &Value, read: &Value) -> Vec<Vec<Step>> {
    let mut lost = Vec::new();
    compare(given, read, &mut Vec::new(), &mut lost);
    lost
}

/// The names that Kubernetes has where a path in a `T` ends.
pub(crate) fn beside<T: JsonSchema>(path: &[Step]) -> Vec<String> {
    let root = SchemaGenerator::default().into_root_schema_for::<T>().to_value();
    let Some((_, way)) = path.split_last() else {
        return Vec::new();
    };
    let block = way.iter().try_fold(&root, |schema, step| {
        let schema = resolved(&root, schema)?;
        match step {
            Step::Field(name) => schema.get("properties")?.get(name),
            Step::Item(_) => schema.get("items"),
        }
    });
    let properties = block.and_then(|block| resolved(&root, block)?.get("properties")?.as_object());
    properties
        .into_iter()
        .flat_map(|fields| fields.keys().cloned())
        .collect()
}

/// A schema, or the one that it refers to.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> Option<&'a Value> {
    match schema.get("$ref").and_then(Value::as_str) {
        Some(reference) => root.pointer(reference.strip_prefix('#')?),
        None => Some(schema),
    }
}

fn compare(given: &Value, read: &Value, path: &mut Vec<Step>, lost: &mut Vec<Vec<Step>>) {
    match (given, read) {
        (Value::Object(fields), Value::Object(read)) => {
            for (name, value) in fields {
                path.push(Step::Field(name.clone()));
                match read.get(name) {
                    Some(read) => compare(value, read, path, lost),
                    None if is_empty(value) => {}
                    None => lost.push(path.clone()),
                }
                path.pop();
            }
        }
        (Value::Array(items), Value::Array(read)) => {
            for (index, (item, read)) in items.iter().zip(read).enumerate() {
                path.push(Step::Item(index));
                compare(item, read, path, lost);
                path.pop();
            }
        }
        _ => {}
    }
}

/// The texts in a pod template that should be quantities and are none, each with where it is: the type takes any text.
pub(crate) fn wrong_quantities(template: &Value) -> Vec<(Vec<Step>, String)> {
    static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
        SchemaGenerator::default()
            .into_root_schema_for::<PodTemplateSpec>()
            .to_value()
    });
    let mut wrong = Vec::new();
    find_wrong(template, &SCHEMA, &SCHEMA, &mut Vec::new(), &mut wrong);
    wrong
}

fn find_wrong(value: &Value, schema: &Value, root: &Value, path: &mut Vec<Step>, wrong: &mut Vec<(Vec<Step>, String)>) {
    let reference = schema.get("$ref").and_then(Value::as_str).unwrap_or_default();
    let Some(schema) = resolved(root, schema) else { return };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let property = schema.get("properties").and_then(|properties| properties.get(name));
                if let Some(schema) = property.or_else(|| schema.get("additionalProperties")) {
                    path.push(Step::Field(name.clone()));
                    find_wrong(value, schema, root, path, wrong);
                    path.pop();
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = schema.get("items") else { return };
            for (index, item) in items.iter().enumerate() {
                path.push(Step::Item(index));
                find_wrong(item, schema, root, path, wrong);
                path.pop();
            }
        }
        Value::String(text) if reference.ends_with(&*Quantity::schema_name()) && amount(text).is_none() => {
            wrong.push((path.clone(), text.clone()));
        }
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}
