//! Scores as servers write them: a list with one number for each sample. Their code is Python's, so true is 1, a value head's column
//! (`[[0.5], [1.5]]`) is its numbers, and a number alone is a list of one.

use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A list of numbers, null where there is none; None for null.
///
/// # Errors
/// What is no number.
pub(super) fn numbers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Option<f64>>>, D::Error> {
    let given = Option::<Numbers>::deserialize(deserializer)?;
    Ok(given.map(|Numbers(values)| values))
}

/// See [`numbers`].
struct Numbers(Vec<Option<f64>>);

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Written)
    }
}

struct Written;

impl<'de> Visitor<'de> for Written {
    type Value = Numbers;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a number for each sample")
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Numbers, E> {
        Ok(Numbers(vec![Some(number)]))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Numbers, E> {
        self.visit_f64(number as f64)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Numbers, E> {
        self.visit_f64(number as f64)
    }

    fn visit_bool<E: Error>(self, is_right: bool) -> Result<Numbers, E> {
        self.visit_f64(f64::from(is_right))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut given: A) -> Result<Numbers, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = given.next_element::<Option<Numbers>>()? {
            match value.as_ref().map(|Numbers(one)| one.as_slice()) {
                None => values.push(None),
                Some([one]) => values.push(*one),
                Some(several) => return Err(A::Error::invalid_length(several.len(), &self)),
            }
        }
        Ok(Numbers(values))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::protocol::ScoreResponse;

    fn read(rewards: &serde_json::Value) -> Result<Option<Vec<Option<f64>>>, String> {
        let answer = serde_json::from_str::<ScoreResponse>(&json!({"rewards": rewards}).to_string());
        answer.map(|answer| answer.rewards).map_err(|error| error.to_string())
    }

    #[test]
    fn what_python_writes_for_a_number_is_one() {
        let cases = [
            (json!([1, -2, 0.5]), vec![Some(1.0), Some(-2.0), Some(0.5)]),
            (json!([true, false]), vec![Some(1.0), Some(0.0)]),
            (json!([[0.5], [1.5]]), vec![Some(0.5), Some(1.5)]),
            (json!(0.5), vec![Some(0.5)]),
            (json!([null, 1]), vec![None, Some(1.0)]),
            (json!([]), vec![]),
        ];
        for (given, wanted) in cases {
            assert_eq!(read(&given), Ok(Some(wanted)), "{given}");
        }
        assert_eq!(read(&json!(null)), Ok(None));
    }

    #[test]
    fn what_is_no_number_is_an_error_that_names_it() {
        let cases = [
            (json!(["0.5"]), "string \"0.5\""),
            (json!([{"score": 1}]), "map"),
            (json!([[0.5, 1.5]]), "length 2"),
            (json!([[]]), "length 0"),
        ];
        for (given, words) in cases {
            let error = read(&given).unwrap_err();
            assert!(
                error.contains(words) && error.contains("expected a number for each sample"),
                "{error}"
            );
        }
    }
}
