//! Lists of a request, one entry for each sample. No more are read than one request may have: an entry takes many times the bytes
//! that its text has.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::data::{Label, describe};
use crate::serving::values::bounded;

/// Samples that a request may have.
pub(super) const MOST_SAMPLES: usize = 4096;

/// A list of at most [`MOST_SAMPLES`].
///
/// # Errors
/// When it has more.
pub(super) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_seq(List(PhantomData))
}

/// As [`list`]; None for null.
///
/// # Errors
/// As [`list`].
pub(super) fn list_or_null<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    let given = Option::<Listed<T>>::deserialize(deserializer)?;
    Ok(given.map(|Listed(values)| values))
}

/// Labels; null is none, for one sample and for all. They may have lists of their own, which count too.
///
/// # Errors
/// What is no list, and a label that is none; when there are too many values.
pub(super) fn labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Option<Label>>>, D::Error> {
    let values = match bounded(deserializer)? {
        None => return Ok(None),
        Some(Value::Array(values)) => values,
        Some(other) => return Err(D::Error::custom(format!("labels is {}, want a list", describe(&other)))),
    };
    let label = |(index, value): (usize, Value)| {
        Label::of(value).map_err(|wrong| D::Error::custom(format!("labels[{index}] {wrong}")))
    };
    values
        .into_iter()
        .enumerate()
        .map(label)
        .collect::<Result<_, _>>()
        .map(Some)
}

/// Messages of each prompt; None where it has none.
type Chats = Vec<Option<Vec<Value>>>;

/// Messages of each prompt; null where it has none, and for all.
///
/// # Errors
/// What is none; when there are too many values.
pub(super) fn chats<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Chats>, D::Error> {
    let wrong = |what: &Value| D::Error::custom(format!("messages has {}, want a list for each query", describe(what)));
    let chats = match bounded(deserializer)? {
        None => return Ok(None),
        Some(Value::Array(chats)) => chats,
        Some(other) => return Err(wrong(&other)),
    };
    let chat = |value: Value| match value {
        Value::Null => Ok(None),
        Value::Array(messages) => Ok(Some(messages)),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => Err(wrong(&value)),
    };
    chats.into_iter().map(chat).collect::<Result<_, _>>().map(Some)
}

/// See [`list`].
#[derive(Deserialize)]
#[serde(transparent, bound = "T: Deserialize<'de>")]
struct Listed<T>(#[serde(deserialize_with = "list")] Vec<T>);

struct List<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut given: A) -> Result<Vec<T>, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = given.next_element()? {
            if values.len() == MOST_SAMPLES {
                let words = format!("at most {MOST_SAMPLES} samples in one request: send fewer at once");
                return Err(A::Error::custom(words));
            }
            values.push(value);
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::protocol::ScoreRequest;
    use super::*;

    fn read(json: Value) -> Result<ScoreRequest, String> {
        serde_json::from_str(&json.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn labels_are_taken_as_those_of_a_data_file() {
        let labels = json!(["a", 42, 0.5, true, null, [1, {"b": 2}]]);
        let request = read(json!({"query": [], "labels": labels})).unwrap();
        assert_eq!(serde_json::to_value(request.labels).unwrap(), labels, "value for value");
        assert_eq!(read(json!({"query": [], "labels": null})).unwrap().labels, None);
        let error = read(json!({"query": [], "labels": {"a": 1}})).unwrap_err();
        assert!(error.contains("labels is the object"), "{error}");
        let large = r#"{"query": [], "labels": [123456789012345678901234567890]}"#;
        let error = serde_json::from_str::<ScoreRequest>(large).unwrap_err().to_string();
        assert!(
            error.contains("labels[0] is the number") && error.contains("too large"),
            "{error}"
        );
    }

    #[test]
    fn no_more_entries_are_read_than_a_request_may_have() {
        let many = |count: usize| json!(vec!["x"; count]);
        let most = read(json!({"query": many(MOST_SAMPLES), "prompts": many(MOST_SAMPLES)})).unwrap();
        assert_eq!(most.query.len(), MOST_SAMPLES);
        let (fits, more) = (many(1), many(MOST_SAMPLES + 1));
        for request in [json!({"query": more}), json!({"query": fits, "prompts": more})] {
            let error = read(request).unwrap_err();
            assert!(error.contains("at most 4096 samples in one request"), "{error}");
        }
        let nested = json!({"query": ["x"], "labels": [vec![0; crate::serving::values::MOST_VALUES]]});
        let error = read(nested).unwrap_err();
        assert!(error.contains("hold at most 131072 values each"), "{error}");
    }

    #[test]
    fn messages_are_a_list_for_each_prompt_or_null() {
        let policy = |messages: Value| {
            let policy = json!({"tokenizer": "t", "prompt_ids": [[1], [2]], "response_ids": [[1], [2]],
                                "visible_prompts": ["", ""], "visible_responses": ["", ""], "messages": messages});
            read(json!({"query": ["", ""], "policy": policy})).map(|request| request.policy.unwrap().messages)
        };
        let message = json!({"role": "user", "content": "a"});
        let read = policy(json!([[message], null])).unwrap();
        assert_eq!(read, Some(vec![Some(vec![message]), None]));
        assert_eq!(policy(json!(null)).unwrap(), None);
        let error = policy(json!([[], "a"])).unwrap_err();
        assert!(error.contains("messages has the string \"a\", want a list"), "{error}");
    }
}
