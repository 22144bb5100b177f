//! The label of a row: what a response is compared with.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Number, Value};

use super::json::describe;

/// What a rule or a remote reward compares a response with: the row's own value, never null.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Label(Value);

impl Label {
    /// The label that a value is, wherever it comes from; null is none.
    ///
    /// # Errors
    /// A number that may be another one than was written.
    pub fn of(value: Value) -> Result<Option<Self>, String> {
        if let Some(number) = rounded(&value) {
            let has = if value.is_number() { "is" } else { "has" };
            return Err(format!(
                "{has} the number {number}, which is too large for one: write it as a string"
            ));
        }
        Ok(Some(value).filter(|value| !value.is_null()).map(Self))
    }

    /// The row's own value: what a remote reward is sent.
    pub fn value(&self) -> &Value {
        &self.0
    }

    /// Its text: what a rule compares with.
    ///
    /// # Errors
    /// A list or an object has none.
    pub fn text(&self) -> Result<Cow<'_, str>, String> {
        match &self.0 {
            Value::String(text) => Ok(text.as_str().into()),
            Value::Number(_) | Value::Bool(_) => Ok(self.0.to_string().into()),
            Value::Null | Value::Array(_) | Value::Object(_) => Err(format!(
                "is {}, want a string, a number, true or false",
                describe(&self.0)
            )),
        }
    }

    /// For people: its text, and the JSON of what has none.
    pub fn shown(&self) -> String {
        self.text()
            .map_or_else(|_| self.0.to_string(), |text| text.into_owned())
    }
}

impl From<&str> for Label {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

/// A number in `value` that is not certainly the one that was written: beyond 64 bits a whole number has been read as the
/// nearest float, which no answer equals.
fn rounded(value: &Value) -> Option<&Number> {
    let is_rounded = |number: f64| number.fract() == 0.0 && number.abs() >= (1u64 << f64::MANTISSA_DIGITS) as f64;
    match value {
        Value::Number(number) => {
            Some(number).filter(|number| number.is_f64() && number.as_f64().is_some_and(is_rounded))
        }
        Value::Array(items) => items.iter().find_map(rounded),
        Value::Object(fields) => fields.values().find_map(rounded),
        Value::Null | Value::Bool(_) | Value::String(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_label_is_sent_as_the_row_has_it_and_compared_as_text() {
        for (value, text) in [
            (json!("42"), Some("42")),
            (json!(42), Some("42")),
            (json!(-0.0), Some("-0.0")),
            (json!(true), Some("true")),
            (json!(["a", 1]), None),
            (json!({"tests": [1.5]}), None),
        ] {
            let label = Label::of(value.clone()).unwrap().unwrap();
            assert_eq!(label.text().ok().as_deref(), text, "{value}");
            assert_eq!(serde_json::to_value(&label).unwrap(), value);
            assert_eq!(label.value(), &value);
        }
        assert_eq!(Label::of(Value::Null), Ok(None));
    }

    #[test]
    fn a_list_is_shown_as_json_and_has_no_text_to_compare_with() {
        let label = Label::of(json!([1, "b"])).unwrap().unwrap();
        assert_eq!(label.shown(), r#"[1,"b"]"#);
        let refused = label.text().unwrap_err();
        assert!(refused.contains("is the list [1,\"b\"], want a string"), "{refused}");
    }

    #[test]
    fn a_number_that_was_rounded_is_refused_inside_a_list_too() {
        let large: Value = serde_json::from_str("[[123456789012345678901234567890]]").unwrap();
        let refused = Label::of(large).unwrap_err();
        assert!(
            refused.starts_with("has the number 1.2345678901234568e+29, which is too large"),
            "{refused}"
        );
    }
}
