//! Limits of single fields, read from the CRD's schema, so that the API server and we refuse the same.

use regex::Regex;
use serde::Serialize;
use serde_json::Value;

use super::Problem;
use crate::PpoJobSpec;

/// Checks every number, string and list of the spec against the schema's limits.
pub fn check(spec: &PpoJobSpec, problems: &mut Vec<Problem>) {
    check_block(spec, crate::spec_schema(), "spec", problems);
}

/// Checks a block whose schema is `schema`.
pub fn check_block(block: &impl Serialize, schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    match serde_json::to_value(block) {
        Ok(value) => walk(&value, schema, path, problems),
        Err(error) => problems.push(Problem::new(path, format!("cannot be written as JSON: {error}"))),
    }
}

fn walk(value: &Value, schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    match value {
        Value::Object(fields) => {
            let known = fields
                .iter()
                .filter_map(|(name, value)| Some((name, value, schema.get("properties")?.get(name)?)));
            for (name, value, schema) in known {
                walk(value, schema, &format!("{path}.{name}"), problems);
            }
        }
        Value::Array(items) => {
            let Some(schema_of_items) = schema.get("items") else {
                return;
            };
            problems.extend(check_count(items.len(), "item", schema, ["minItems", "maxItems"], path));
            for (index, item) in items.iter().enumerate() {
                walk(item, schema_of_items, &format!("{path}[{index}]"), problems);
            }
        }
        Value::String(text) => {
            problems.extend(check_count(
                text.chars().count(),
                "character",
                schema,
                ["minLength", "maxLength"],
                path,
            ));
            problems.extend(check_pattern(text, schema, path));
        }
        Value::Number(_) => problems.extend(check_number(value, schema, path)),
        // JSON has no infinity and no NaN: serde writes them as null. Absent fields are not written at all.
        Value::Null if schema.get("type").and_then(Value::as_str) == Some("number") => {
            problems.push(Problem::new(path, "is not a finite number"));
        }
        Value::Null | Value::Bool(_) => {}
    }
}

fn check_count(count: usize, thing: &str, schema: &Value, [min, max]: [&str; 2], path: &str) -> Option<Problem> {
    let limit = |key: &str| schema.get(key).and_then(Value::as_u64);
    let count = count as u64;
    let plural = |number: u64| if number == 1 { "" } else { "s" };
    match (limit(min), limit(max)) {
        (Some(1), _) if count == 0 => Some(Problem::new(path, "is empty")),
        (Some(min), _) if count < min => Some(Problem::new(
            path,
            format!("has {count} {thing}{}; at least {min} are needed", plural(count)),
        )),
        (_, Some(max)) if count > max => Some(Problem::new(
            path,
            format!("has {count} {thing}{}; at most {max} are allowed", plural(count)),
        )),
        _ => None,
    }
}

fn check_pattern(text: &str, schema: &Value, path: &str) -> Option<Problem> {
    let pattern = schema.get("pattern").and_then(Value::as_str)?;
    // The patterns are ours, and short; the API server reads them by the same rules (RE2).
    let matches = Regex::new(pattern).is_ok_and(|regex| regex.is_match(text));
    (!matches).then(|| Problem::new(path, format!("{text:?} {}", misses(path, pattern))))
}

/// What a text is not that does not match its field's pattern.
fn misses(path: &str, pattern: &str) -> String {
    let words = match path.rsplit('.').next().unwrap_or(path) {
        "claimName" | "pvc" | "storageClassName" => {
            "is not the name of an object: lower-case letters, digits, '-' and '.', with a letter or digit first and last"
        }
        "id" => "is not a model of the hub: want owner/name, such as Qwen/Qwen3-0.6B, without the hub's address",
        "revision" => "is not a revision: want a branch, a tag or a commit",
        "storage" => "is not a size: want a number above 0 and a unit, such as 200Gi",
        _ => return format!("is not of the form {pattern}"),
    };
    words.into()
}

fn check_number(value: &Value, schema: &Value, path: &str) -> Option<Problem> {
    out_of_range(value, schema).map(|message| Problem::new(path, message))
}

/// In words that a number is outside the limits of its field's schema.
pub(crate) fn out_of_range(value: &Value, schema: &Value) -> Option<String> {
    let limit = |key: &str| schema.get(key).and_then(Value::as_f64);
    let (number, min, max) = (value.as_f64()?, limit("minimum"), limit("maximum"));
    let open = schema.get("exclusiveMinimum") == Some(&Value::Bool(true));
    let below = min.is_some_and(|min| number < min || (open && number == min));
    let above = max.is_some_and(|max| number > max);
    if !below && !above {
        return None;
    }
    let range = match (min, max) {
        (Some(min), Some(max)) if open => format!("above {min} and at most {max}"),
        (Some(min), Some(max)) => format!("{min} to {max}"),
        (Some(min), None) => format!("at least {min}"),
        (_, Some(max)) => format!("at most {max}"),
        (None, None) => return None,
    };
    Some(format!("{value} is out of range; it must be {range}"))
}
