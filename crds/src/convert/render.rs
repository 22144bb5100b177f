//! The manifest as text: the fields in the manual's order, each with the flag it is from, and what a person has to know.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::draft::{Note, NoteKind, Setting};
use crate::PpoJob;

/// The manifest with comments.
pub fn render(framework: &str, job: &PpoJob, settings: &[Setting], notes: &[Note]) -> String {
    let mut text = format!("# Converted from {framework} by `ppo-worker convert`; see it with `ppo-worker plan -f`.\n");
    section(&mut text, "Replace before you run:", notes, NoteKind::Missing);
    section(
        &mut text,
        "Change before a cluster takes it:",
        notes,
        NoteKind::OnCluster,
    );
    section(
        &mut text,
        "Not translated, or not as it was:",
        notes,
        NoteKind::NotTranslated,
    );
    section(&mut text, "Needs nothing here:", notes, NoteKind::Needless);
    let name = job.metadata.name.as_deref().unwrap_or_default();
    text.push_str("apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetadata:\n");
    push(&mut text, &format!("  name: {}", scalar(&Value::from(name))));
    push(&mut text, "spec:");
    // Every field of the spec in the order of the manual; those that were set are written.
    if let Ok(Value::Object(spec)) = serde_json::to_value(&job.spec) {
        block(&mut text, &spec, "", 1, settings);
    }
    text
}

fn section(text: &mut String, title: &str, notes: &[Note], kind: NoteKind) {
    let mut notes = notes.iter().filter(|note| note.kind == kind).peekable();
    if notes.peek().is_some() {
        push(text, &format!("#\n# {title}"));
    }
    for note in notes {
        push(
            text,
            &format!("#   {}: {}", one_line(&note.subject), one_line(&note.message)),
        );
    }
}

fn block(text: &mut String, fields: &Map<String, Value>, path: &str, depth: usize, settings: &[Setting]) {
    let indent = "  ".repeat(depth);
    for (name, value) in fields {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        let below = format!("{path}.");
        if let Some(setting) = settings.iter().find(|setting| setting.field == path) {
            let line = format!("{indent}{name}: {}", scalar(&setting.value));
            push(text, &format!("{line:<48}  # {}", one_line(&setting.source)));
        } else if let Value::Object(inner) = value
            && settings.iter().any(|setting| setting.field.starts_with(&below))
        {
            push(text, &format!("{indent}{name}:"));
            block(text, inner, &path, depth + 1, settings);
        }
    }
}

/// A value on one line. JSON is YAML; plain words need no quotes, and a float keeps its point for readers of YAML 1.1.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        Value::Number(number) if number.is_f64() => {
            let text = number.to_string();
            match text.split_once('e') {
                Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
                _ => text,
            }
        }
        other => other
            .to_string()
            .chars()
            .map(|c| match is_hidden(c) {
                true => format!("\\u{:04x}", u32::from(c)),
                false => c.to_string(),
            })
            .collect(),
    }
}

/// Characters that JSON takes as they are and YAML does not.
fn is_hidden(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

fn is_plain(text: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || "/_-.".contains(c);
    let reserved = ["null", "true", "false", "yes", "no", "on", "off", "none", "y", "n"];
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(word)
        && !reserved.contains(&text.to_lowercase().as_str())
}

/// Comments end at the line: what a script gave must not.
fn one_line(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    words.join(" ").replace(is_hidden, "?")
}

fn push(text: &mut String, line: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{line}");
}
