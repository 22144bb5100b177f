//! Finds the line of a field: the document is read along the field's path, and at its end an error is raised whose place the parser knows.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::field::Step;

/// The line of a field in document `index` of a text, from 1; of the deepest block around it where it is not there.
pub(super) fn line(text: &str, index: usize, path: &[Step]) -> Option<usize> {
    (0..=path.len()).rev().find_map(|length| {
        let document = serde_yaml::Deserializer::from_str(text).nth(index)?;
        let error = Walk(&path[..length]).deserialize(document).err()?;
        error.location().map(|location| location.line())
    })
}

/// Reads along the rest of a path, and fails where it ends.
struct Walk<'a>(&'a [Step]);

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.0 {
            [] => Err(D::Error::custom("here")),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the rest of a path")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (Some(Step::Field(wanted)), rest) = (self.0.first(), &self.0[1..]) else {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(());
        };
        // The last step ends at the name: its block may begin a line below.
        while let Some(found) = map.next_key_seed(Name {
            wanted,
            is_last: rest.is_empty(),
        })? {
            match found {
                true => map.next_value_seed(Walk(rest))?,
                false => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let wanted = match self.0.first() {
            Some(Step::Item(wanted)) => *wanted,
            _ => usize::MAX,
        };
        for index in 0.. {
            let more = match index == wanted {
                true => items.next_element_seed(Walk(&self.0[1..]))?.is_some(),
                false => items.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                break;
            }
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// Whether a name is the wanted one.
struct Name<'a> {
    wanted: &'a str,
    is_last: bool,
}

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<bool, E> {
        match name == self.wanted {
            true if self.is_last => Err(E::custom("here")),
            found => Ok(found),
        }
    }
}
