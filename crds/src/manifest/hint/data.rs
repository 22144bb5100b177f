//! For data that is given under another name, or a level too high.

use serde_yaml::Value;

/// Names under which other trainers, or a hasty reader, give data.
const NAMES: [&str; 8] = ["dataset", "datasets", "data", "file", "files", "path", "paths", "pvc"];

/// For a field of such a name in a block that has a `source`, or at the top: where that has it, from the block on.
pub fn of_data(name: &str, value: &Value, block: &str) -> Option<String> {
    let source = match block {
        "spec.prompts" | "spec.evaluation" if NAMES.contains(&name) => "source",
        "spec" if ["dataset", "datasets", "data"].contains(&name) => "prompts.source",
        _ => return None,
    };
    let below = match value {
        Value::Mapping(_) if name == "pvc" => ".pvc",
        Value::Mapping(_) => "",
        Value::Sequence(_) => ".paths",
        _ => ".path",
    };
    Some(format!("{source}{below}"))
}
