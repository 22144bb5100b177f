//! Values for a node of a schema: inside its limits, on them, and outside.

use serde_json::{Map, Value, json};

/// A value, and whether the schema allows it.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub value: Value,
    pub allowed: bool,
}

fn allowed(value: Value) -> Candidate {
    Candidate { value, allowed: true }
}

fn refused(value: Value) -> Candidate {
    Candidate { value, allowed: false }
}

/// Everything to try at a node. `path` helps where a text has a form that the schema does not tell.
pub fn candidates(path: &str, node: &Value) -> Vec<Candidate> {
    match node["type"].as_str() {
        Some("boolean") => vec![
            allowed(json!(true)),
            allowed(json!(false)),
            refused(json!("yes")),
            refused(json!(1)),
        ],
        Some("string") if node.get("enum").is_some() => words(node),
        Some("string") => texts(path, node),
        Some("integer") => [numbers(node, 1.0, true), vec![refused(json!(1.5))]].concat(),
        Some("number") => numbers(node, 1e-3, false),
        Some("array") => lists(path, node),
        Some("object") => blocks(node),
        other => panic!("{path} has type {other:?}, for which no values are known"),
    }
}

fn words(node: &Value) -> Vec<Candidate> {
    let words = node["enum"].as_array().unwrap().iter().cloned().map(allowed);
    let wrong = ["", "nosuch"].map(|word| refused(json!(word)));
    words.chain(wrong).chain([refused(json!(1))]).collect()
}

fn texts(path: &str, node: &Value) -> Vec<Candidate> {
    let limit = |key: &str| node[key].as_u64().map(|limit| usize::try_from(limit).unwrap());
    let (min, max) = (limit("minLength").unwrap_or(0), limit("maxLength"));
    let max = max.unwrap_or_else(|| panic!("{path} has no maxLength: a text without end is stored"));
    let text = |length: usize| text(path, node, length);
    let mut all = vec![
        allowed(json!(text(max))),
        // Two bytes a character: lengths are of characters, not bytes.
        refused(json!("\u{e4}".repeat(max + 1))),
        refused(json!(text(max + 1))),
        refused(json!(1)),
        refused(json!(["a"])),
    ];
    all.push(allowed(json!(text(min.max(8)))));
    if min > 0 {
        all.push(refused(json!(text(min - 1))));
    }
    if node.get("pattern").is_some() {
        let wrong: &[&str] = match path.rsplit('.').next() {
            Some("storage") => &["much", "-1Gi", "0", "00.0Gi", "1 Gi", "1Gi\n2"],
            Some("id") => &["a/b/c", ".a", "https://hub/a", "a b", "a\nb"],
            Some("revision") => &["a//b", ".a", "a b", "a\nb"],
            _ => &["My_Claim", "-a", "a.", "a b", "a\nb"],
        };
        all.extend(wrong.iter().map(|text| refused(json!(text))));
    }
    all
}

/// A text of that many characters which means something where it stands.
fn text(path: &str, node: &Value, length: usize) -> String {
    let start = match path.rsplit('.').next() {
        Some("urls[]") => "http://",
        // Inside a volume it starts at its root; elsewhere it is absolute, on a cluster.
        Some("path" | "paths[]") if !path.ends_with("pvc.path") => "/",
        _ => "",
    };
    let filler = if node.get("pattern").is_some() { "1" } else { "a" };
    let text = start.to_owned() + &filler.repeat(length.saturating_sub(start.len()));
    text.chars().take(length).collect()
}

fn numbers(node: &Value, step: f64, whole: bool) -> Vec<Candidate> {
    let open = node["exclusiveMinimum"] == true;
    let number = |value: f64| if whole { json!(value as i64) } else { json!(value) };
    let mut all = vec![refused(json!("1")), refused(json!(true)), refused(json!({}))];
    let (min, max) = (node["minimum"].as_f64().unwrap(), node["maximum"].as_f64().unwrap());
    all.extend([allowed(number(max)), refused(number(next(max, step)))]);
    all.push(Candidate {
        value: number(min),
        allowed: !open,
    });
    all.push(refused(number(-next(-min, step))));
    // Small and within, as most values in use are.
    let inside = if whole {
        (min + 1.0).min(max)
    } else {
        min + (max - min).min(1.0) / 4.0
    };
    all.push(allowed(number(inside)));
    all
}

/// The next number that `step` still changes.
fn next(number: f64, step: f64) -> f64 {
    number
        + step
            .max(number.abs() * 1e-15)
            .max(if number.abs() > 1e9 { 1.0 } else { 0.0 })
}

fn lists(path: &str, node: &Value) -> Vec<Candidate> {
    let inside = format!("{path}[]");
    let entry = || match inside.as_str() {
        "spec.roles.reward.rules[]" => json!({"json": {}}),
        "spec.failurePolicy.rules[]" => json!({"action": "Ignore"}),
        inside => {
            let mut good = candidates(inside, &node["items"]).into_iter().filter(|it| it.allowed);
            good.next_back().unwrap().value
        }
    };
    let list = |length: u64| Value::Array((0..length).map(|_| entry()).collect());
    let max = node["maxItems"].as_u64();
    let max = max.unwrap_or_else(|| panic!("{path} has no maxItems: a list without end is stored"));
    let min = node["minItems"].as_u64().unwrap_or_default();
    let mut all = vec![
        allowed(list(min)),
        allowed(list(min + 1)),
        allowed(list(max)),
        refused(list(max + 1)),
        refused(json!("a")),
        refused(json!({})),
        refused(json!([[]])),
    ];
    if min > 0 {
        all.push(refused(list(min - 1)));
    }
    all
}

/// Of a block only what is wrong with it as a whole: its fields have values of their own.
fn blocks(node: &Value) -> Vec<Candidate> {
    let mut all = vec![refused(json!("a")), refused(json!(true)), refused(json!([]))];
    if node["x-kubernetes-preserve-unknown-fields"] == true {
        let template =
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "worker", "image": "a"}]}});
        all.push(allowed(template));
    } else if node.get("properties").is_none() {
        all.push(allowed(Value::Object(Map::new())));
    }
    all
}
