//! Python's `json.dumps`: its spaces, its escapes. Chat templates were trained on exactly this text.

use serde_json::{Number, Value};

/// The options of `json.dumps` that transformers passes through.
#[derive(Clone, Debug, Default)]
pub(super) struct Style {
    /// Write everything outside ASCII as \u escapes.
    pub ensure_ascii: bool,
    /// Spaces per level; none writes one line.
    pub indent: Option<usize>,
    /// Between items, and between key and value. Default `", "` (`","` with an indent) and `": "`.
    pub separators: Option<[String; 2]>,
    /// Keys in order of their text instead of their insertion.
    pub sort_keys: bool,
}

/// `value` as `json.dumps` writes it.
pub(super) fn dumps(value: &Value, style: &Style) -> String {
    let item = if style.indent.is_some() { "," } else { ", " };
    let [item, key] = style
        .separators
        .clone()
        .unwrap_or_else(|| [item.to_owned(), ": ".to_owned()]);
    let mut text = String::new();
    Writer { style, item, key }.value(value, 0, &mut text);
    text
}

struct Writer<'a> {
    style: &'a Style,
    item: String,
    key: String,
}

impl Writer<'_> {
    fn value(&self, value: &Value, depth: usize, text: &mut String) {
        match value {
            Value::String(string) => self.string(string, text),
            Value::Array(items) => self.items(['[', ']'], items.iter(), depth, text, |item, text| {
                self.value(item, depth + 1, text);
            }),
            Value::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                if self.style.sort_keys {
                    fields.sort_by_key(|(name, _)| *name);
                }
                self.items(['{', '}'], fields.into_iter(), depth, text, |(name, value), text| {
                    self.string(name, text);
                    text.push_str(&self.key);
                    self.value(value, depth + 1, text);
                });
            }
            Value::Number(number) => text.push_str(&python_number(number)),
            Value::Null | Value::Bool(_) => text.push_str(&value.to_string()),
        }
    }

    fn items<T>(
        &self,
        brackets: [char; 2],
        items: impl ExactSizeIterator<Item = T>,
        depth: usize,
        text: &mut String,
        write: impl Fn(T, &mut String),
    ) {
        let empty = items.len() == 0;
        text.push(brackets[0]);
        for (index, item) in items.enumerate() {
            if index > 0 {
                text.push_str(&self.item);
            }
            self.new_line(depth + 1, text);
            write(item, text);
        }
        if !empty {
            self.new_line(depth, text);
        }
        text.push(brackets[1]);
    }

    fn new_line(&self, depth: usize, text: &mut String) {
        if let Some(indent) = self.style.indent {
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn string(&self, string: &str, text: &mut String) {
        text.push('"');
        for character in string.chars() {
            match character {
                '"' => text.push_str("\\\""),
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '\u{8}' => text.push_str("\\b"),
                '\u{c}' => text.push_str("\\f"),
                // With ensure_ascii Python escapes DEL too; without it only control characters.
                plain if plain >= ' ' && (!self.style.ensure_ascii || plain <= '~') => text.push(plain),
                other => {
                    for unit in other.encode_utf16(&mut [0; 2]) {
                        text.push_str(&format!("\\u{unit:04x}"));
                    }
                }
            }
        }
        text.push('"');
    }
}

/// A number as Python's `repr` writes it. Its floats have an exponent where Rust's have one (from 1e16 on, and below 1e-4), but with a sign and
/// at least two digits: 1e-05 and 1e+16.
fn python_number(number: &Number) -> String {
    let Some(float) = number.as_f64().filter(|_| number.is_f64()) else {
        return number.to_string();
    };
    let text = format!("{float:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let below = exponent.strip_prefix('-');
            let sign = if below.is_some() { '-' } else { '+' };
            format!("{digits}e{sign}{:0>2}", below.unwrap_or(exponent))
        }
    }
}
