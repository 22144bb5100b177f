//! Everything in a manifest that cannot be read: fields that are unknown, missing, of another type, or words that mean nothing here. serde would
//! stop at the first.

use serde_json::Value as Schema;
use serde_yaml::{Mapping, Value};

use super::hint;
use super::misfit::Misfit;
use super::nearest::{beginning_with, did_you_mean, elsewhere, nearest, one_of};
use crate::field::{self, Step};
use crate::validate::out_of_range;

/// Walks a manifest.
#[derive(Default)]
pub(super) struct Shape {
    path: Vec<Step>,
    pub misfits: Vec<Misfit>,
}

impl Shape {
    /// Compares a value with the schema of its field.
    pub fn check(&mut self, value: &Value, schema: &Schema) {
        let kind = schema.get("type").and_then(Schema::as_str).unwrap_or_default();
        match (kind, value) {
            ("object", Value::Mapping(fields)) => self.block(fields, schema),
            ("array", Value::Sequence(items)) => {
                for (index, item) in items.iter().enumerate() {
                    self.inside(Step::Item(index), |shape| shape.check(item, &schema["items"]));
                }
            }
            ("string", Value::String(word)) => self.word(word, schema),
            // YAML's reader takes a number for a text; the API server does not.
            ("string", Value::Number(_) | Value::Bool(_)) => self.refuse(unquoted(value)),
            ("integer", Value::Number(number)) => match serde_json::to_value(number) {
                // JSON has neither infinity nor NaN.
                Ok(number) if number.as_f64().is_none_or(|number| number.fract() != 0.0) => {
                    self.refuse(other(value, kind));
                }
                // What its type cannot hold; all other numbers are read.
                Ok(number) if !(0..=i64::from(u32::MAX)).contains(&number.as_i64().unwrap_or(-1)) => {
                    if let Some(message) = out_of_range(&number, schema) {
                        self.refuse(message);
                    }
                }
                _ => {}
            },
            ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) | ("", _) => {}
            ("object", Value::String(text)) => {
                self.refuse(format!("{}{}", other(value, kind), hint::block(text, schema)));
            }
            ("array", Value::String(text)) => {
                self.refuse(format!("{}{}", other(value, kind), hint::list(text, schema)));
            }
            _ => self.refuse(other(value, kind)),
        }
    }

    fn block(&mut self, fields: &Mapping, schema: &Schema) {
        if schema.get("x-kubernetes-preserve-unknown-fields").is_some() {
            return;
        }
        let properties = schema.get("properties").and_then(Schema::as_object);
        let known: Vec<&str> = properties
            .into_iter()
            .flatten()
            .map(|(name, _)| name.as_str())
            .collect();
        for (name, value) in fields {
            let Some(name) = name.as_str() else {
                self.refuse(format!("has a field whose name is no text: {}", shown(name)));
                continue;
            };
            match properties.and_then(|properties| properties.get(name)) {
                Some(schema) => self.inside(Step::Field(name.into()), |shape| shape.check(value, schema)),
                None => self.unknown(name, value, &known),
            }
        }
        let required = schema.get("required").and_then(Schema::as_array).into_iter().flatten();
        for name in required
            .filter_map(Schema::as_str)
            .filter(|name| fields.get(*name).is_none())
        {
            self.inside(Step::Field(name.into()), |shape| {
                let hint = hint::missing(&field::path(&shape.path));
                shape.refuse(format!("missing; it has no default{hint}"));
            });
        }
    }

    fn word(&mut self, word: &str, schema: &Schema) {
        let Some(words) = schema.get("enum").and_then(Schema::as_array) else {
            return;
        };
        let known: Vec<&str> = words.iter().filter_map(Schema::as_str).collect();
        if !known.contains(&word) {
            let nearest = match hint::word(word, &known) {
                "" => did_you_mean(word, &known),
                meant => meant.into(),
            };
            self.refuse(format!("{word} is not one of {}{nearest}", known.join(", ")));
        }
    }

    /// Refuses a field that is not one of `known`.
    pub fn unknown(&mut self, name: &str, value: &Value, known: &[&str]) {
        let block = field::path(&self.path);
        let (meant, asked) = match nearest(name, known) {
            Some(near) => (vec![join(&block, near)], did_you_mean(name, known)),
            None => self.guessed(name, value, known),
        };
        let known = if known.is_empty() {
            "none".into()
        } else {
            known.join(", ")
        };
        let mut path = self.path.clone();
        path.push(Step::Field(name.into()));
        self.misfits.push(Misfit {
            path,
            message: format!("unknown field; known here: {known}{asked}"),
            meant: Some(meant),
        });
    }

    /// What may be meant by a name that is near none: the fields that are read in its stead, and the question.
    fn guessed(&self, name: &str, value: &Value, known: &[&str]) -> (Vec<String>, String) {
        let block = field::path(&self.path);
        if let Some(place) = hint::of_pods(name, &block) {
            return (Vec::new(), one_of(&[join(&block, &place)]));
        }
        if let Some(place) = hint::of_data(name, value, &block) {
            let places = vec![join(&block, &place)];
            let asked = one_of(&places);
            return (places, asked);
        }
        let beside: Vec<String> = beginning_with(name, known)
            .iter()
            .map(|name| join(&block, name))
            .collect();
        let places = match beside.is_empty() {
            true => elsewhere(name, value, &block),
            false => beside,
        };
        let asked = one_of(&places);
        (places, asked)
    }

    /// Looks at what is one step further in.
    pub fn inside(&mut self, step: Step, look: impl FnOnce(&mut Self)) {
        self.below([step], look);
    }

    /// Looks at what is some steps further in.
    pub fn below(&mut self, steps: impl IntoIterator<Item = Step>, look: impl FnOnce(&mut Self)) {
        let depth = self.path.len();
        self.path.extend(steps);
        look(self);
        self.path.truncate(depth);
    }

    pub fn refuse(&mut self, message: String) {
        self.misfits.push(Misfit::new(self.path.clone(), message));
    }
}

fn join(block: &str, name: &str) -> String {
    match block {
        "" => name.into(),
        _ => format!("{block}.{name}"),
    }
}

/// Words for a value of another kind than the schema's.
pub(super) fn other(value: &Value, kind: &str) -> String {
    let needed = match kind {
        "object" => "a block of fields",
        "array" => "a list",
        "string" => "a text",
        "integer" => "a whole number",
        "boolean" => "true or false",
        _ => "a number",
    };
    format!("{} is given where {needed} is needed", shown(value))
}

/// Words for a number, or true or false, where a text is needed.
pub(super) fn unquoted(value: &Value) -> String {
    format!("{}: put it in quotes", other(value, "string"))
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "nothing".into(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::String(value) => format!("{:?}", value.chars().take(80).collect::<String>()),
        Value::Sequence(_) => "a list".into(),
        Value::Mapping(_) => "a block of fields".into(),
        Value::Tagged(_) => "a value with a tag".into(),
    }
}
