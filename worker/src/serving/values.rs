//! How fields are read: those that hold any JSON, such as messages, with a limit on their size, since a parsed value can take a hundred
//! bytes where its text takes two; and whole numbers, however they are written.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::data::describe;

/// The error for a field that may have several forms.
pub fn wrong<E: serde::de::Error>(field: &str, value: &Value, wanted: &str) -> E {
    E::custom(format!("{field} is {}, want {wanted}", describe(value)))
}

/// Values that one field may have, those inside others included: a conversation has three or four a message.
pub const MOST_VALUES: usize = 1 << 17;

/// A field of at most [`MOST_VALUES`]; None for null.
///
/// # Errors
/// When it has more.
pub fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    let left = Cell::new(MOST_VALUES);
    let value = Counted(&left).deserialize(deserializer)?;
    Ok(Some(value).filter(|value| !value.is_null()))
}

/// The field `messages`, as [`bounded`].
///
/// # Errors
/// When it has more values, or is no list.
pub fn messages<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Value>>, D::Error> {
    match bounded(deserializer)? {
        None => Ok(None),
        Some(Value::Array(messages)) => Ok(Some(messages)),
        Some(other) => Err(wrong("messages", &other, "a list of messages")),
    }
}

/// A field that is read from a whole number; None for null. 2.0 is one too, as for vLLM (pydantic's lax mode): clients in languages
/// with one kind of number write that. A text is none.
///
/// # Errors
/// Those of `T`, for what was sent.
pub fn whole<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    deserializer.deserialize_any(Whole(PhantomData))
}

/// Gives `T` what was sent, but an integer for a float without a fraction.
struct Whole<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Whole<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_unit<E: Error>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Option<T>, E> {
        T::deserialize(number.into_deserializer()).map(Some)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Option<T>, E> {
        T::deserialize(number.into_deserializer()).map(Some)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Option<T>, E> {
        // Beyond these a float says no more which integer it is.
        const EXACT: f64 = (1u64 << f64::MANTISSA_DIGITS) as f64;
        match number {
            _ if number.fract() != 0.0 || number.abs() > EXACT => T::deserialize(number.into_deserializer()).map(Some),
            0.0.. => self.visit_u64(number as u64),
            _ => self.visit_i64(number as i64),
        }
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Option<T>, E> {
        T::deserialize(flag.into_deserializer()).map(Some)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Option<T>, E> {
        T::deserialize(text.into_deserializer()).map(Some)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Option<T>, A::Error> {
        T::deserialize(SeqAccessDeserializer::new(list)).map(Some)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Option<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields)).map(Some)
    }
}

/// The value that `text` is in JSON; each of its parts takes one of `left`.
///
/// # Errors
/// When it is no JSON, or has more parts.
pub fn counted(text: &str, left: &Cell<usize>) -> serde_json::Result<Value> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Counted(left).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Reads a value while there is room for one more.
#[derive(Clone, Copy)]
struct Counted<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for Counted<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let left = self.0.get().checked_sub(1).ok_or_else(|| {
            let words = format!(
                "messages, tools, documents, chat_template_kwargs and labels hold at most {MOST_VALUES} values each: send less"
            );
            D::Error::custom(words)
        })?;
        self.0.set(left);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counted<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(flag.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            all.push(value);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            all.insert(name, fields.next_value_seed(self)?);
        }
        Ok(Value::Object(all))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Fields {
        #[serde(deserialize_with = "messages")]
        messages: Option<Vec<Value>>,
        #[serde(deserialize_with = "bounded")]
        other: Option<Value>,
    }

    fn read(json: &str) -> Result<Fields, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn a_field_is_read_as_it_was_sent() {
        let value = json!({"a": [null, true, 1, -1, 0.5, "x", {"b": {}}], "c": "y"});
        let fields = read(&json!({"messages": [value], "other": value}).to_string()).unwrap();
        assert_eq!(fields.messages, Some(vec![value.clone()]));
        assert_eq!(fields.other, Some(value));
        let fields = read(r#"{"messages": null, "other": null}"#).unwrap();
        assert_eq!((fields.messages, fields.other), (None, None));
        assert_eq!(read("{}").unwrap().messages, None);
    }

    #[test]
    fn what_is_no_list_of_messages_is_refused_by_name() {
        let error = read(r#"{"messages": {"role": "user"}}"#).unwrap_err();
        assert!(error.contains("messages is the object"), "{error}");
    }

    #[test]
    fn texts_of_json_count_together() {
        let left = Cell::new(5);
        assert_eq!(counted(r#"{"a": [1]}"#, &left).unwrap(), json!({"a": [1]}));
        assert_eq!(left.get(), 2);
        assert!(counted("1 2", &left).is_err(), "one value and no more");
        assert!(counted("[0, 0]", &left).unwrap_err().to_string().contains("at most"));
    }

    #[test]
    fn a_field_of_too_many_values_is_refused_wherever_they_are() {
        let list = |count: usize| format!("{}0", "0,".repeat(count - 1));
        // The list itself is one.
        assert!(read(&format!(r#"{{"other": [{}]}}"#, list(MOST_VALUES - 1))).is_ok());
        for json in [
            format!(r#"{{"other": [{}]}}"#, list(MOST_VALUES)),
            format!(r#"{{"other": {{"a": [{}]}}}}"#, list(MOST_VALUES - 1)),
            format!(r#"{{"messages": [[{}]]}}"#, list(MOST_VALUES - 1)),
        ] {
            let error = read(&json).unwrap_err();
            assert!(error.contains("hold at most 131072 values each"), "{error}");
        }
    }
}
