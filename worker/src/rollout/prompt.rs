//! The field `prompt`: a text, texts, token ids, or lists of them.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Unexpected, Visitor};

use super::protocol::WholeNumber;
use crate::serving::limits::MOST_PROMPTS;

/// Prompts as they were sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// One text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// One prompt in token ids.
    Ids(Vec<u32>),
    /// Several prompts in token ids.
    IdLists(Vec<Vec<u32>>),
}

impl Prompt {
    /// How many prompts.
    pub fn count(&self) -> usize {
        match self {
            Self::Text(_) | Self::Ids(_) => 1,
            Self::Texts(texts) => texts.len(),
            Self::IdLists(lists) => lists.len(),
        }
    }
}

/// One element of the list.
enum Element {
    Text(String),
    Id(u32),
    Ids(Vec<u32>),
}

const WANTED: &str = "a text, a list of texts, a list of token ids, or a list of lists of token ids";

// By hand and not `#[serde(untagged)]`, which keeps a copy of everything many times as large as the text.
impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;
        impl<'de> Visitor<'de> for Whole {
            type Value = Prompt;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str(WANTED)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Prompt, E> {
                Ok(Prompt::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompt, A::Error> {
                let Some(first) = list.next_element()? else {
                    return Err(de::Error::custom("the prompt is empty"));
                };
                match first {
                    Element::Text(first) => rest(first, list, MOST_PROMPTS).map(Prompt::Texts),
                    Element::Id(first) => ids(first, list).map(Prompt::Ids),
                    Element::Ids(first) => {
                        let first: Vec<_> = first.into_iter().map(WholeNumber).collect();
                        let lists = rest(first, list, MOST_PROMPTS)?;
                        Ok(Prompt::IdLists(lists.into_iter().map(numbers).collect()))
                    }
                }
            }
        }
        deserializer.deserialize_any(Whole)
    }
}

/// The list, which has `most` elements at most: a short text of many lists takes many times its memory.
fn rest<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(first: T, mut list: A, most: usize) -> Result<Vec<T>, A::Error> {
    let mut all = vec![first];
    while let Some(next) = list.next_element()? {
        if all.len() == most {
            return Err(de::Error::custom(format!("more than {most} prompts in one request")));
        }
        all.push(next);
    }
    Ok(all)
}

/// A list of token ids.
fn ids<'de, A: SeqAccess<'de>>(first: u32, list: A) -> Result<Vec<u32>, A::Error> {
    rest(WholeNumber(first), list, usize::MAX).map(numbers)
}

fn numbers(ids: Vec<WholeNumber<u32>>) -> Vec<u32> {
    ids.into_iter().map(|WholeNumber(id)| id).collect()
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct One;
        impl<'de> Visitor<'de> for One {
            type Value = Element;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str(WANTED)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Text(text.to_owned()))
            }

            fn visit_u64<E: de::Error>(self, id: u64) -> Result<Element, E> {
                let id = u32::try_from(id).map_err(|_| E::custom(format!("{id} is no token id")))?;
                Ok(Element::Id(id))
            }

            // Others in the list are read so by their kind.
            fn visit_f64<E: de::Error>(self, id: f64) -> Result<Element, E> {
                match id.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&id) {
                    true => Ok(Element::Id(id as u32)),
                    false => Err(E::invalid_type(Unexpected::Float(id), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Element, A::Error> {
                let Some(WholeNumber(first)) = list.next_element()? else {
                    return Ok(Element::Ids(Vec::new()));
                };
                ids(first, list).map(Element::Ids)
            }
        }
        deserializer.deserialize_any(One)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(json: &str) -> Result<Prompt, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn each_form_is_read_as_what_it_is() {
        assert_eq!(parsed(r#""hi""#), Ok(Prompt::Text("hi".into())));
        assert_eq!(parsed(r#"["a", "b"]"#), Ok(Prompt::Texts(vec!["a".into(), "b".into()])));
        assert_eq!(parsed("[1, 2]"), Ok(Prompt::Ids(vec![1, 2])));
        assert_eq!(parsed("[[1, 2], [3]]"), Ok(Prompt::IdLists(vec![vec![1, 2], vec![3]])));
    }

    #[test]
    fn an_id_without_a_fraction_is_whole_however_it_is_written() {
        assert_eq!(parsed("[1.0, 2, 3e0]"), Ok(Prompt::Ids(vec![1, 2, 3])));
        assert_eq!(
            parsed("[[1.0, 2], [3e0]]"),
            Ok(Prompt::IdLists(vec![vec![1, 2], vec![3]]))
        );
    }

    #[test]
    fn what_is_none_of_them_is_an_error_that_says_what_is_wanted() {
        for (json, word) in [
            ("7", "a list of token ids"),
            ("[]", "empty"),
            ("[-1]", "token ids"),
            ("[4294967296]", "no token id"),
            ("[1, \"a\"]", "string"),
            ("[\"a\", 1]", "integer"),
            ("[[1], [\"a\"]]", "string"),
            ("{}", "a list of texts"),
            ("[1.5]", "floating point"),
            ("[1, 1.5]", "floating point"),
            ("[-1.0]", "floating point"),
            ("[4294967296.0]", "floating point"),
        ] {
            let error = parsed(json).unwrap_err();
            assert!(error.contains(word), "{json}: {error}");
        }
    }

    #[test]
    fn no_more_prompts_are_kept_than_a_request_may_have_and_as_many_ids_as_there_are() {
        let list = |element: &str, count: usize| format!("[{}]", vec![element; count].join(","));
        for element in ["[1]", r#""a""#] {
            assert_eq!(parsed(&list(element, 1024)).unwrap().count(), 1024);
            let error = parsed(&list(element, 1025)).unwrap_err();
            assert!(error.starts_with("more than 1024 prompts in one request"), "{error}");
        }
        // What comes after is not even read.
        let broken = list("[1]", 1025) + "]]";
        assert!(parsed(&broken).unwrap_err().starts_with("more than 1024"));
        assert_eq!(parsed(&list("1", 5000)), Ok(Prompt::Ids(vec![1; 5000])));
        assert_eq!(
            parsed(&format!("[{}]", list("1", 5000))),
            Ok(Prompt::IdLists(vec![vec![1; 5000]]))
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in r#"[\[\]{}",0-9a.\-]{0,40}"#) {
            let _ = parsed(&text);
        }
    }
}
