//! Whole numbers with a point or an exponent, as in `steps: 1e3`: for YAML's reader they are of another kind.

use serde_json::Value as Schema;
use serde_yaml::{Number, Value};

/// Up to here every whole number is told from the next one.
const MOST: f64 = 9_007_199_254_740_992.0;

/// Gives every field that wants a whole number the one that is written there with a point or an exponent.
pub(super) fn numbers(value: &mut Value, schema: &Schema) {
    match value {
        Value::Mapping(fields) => {
            let properties = schema.get("properties");
            for (name, value) in fields.iter_mut() {
                if let Some(schema) = name.as_str().and_then(|name| properties?.get(name)) {
                    numbers(value, schema);
                }
            }
        }
        Value::Sequence(items) => {
            if let Some(schema) = schema.get("items") {
                items.iter_mut().for_each(|item| numbers(item, schema));
            }
        }
        Value::Number(number) if schema.get("type").and_then(Schema::as_str) == Some("integer") => {
            if let Some(whole) = whole_number(number) {
                *number = whole;
            }
        }
        _ => {}
    }
}

/// A number with a point or an exponent as the whole number that it is; None: it is none, or is written as one.
pub fn whole_number(number: &Number) -> Option<Number> {
    let written = number.as_f64().filter(|_| number.is_f64())?;
    let is_whole = written.fract() == 0.0 && written.abs() <= MOST;
    is_whole.then(|| Number::from(written as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_with_a_point_or_an_exponent_is_whole_where_nothing_is_lost() {
        let of = |text: &str| whole_number(&serde_yaml::from_str(text).unwrap()).map(|whole| whole.to_string());
        assert_eq!(of("1e3").as_deref(), Some("1000"));
        assert_eq!(of("10.0").as_deref(), Some("10"));
        assert_eq!(of("-2.0").as_deref(), Some("-2"));
        for text in ["10", "1.5", "1e22", ".inf", ".nan"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
