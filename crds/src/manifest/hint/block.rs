//! For a text in place of a block or a list: that with the text in it.

use serde_json::Value as Schema;

use crate::manifest::empty;
use crate::validate::in_python;

/// Longest text that is written out.
const LONGEST: usize = 80;

/// For a text in place of a block of `schema`.
pub fn block(text: &str, schema: &Schema) -> String {
    match in_python(text).filter(|_| field(schema, "urls").is_some()) {
        Some(words) => format!("; {words}"),
        None => such_as(&blocks(text, schema)),
    }
}

/// For a text in place of a list of `schema`.
pub fn list(text: &str, schema: &Schema) -> String {
    let item = schema.get("items").unwrap_or(&Schema::Null);
    let items: Vec<String> = match item.get("type").and_then(Schema::as_str) {
        Some("string") => quoted(text).into_iter().collect(),
        _ => blocks(text, item),
    };
    such_as(&items.iter().map(|item| format!("[{item}]")).collect::<Vec<_>>())
}

fn such_as(blocks: &[String]) -> String {
    match blocks {
        [] => String::new(),
        _ => format!(", such as {}", blocks.join(" or ")),
    }
}

/// The blocks that may be meant, the likeliest first.
fn blocks(text: &str, schema: &Schema) -> Vec<String> {
    let has = |name: &str| field(schema, name).is_some();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./~".contains(c);
    let is_name = !text.is_empty() && text.len() <= LONGEST && text.chars().all(is_plain);
    if has("path") && has("pvc") {
        return if is_name { places(text, has("hub")) } else { Vec::new() };
    }
    let nested = ["source", "policy"]
        .into_iter()
        .find_map(|name| Some((name, field(schema, name)?)));
    if let Some((name, inner)) = nested {
        let within = blocks(text, inner).into_iter();
        return within.map(|block| format!("{{{name}: {block}}}")).collect();
    }
    if let Some((name, least)) = empty::written(text).filter(|(name, _)| has(name)) {
        return vec![format!("{{{name}: {least}}}")];
    }
    if let Some(name) = word_of(text, schema) {
        return vec![format!("{{{name}: {text}}}")];
    }
    let is_url = text.starts_with("http://") || text.starts_with("https://");
    let (name, value) = if has("id") && has("revision") && is_name {
        ("id", Some(text.to_owned()))
    } else if has("pattern") {
        ("pattern", quoted(text))
    } else if has("urls") && is_url {
        ("urls", quoted(text).map(|url| format!("[{url}]")))
    } else {
        return Vec::new();
    };
    value.into_iter().map(|value| format!("{{{name}: {value}}}")).collect()
}

fn places(text: &str, may_be_of_the_hub: bool) -> Vec<String> {
    let is_id = text.matches('/').count() == 1 && !text.starts_with(['.', '/', '~']) && !text.ends_with('/');
    let hub = (may_be_of_the_hub && is_id).then(|| format!("{{hub: {{id: {text}}}}}"));
    hub.into_iter().chain([format!("{{path: {text}}}")]).collect()
}

/// The one field of a block that has `text` among its words.
fn word_of<'a>(text: &str, schema: &'a Schema) -> Option<&'a str> {
    let fields = schema
        .get("properties")
        .and_then(Schema::as_object)
        .into_iter()
        .flatten();
    let knows = |field: &Schema| {
        let words = field.get("enum").and_then(Schema::as_array);
        words.is_some_and(|words| words.iter().any(|word| word.as_str() == Some(text)))
    };
    let mut named = fields.filter(|(_, field)| knows(field)).map(|(name, _)| name.as_str());
    named.next().filter(|_| named.next().is_none())
}

/// As YAML has a text that may hold anything but a line's end; None: it is too long to be repeated.
fn quoted(text: &str) -> Option<String> {
    let is_short = text.chars().count() <= LONGEST && !text.chars().any(char::is_control);
    is_short.then(|| format!("'{}'", text.replace('\'', "''")))
}

fn field<'a>(schema: &'a Schema, name: &str) -> Option<&'a Schema> {
    schema.get("properties")?.get(name)
}
