//! All names of the frameworks' settings, beside those that rows have. A row of many names (`trainer.*`) takes none that is not listed, so
//! that a misspelt one is not passed over. The lists are names alone, from the packages of these versions.

use strsim::levenshtein;

use super::dialect::Dialect;
use super::draft::Argument;
use super::row::Row;

/// Of OpenRLHF.
pub const OPENRLHF: &[&str] = &[include_str!("known/openrlhf-0.11.0.txt")];
/// Of verl. A setting is known below a name that has no others below it in these lists.
pub const VERL: &[&str] = &[
    include_str!("known/verl-0.9.0.txt"),
    include_str!("known/verl-others.txt"),
];
/// Of TRL: a name, and the trainers that have it.
pub const TRL: &[&str] = &[
    include_str!("known/trl-0.24.0.txt"),
    include_str!("known/trl-others.txt"),
];

/// The row of a flag.
///
/// # Errors
/// The nearest name, where one is near, of a flag that the framework does not have.
pub fn row(argument: &Argument, dialect: &Dialect) -> Result<usize, Option<String>> {
    let name = argument.name.as_str();
    let found = dialect.rows.iter().position(|row| row.is(name));
    let is_known = |index: usize| {
        let has_it = dialect.rows[index].names.contains(&name);
        has_it || is_listed(name, dialect.known) || (is_free(argument, dialect) && !is_misspelt(name, &dialect.rows))
    };
    match found.filter(|index| is_known(*index)) {
        Some(index) => Ok(index),
        None => Err(nearest(name, dialect)),
    }
}

/// The names of the lists, without the trainers that have them.
pub fn names(lists: &[&'static str]) -> impl Iterator<Item = &'static str> {
    let lines = lists.iter().flat_map(|list| list.lines());
    let names = lines.filter(|line| !line.starts_with('#'));
    names.filter_map(|line| line.split(' ').next())
}

fn is_listed(name: &str, lists: &[&'static str]) -> bool {
    names(lists).any(|known| known == name)
}

/// Whether a setting may have any name: one that is added with `+`, a file of hydra's, or below a name that is listed as a whole.
fn is_free(argument: &Argument, dialect: &Dialect) -> bool {
    let name = argument.name.as_str();
    let is_whole = |known: &str| match known.strip_suffix(".*") {
        Some(any) => is_below(name, any),
        None => is_below(name, known) && !names(dialect.known).any(|other| is_below(other, known)),
    };
    argument.shown.starts_with('+') || name.contains('@') || names(dialect.known).any(is_whole)
}

fn is_below(name: &str, parent: &str) -> bool {
    name.strip_prefix(parent).is_some_and(|rest| rest.starts_with('.'))
}

/// Whether a name is all but that of a setting beside it which has a row of its own.
fn is_misspelt(name: &str, rows: &[Row]) -> bool {
    let (parent, last) = parts(name);
    let most = (last.chars().count() / 4).min(2);
    own_names(rows).any(|known| {
        let (beside, other) = parts(known);
        beside == parent && levenshtein(last, other) <= most
    })
}

/// The names of rows that stand for one setting each.
fn own_names(rows: &[Row]) -> impl Iterator<Item = &'static str> {
    let names = rows.iter().flat_map(|row| row.names);
    names.copied().filter(|name| !name.ends_with('*'))
}

/// What a setting is in, and its own name there.
fn parts(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or(("", name))
}

/// The known name that is meant: with the fewest letters to change, where these are at most about a third of its own part, else a longer or
/// shorter form of it (`trainer.n_gpus`, `optim.learning_rate`), else one of another place. None where nothing is near.
fn nearest(flag: &str, dialect: &Dialect) -> Option<String> {
    let flag = flag.to_lowercase();
    let listed = names(dialect.known).filter(|name| !name.ends_with('*'));
    let known: Vec<&str> = own_names(&dialect.rows).chain(listed).collect();
    let changes = |name: &str| levenshtein(&flag, &name.to_lowercase());
    let (parent, last) = parts(&flag);
    let by_letters = known.iter().min_by_key(|name| changes(name));
    let by_letters = by_letters.filter(|name| changes(name) <= last.chars().count().div_ceil(3));
    let is_form = |name: &&&str| {
        let (beside, other) = parts(name);
        beside == parent && is_form(last, other)
    };
    let elsewhere = || {
        let root = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        let is_like = |name: &&&str| root(name) == root(&flag) && levenshtein(last, parts(name).1) <= 1;
        let like = known.iter().filter(|name| !parent.is_empty() && is_like(name));
        like.min_by_key(|name| changes(name))
    };
    let found = by_letters.or_else(|| known.iter().find(is_form)).or_else(elsewhere);
    found.map(|name| (*name).to_owned())
}

/// Whether `other` is `name` with words in front or behind, or the first letters of its words.
fn is_form(name: &str, other: &str) -> bool {
    let initials: String = name.split('_').filter_map(|word| word.chars().next()).collect();
    let longer = other.strip_prefix(name).is_some_and(|rest| rest.starts_with('_'));
    let behind = other.strip_suffix(name).is_some_and(|rest| rest.ends_with('_'));
    longer || behind || (name.contains('_') && initials == other)
}
