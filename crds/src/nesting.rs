//! YAML that is nested deeper than its reader goes: the reader says so only after a time that grows with the square of the depth.

use serde::Deserialize;
use serde_yaml::{Deserializer, Error, Value};

/// How many more brackets a beginning has than the one before it. So many cost the reader next to nothing, however they are nested.
const MORE: usize = 4096;

/// What the reader says of a text whose brackets are nested deeper than it goes; None where it may read the whole.
///
/// The reader itself is asked, of the text's beginning and then of longer ones, until one is too deep: what is a bracket and what is text, in
/// quotes, a comment or a block, it alone knows. A text that it would read is never refused: no more text makes a beginning less deep.
pub(crate) fn too_deep(text: &str) -> Option<Error> {
    let opening = text.bytes().enumerate().filter(|(_, byte)| matches!(byte, b'[' | b'{'));
    opening
        .skip(MORE - 1)
        .step_by(MORE)
        .find_map(|(at, _)| refused(&text[..=at]))
}

fn refused(beginning: &str) -> Option<Error> {
    let mut documents = Deserializer::from_str(beginning);
    let error = documents.find_map(|document| Value::deserialize(document).err())?;
    // Others are of the end, where the text was cut.
    is_too_deep(&error).then_some(error)
}

/// Whether the reader stopped because of the depth.
pub(crate) fn is_too_deep(error: &Error) -> bool {
    error.to_string().starts_with("recursion limit exceeded")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_that_are_never_closed_are_refused_before_all_of_them_are_read() {
        for open in ["[", "{", "{a: ", "[[1, 2], ", "[\n  "] {
            let text = format!("a: 1\nb:\n  {}", open.repeat(30_000));
            assert!(too_deep(&text).is_some(), "{open}");
        }
        assert!(
            too_deep(&format!("a: {}", "[".repeat(MORE - 1))).is_none(),
            "read as a whole"
        );
    }

    #[test]
    fn brackets_that_are_text_are_no_depth() {
        let many = "[{".repeat(3 * MORE);
        for text in [
            format!("a: '{many}'\n"),
            format!("a: \"{many}\"\n"),
            format!("a: x{many}\n"),
            format!("a: 1 # {many}\n"),
            format!("a: |\n  {many}\nb: >-\n  {many}\n"),
            format!("a: {}\n", "[[1], {b: 2}]\n---\na: ".repeat(MORE)),
        ] {
            assert!(too_deep(&text).is_none(), "{text:.20}");
        }
    }
}
