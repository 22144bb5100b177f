//! Blocks of Kubernetes' own types, whose fields our schema leaves open: what of a block its type does not have.

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::Value;

use crate::field::Step;

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

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}
