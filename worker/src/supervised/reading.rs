//! What is wrong with a training file, in the words of a PpoJob's reader: serde's own name the types of this program.

use ppo_crds::manifest::{did_you_mean, whole_number};
use serde::de::DeserializeOwned;
use serde_yaml::{Error, Value};

/// How serde's complaints begin.
const UNKNOWN: &str = "unknown field ";
const MISSING: &str = "missing field ";
const WORD: &str = "unknown variant ";
const KIND: &str = "invalid type: ";
const VALUE: &str = "invalid value: ";

/// Reads a file's text.
///
/// # Errors
/// What cannot be read first, with line and field, and what would fit.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    match serde_yaml::from_str(text) {
        Err(error) if is_of_a_point(&error) => match with_whole_numbers(text) {
            // What is wrong besides; a number that is not whole has its line in the first error only.
            Err(other) if !is_of_a_point(&other) => Err(in_words(&other)),
            Err(_) => Err(in_words(&error)),
            Ok(read) => Ok(read),
        },
        read => read.map_err(|error| in_words(&error)),
    }
}

fn in_words(error: &Error) -> String {
    let message = error.to_string();
    match (explained(&message), error.location()) {
        (Some(words), Some(place)) => format!("line {}: {words}", place.line()),
        (Some(words), None) => words,
        // No YAML at all: the parser says what and where.
        (None, _) => message,
    }
}

/// Whether a number with a point or an exponent was met where none may be.
fn is_of_a_point(error: &Error) -> bool {
    error.to_string().contains("invalid type: floating point")
}

/// Reads a text in which whole numbers may have a point or an exponent, as in `steps: 1e3`. It goes by way of values, which know no lines.
fn with_whole_numbers<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    let mut value = serde_yaml::from_str(text)?;
    make_whole(&mut value);
    serde_yaml::from_value(value)
}

fn make_whole(value: &mut Value) {
    match value {
        Value::Mapping(fields) => fields.values_mut().for_each(make_whole),
        Value::Sequence(items) => items.iter_mut().for_each(make_whole),
        Value::Number(number) => {
            if let Some(whole) = whole_number(number) {
                *number = whole;
            }
        }
        _ => {}
    }
}

/// `<field>: <complaint> at line 1 column 2` in other words. None: it is another one.
fn explained(message: &str) -> Option<String> {
    let message = message.rsplit_once(" at line ").map_or(message, |(message, _)| message);
    let starts = [UNKNOWN, MISSING, WORD, KIND, VALUE];
    let found = starts.iter().filter_map(|start| Some((message.find(*start)?, *start)));
    let (at, start) = found.min()?;
    let (field, complaint) = (message[..at].trim_end_matches(": "), &message[at + start.len()..]);
    match start {
        UNKNOWN => unknown(field, complaint),
        MISSING => {
            let name = quoted(complaint).into_iter().next()?;
            Some(format!("{}: missing; it has no default", within(field, name)))
        }
        WORD => word(field, complaint),
        _ => kind(field, complaint),
    }
}

fn unknown(block: &str, complaint: &str) -> Option<String> {
    let names = quoted(complaint);
    let (&name, known) = names.split_first()?;
    Some(format!(
        "{}: unknown field; known here: {}{}",
        within(block, name),
        known.join(", "),
        did_you_mean(name, known)
    ))
}

fn word(field: &str, complaint: &str) -> Option<String> {
    let words = quoted(complaint);
    let (&word, known) = words.split_first()?;
    let given = match word.is_empty() {
        true => "nothing",
        false => word,
    };
    Some(format!(
        "{field}: {given} is not one of {}{}",
        known.join(", "),
        did_you_mean(word, known)
    ))
}

fn kind(field: &str, complaint: &str) -> Option<String> {
    let (found, expected) = complaint.rsplit_once(", expected ")?;
    let words = format!("{} is given where {} is needed", given(found), needed(expected)?);
    Some(match field {
        "" => words,
        _ => format!("{field}: {words}"),
    })
}

