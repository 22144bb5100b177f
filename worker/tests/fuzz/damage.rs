//! Damage to bytes: what a bad disk, a cut connection or a hostile hand does.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// One change.
#[derive(Clone, Debug)]
pub enum Edit {
    /// One bit is another.
    Flip(Index, u8),
    /// The rest is missing.
    Truncate(Index),
    /// A part is missing.
    Remove(Index, u8),
    /// A part is there many times.
    Repeat(Index, u8, u8),
    /// A length, little-endian, of 1, 2, 4 or 8 bytes.
    Length(Index, usize, u64),
    /// A number in a text is another.
    Number(Index, &'static str),
    /// A word that parsers look at twice.
    Word(Index, &'static str),
}

const LENGTHS: [u64; 10] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 40,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX,
];

const NUMBERS: [&str; 12] = [
    "0",
    "-1",
    "1e308",
    "1e-400",
    "0.5",
    "2147483647",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "18446744073709551615",
    "99999999999999999999999",
    "null",
];

const WORDS: [&str; 14] = [
    "\0",
    "\"",
    "{",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    "}",
    ",",
    ":",
    "\\ud800",
    "\u{feff}",
    "null",
    "{\"a\":",
    "{{ 'a' * 1000000000 }}",
    "{% for i in range(99999) %}",
    "\n",
];

/// One or several changes.
pub fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let place = any::<Index>;
    let edit = prop_oneof![
        3 => (place(), 0u8..8).prop_map(|(at, bit)| Edit::Flip(at, bit)),
        1 => place().prop_map(Edit::Truncate),
        1 => (place(), any::<u8>()).prop_map(|(at, length)| Edit::Remove(at, length)),
        1 => (place(), any::<u8>(), 1u8..40).prop_map(|(at, length, times)| Edit::Repeat(at, length, times)),
        2 => (place(), select(vec![1, 2, 4, 8]), select(LENGTHS.to_vec())).prop_map(|(at, width, length)| Edit::Length(at, width, length)),
        3 => (place(), select(NUMBERS.to_vec())).prop_map(|(at, number)| Edit::Number(at, number)),
        1 => (place(), select(WORDS.to_vec())).prop_map(|(at, word)| Edit::Word(at, word)),
    ];
    vec(edit, 0..5)
}

/// The bytes after all changes.
pub fn apply(bytes: &[u8], edits: &[Edit]) -> Vec<u8> {
    edits.iter().fold(bytes.to_vec(), one)
}

fn one(mut bytes: Vec<u8>, edit: &Edit) -> Vec<u8> {
    if bytes.is_empty() {
        return bytes;
    }
    let length = bytes.len();
    let end = |at: usize, count: u8| (at + usize::from(count)).min(length);
    match edit {
        Edit::Flip(at, bit) => bytes[at.index(length)] ^= 1 << bit,
        Edit::Truncate(at) => bytes.truncate(at.index(length)),
        Edit::Remove(at, count) => {
            let at = at.index(length);
            bytes.drain(at..end(at, *count));
        }
        Edit::Repeat(at, count, times) => {
            let at = at.index(length);
            let part = bytes[at..end(at, *count)].repeat(usize::from(*times));
            bytes.splice(at..at, part);
        }
        Edit::Length(at, width, number) => {
            // Lengths stand at the front more often than elsewhere.
            let at = if at.index(4) == 0 { 0 } else { at.index(length) };
            let until = (at + width).min(length);
            bytes[at..until].copy_from_slice(&number.to_le_bytes()[..until - at]);
        }
        Edit::Number(at, number) => {
            let starts: Vec<usize> = (0..length)
                .filter(|&at| bytes[at].is_ascii_digit() && (at == 0 || !bytes[at - 1].is_ascii_digit()))
                .collect();
            if !starts.is_empty() {
                let from = starts[at.index(starts.len())];
                let digits = bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                bytes.splice(from..from + digits, number.bytes());
            }
        }
        Edit::Word(at, word) => {
            let at = at.index(length);
            bytes.splice(at..at, word.bytes());
        }
    }
    bytes
}
