//! What was most likely meant by a name that is not known where it stands.

use std::cmp::Reverse;

use serde_json::Value as Schema;
use serde_yaml::Value;
use strsim::levenshtein;

/// From this length on two letters may differ: of a shorter word little else would be left.
const LONG: usize = 5;

/// Places that are named at most.
const MOST: usize = 3;

/// The nearest of the names that are known.
pub(super) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let name = name.to_lowercase();
    let nearest = known
        .iter()
        .map(|candidate| (levenshtein(&name, &candidate.to_lowercase()), *candidate))
        .min();
    match nearest? {
        (0 | 1, candidate) => Some(candidate),
        (2, candidate) if name.len() >= LONG || letters(&name) == letters(&candidate.to_lowercase()) => Some(candidate),
        _ => None,
    }
}

/// The nearest of the names that are known, in words; nothing where none is near.
pub fn did_you_mean(name: &str, known: &[&str]) -> String {
    nearest(name, known).map(asked).unwrap_or_default()
}

/// The names that are known of which this is the beginning: of a clip's `policyLow` and `policyHigh` some write `policy`.
pub(super) fn beginning_with<'a>(name: &str, known: &[&'a str]) -> Vec<&'a str> {
    let name = name.to_lowercase();
    let begins = |candidate: &&&str| name.len() >= 4 && candidate.to_lowercase().starts_with(&name);
    known.iter().filter(begins).copied().take(MOST).collect()
}

/// Where else in the spec there is such a field that may hold `value`: a field of this name, else one whose name ends so, else
/// one whose block's name and its own make it up. The places nearest to `block` come first.
pub(super) fn elsewhere(name: &str, value: &Value, block: &str) -> Vec<String> {
    let wanted = name.replace(['_', '-'], "").to_lowercase();
    let mut places = Vec::new();
    collect(crate::spec_schema(), "spec", value, &mut places);
    let mut ranked: Vec<(Match, String)> = places
        .into_iter()
        .filter_map(|place| Some((matched(&wanted, &place)?, place)))
        .collect();
    let best = ranked.iter().map(|(kind, _)| *kind).min();
    ranked.retain(|(kind, _)| Some(*kind) == best);
    let mut places: Vec<String> = ranked.into_iter().map(|(_, place)| place).collect();
    places.sort_by_key(|place| (Reverse(shared(place, block)), place.matches('.').count()));
    places.truncate(MOST);
    places
}

/// Asks whether one of these was meant; nothing where there are none.
pub(super) fn one_of(places: &[String]) -> String {
    match places {
        [] => String::new(),
        [only] => asked(only),
        [first @ .., last] => asked(&format!("{} or {last}", first.join(", "))),
    }
}

fn asked(candidate: &str) -> String {
    format!(" (did you mean {candidate}?)")
}

/// How a place has to do with a name, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    Name,
    End,
    BlockAndName,
}

/// All fields below a schema that may hold a value of this kind.
fn collect(schema: &Schema, path: &str, value: &Value, found: &mut Vec<String>) {
    let properties = schema.get("properties").and_then(Schema::as_object);
    for (name, field) in properties.into_iter().flatten() {
        let path = format!("{path}.{name}");
        collect(field, &path, value, found);
        if may_hold(field, value) {
            found.push(path);
        }
    }
    if let Some(items) = schema.get("items") {
        collect(items, &format!("{path}[]"), value, found);
    }
}

fn may_hold(schema: &Schema, value: &Value) -> bool {
    let kind = schema.get("type").and_then(Schema::as_str).unwrap_or_default();
    match value {
        Value::Mapping(_) => kind == "object",
        Value::Sequence(_) => kind == "array",
        // Of a model many write the name alone, where its block belongs.
        Value::String(_) => kind != "array",
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Tagged(_) => kind != "array" && kind != "object",
    }
}

fn matched(wanted: &str, place: &str) -> Option<Match> {
    let place = place.to_lowercase();
    let (block, name) = place.rsplit_once('.')?;
    let block = block.rsplit('.').next().unwrap_or(block);
    if name == wanted {
        Some(Match::Name)
    } else if wanted.len() >= LONG && name.ends_with(wanted) {
        Some(Match::End)
    } else {
        (wanted.strip_prefix(block) == Some(name)).then_some(Match::BlockAndName)
    }
}

/// Blocks that two paths have in common from the root on.
fn shared(a: &str, b: &str) -> usize {
    a.split('.').zip(b.split('.')).take_while(|(a, b)| a == b).count()
}

fn letters(word: &str) -> Vec<char> {
    let mut letters: Vec<char> = word.chars().collect();
    letters.sort_unstable();
    letters
}
