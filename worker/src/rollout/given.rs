//! Fields that this server knows and does not support. Their values are skipped while they are read: parsed, they would take many
//! times the memory of their text.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What such a field asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Given {
    /// Nothing: it is absent, null, false or empty.
    #[default]
    Nothing,
    /// `auto`, as a choice of tools is made where there are none.
    AnyChoice,
    /// `none`: no tool may be chosen.
    NoChoice,
    /// Something.
    Something,
}

impl Given {
    fn something(is_given: bool) -> Self {
        match is_given {
            true => Self::Something,
            false => Self::Nothing,
        }
    }
}

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Given;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("anything")
            }

            fn visit_unit<E>(self) -> Result<Given, E> {
                Ok(Given::Nothing)
            }

            fn visit_bool<E>(self, flag: bool) -> Result<Given, E> {
                Ok(Given::something(flag))
            }

            fn visit_u64<E>(self, _: u64) -> Result<Given, E> {
                Ok(Given::Something)
            }

            fn visit_i64<E>(self, _: i64) -> Result<Given, E> {
                Ok(Given::Something)
            }

            fn visit_f64<E>(self, _: f64) -> Result<Given, E> {
                Ok(Given::Something)
            }

            fn visit_str<E>(self, text: &str) -> Result<Given, E> {
                Ok(match text {
                    "auto" => Given::AnyChoice,
                    "none" => Given::NoChoice,
                    text => Given::something(!text.is_empty()),
                })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Given, A::Error> {
                let mut given = Given::Nothing;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    given = Given::Something;
                }
                Ok(given)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Given, A::Error> {
                let mut given = Given::Nothing;
                while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    given = Given::Something;
                }
                Ok(given)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_false_and_what_is_empty_ask_for_nothing_and_all_else_for_something() {
        for (json, expected) in [
            ("null", Given::Nothing),
            ("false", Given::Nothing),
            (r#""""#, Given::Nothing),
            ("[ ]", Given::Nothing),
            ("{}", Given::Nothing),
            (r#""auto""#, Given::AnyChoice),
            (r#""none""#, Given::NoChoice),
            ("true", Given::Something),
            ("0", Given::Something),
            ("-1", Given::Something),
            ("0.5", Given::Something),
            (r#""a""#, Given::Something),
            ("[null, [1]]", Given::Something),
            (r#"{"a": {"b": []}, "c": 1}"#, Given::Something),
        ] {
            assert_eq!(serde_json::from_str::<Given>(json).unwrap(), expected, "{json}");
        }
        assert!(serde_json::from_str::<Given>("[1, }").is_err());
    }
}