/// What serde found.
fn given(found: &str) -> &str {
    match found {
        "map" => "a block of fields",
        "sequence" => "a list",
        "unit value" => "nothing",
        _ => match found.strip_prefix("string ") {
            Some(text) => text,
            None => found.split('`').nth(1).unwrap_or(found),
        },
    }
}

/// What serde calls by the name of a type.
fn needed(expected: &str) -> Option<&'static str> {
    Some(match expected {
        "u32" | "u64" | "usize" => "a whole number, 0 or more,",
        "f64" => "a number",
        "a boolean" => "true or false",
        "a string" | "path string" => "a text",
        "struct StartModel" => "a block with path, hub or config, such as {path: FOLDER},",
        "struct HubModel" => "a block with id, such as {id: owner/name},",
        "struct SftData" | "struct PreferenceData" | "struct Evaluation" => "a block with path, such as {path: FILE},",
        _ if expected.starts_with("struct ") => "a block of fields",
        _ => return None,
    })
}

/// The names in backticks.
fn quoted(complaint: &str) -> Vec<&str> {
    complaint.split('`').skip(1).step_by(2).collect()
}

fn within(block: &str, name: &str) -> String {
    match block {
        "" => name.to_owned(),
        _ => format!("{block}.{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::SftConfig;
    use super::*;

    #[test]
    fn what_cannot_be_read_is_told_by_line_and_field_and_without_the_names_of_types() {
        for (text, words) in [
            (
                "data: {path: d}\nmodel: /m",
                "line 2: model: \"/m\" is given where a block with path, hub or config, such as {path: FOLDER}, is needed",
            ),
            (
                "model: {hub: a/b}",
                "line 1: model.hub: \"a/b\" is given where a block with id, such as {id: owner/name}, is needed",
            ),
            (
                "data: d",
                "line 1: data: \"d\" is given where a block with path, such as {path: FILE}, is needed",
            ),
            (
                "steps: -1",
                "line 1: steps: -1 is given where a whole number, 0 or more, is needed",
            ),
            (
                "steps: 1.5",
                "line 1: steps: 1.5 is given where a whole number, 0 or more, is needed",
            ),
            (
                "data: {chatTemplate: 3}",
                "line 1: data.chatTemplate: 3 is given where true or false is needed",
            ),
            (
                "data: {path: [d]}",
                "line 1: data.path: a list is given where a text is needed",
            ),
            (
                "model: {dtype: float23}",
                "line 1: model.dtype: float23 is not one of float32, bfloat16 (did you mean float32?)",
            ),
            ("data: {}", "line 1: data.path: missing; it has no default"),
            ("- 1", "a list is given where a block of fields is needed"),
        ] {
            let said = read::<SftConfig>(text).unwrap_err();
            assert!(said.ends_with(words), "{said}");
        }
    }

    #[test]
    fn for_a_field_that_is_unknown_the_nearest_known_one_is_named() {
        for (text, field, asked) in [
            (
                "lerningRate: 1",
                "lerningRate: unknown field;",
                " (did you mean learningRate?)",
            ),
            (
                "data: {promptFeild: x}",
                "line 1: data.promptFeild: unknown field; known here: path, promptField, ",
                " (did you mean promptField?)",
            ),
        ] {
            let words = read::<SftConfig>(text).unwrap_err();
            assert!(words.contains(field) && words.ends_with(asked), "{words}");
        }
    }

    #[test]
    fn whole_numbers_may_have_a_point_or_an_exponent() {
        let read = |steps: &str| {
            let text = format!("model: {{path: m}}\ndata: {{path: d}}\noutput: o\nsteps: {steps}\nlearningRate: 1.0\n");
            read::<SftConfig>(&text)
        };
        for steps in ["1000", "1e3", "1000.0"] {
            let config = read(steps).unwrap();
            assert_eq!((config.steps, config.learning_rate), (1000, 1.0), "{steps}");
        }
        let refused = read("1e3\nseeed: 1").unwrap_err();
        assert!(refused.starts_with("seeed: unknown field;"), "{refused}");
    }

    #[test]
    fn of_a_text_that_is_no_yaml_the_parsers_words_stay() {
        assert!(read::<SftConfig>("model: {").unwrap_err().contains(" at line "));
    }
}
