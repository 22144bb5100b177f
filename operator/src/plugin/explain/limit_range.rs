//! What a LimitRange of the namespace refuses, and by how much, in the words of `plugin/pkg/admission/limitranger`.

use super::edited::TEMPLATE;

/// Between what is bounded, and of what.
const USAGE: &str = " usage per ";
/// The same of a limit that is a multiple of its request.
const RATIO: &str = " max limit to request ratio per ";

/// What to change, with the bounds as far as the words name them; None where they are of no LimitRange.
pub fn advice(words: &str) -> Option<String> {
    let found = all(words, USAGE, usage).chain(all(words, RATIO, ratio));
    let mut changes: Vec<String> = Vec::new();
    for change in found {
        // Two containers may break the same bound.
        if !changes.contains(&change) {
            changes.push(change);
        }
    }
    if changes.is_empty() {
        return None;
    }
    let changes = changes.join("; ");
    Some(format!(
        "{changes}; or have the namespace's LimitRange changed: `kubectl describe limitrange`"
    ))
}

/// What `read` makes of the texts before and after each place that has `mark`.
fn all<'a>(words: &'a str, mark: &'a str, read: fn(&str, &str) -> Option<String>) -> impl Iterator<Item = String> + 'a {
    let places = words.match_indices(mark);
    places.filter_map(move |(at, mark)| read(&words[..at], &words[at + mark.len()..]))
}

/// `maximum cpu usage per Container is 2, but limit is 4`, or `is 2.  No limit is specified`.
fn usage(before: &str, after: &str) -> Option<String> {
    let mut back = before.rsplit([' ', '[']);
    let (resource, bound) = (back.next()?, back.next()?);
    let (of, rest) = after.split_once(" is ")?;
    let (allowed, rest) = quantity(rest);
    let (most, verb, bound) = match bound {
        "maximum" => (true, "lower", format!("at most {allowed}")),
        "minimum" => (false, "raise", format!("at least {allowed}")),
        _ => return None,
    };
    if of == "PersistentVolumeClaim" {
        return Some(format!(
            "make the job again with {bound} in spec.checkpoint.volumeClaim.storage"
        ));
    }
    let place = place(of);
    if resource.contains('/') {
        // Devices are counted by fields of their own.
        return Some(format!(
            "ask for {bound} {resource} {place}: by gpusPerNode or gpusPerReplica of the role, in a new job"
        ));
    }
    let rest = rest.trim_start_matches([',', '.', ' ']);
    let given = |start: &str| rest.strip_prefix(start).map(|given| quantity(given).0);
    let (part, given) = match (given("but limit is "), given("but request is ")) {
        (Some(given), _) => ("limits", Some(given)),
        (_, Some(given)) => ("requests", Some(given)),
        _ if most => ("limits", None),
        _ => ("requests", None),
    };
    let field = format!("{part}.{resource} {place} in resources of {TEMPLATE}");
    Some(match given {
        Some(given) => format!("{verb} {field} from {given} to {bound}"),
        None => format!("give {field}, {bound}"),
    })
}

/// `cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000`, or `but no request is specified or request is 0`.
fn ratio(before: &str, after: &str) -> Option<String> {
    let resource = before.rsplit([' ', '[']).next()?;
    let (of, rest) = after.split_once(" is ")?;
    let (allowed, rest) = quantity(rest);
    let lacks = rest.trim_start_matches([',', ' ']).starts_with("but no ");
    let both = if lacks { "give both, and " } else { "" };
    Some(format!(
        "{both}let limits.{resource} be at most {allowed} times requests.{resource} {} in resources of {TEMPLATE}",
        place(of)
    ))
}

fn place(of: &str) -> &'static str {
    match of {
        "Pod" => "of all containers together",
        _ => "of a container",
    }
}

/// The quantity that a text begins with, and what follows it.
fn quantity(text: &str) -> (&str, &str) {
    let end = text.find([',', ']', ' ']).unwrap_or(text.len());
    let (quantity, rest) = text.split_at(end);
    (quantity.trim_end_matches('.'), rest)
}
