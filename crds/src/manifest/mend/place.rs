//! What may stand where a field cannot be read.

use serde_json::Value as Schema;
use serde_yaml::{Mapping, Value};

use crate::field::Step;

/// A field's place in the schema.
pub enum Place {
    /// It may be left out.
    Optional,
    /// It must be there, and this is the least that can be read.
    Needed(Value),
    /// The schema does not say.
    Open,
}

impl Place {
    pub fn of(path: &[Step]) -> Self {
        let Some((Step::Field(root), below)) = path.split_first() else {
            return Self::Open;
        };
        match root.as_str() {
            "spec" => {}
            "metadata" if below.is_empty() => return Self::Needed(Value::Mapping(Mapping::new())),
            _ => return Self::Open,
        }
        let (mut schema, mut is_needed) = (crate::spec_schema(), true);
        for step in below {
            let inner = match step {
                Step::Field(name) => {
                    is_needed = requires(schema, name);
                    schema.get("properties").and_then(|fields| fields.get(name))
                }
                // Without it the items after it would be others.
                Step::Item(_) => {
                    is_needed = true;
                    schema.get("items")
                }
            };
            let Some(inner) = inner else { return Self::Open };
            schema = inner;
        }
        match is_needed {
            true => Self::Needed(least(schema)),
            false => Self::Optional,
        }
    }
}

fn requires(schema: &Schema, name: &str) -> bool {
    let mut required = schema.get("required").and_then(Schema::as_array).into_iter().flatten();
    required.any(|required| required.as_str() == Some(name))
}

fn least(schema: &Schema) -> Value {
    let minimum = schema.get("minimum");
    match schema.get("type").and_then(Schema::as_str).unwrap_or_default() {
        "object" => {
            let properties = schema
                .get("properties")
                .and_then(Schema::as_object)
                .into_iter()
                .flatten();
            let needed = properties.filter(|(name, _)| requires(schema, name));
            let fields = needed.map(|(name, schema)| (Value::from(name.as_str()), least(schema)));
            Value::Mapping(fields.collect::<Mapping>())
        }
        "array" => Value::Sequence(Vec::new()),
        "string" => {
            let words = schema.get("enum").and_then(Schema::as_array);
            let first = words.and_then(|words| words.first()?.as_str());
            Value::from(first.unwrap_or_default())
        }
        "integer" => Value::from(minimum.and_then(Schema::as_u64).unwrap_or(1)),
        "number" => Value::from(minimum.and_then(Schema::as_f64).unwrap_or(1.0)),
        "boolean" => Value::from(false),
        _ => Value::Null,
    }
}
