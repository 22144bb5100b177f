//! Programs of a framework that are not read, by their names in a script.

use super::framework::Framework;

/// The first one, and what to do instead. It may stand in a text that a script hands on, so words are looked at and not commands.
pub fn named(script: &str, framework: Framework) -> Option<(String, &'static str)> {
    let other = framework.other();
    let lines = script.lines().filter(|line| !line.trim_start().starts_with('#'));
    let words: Vec<&str> = lines
        .flat_map(str::split_whitespace)
        .map(|word| word.trim_matches(['"', '\'', '`', '(', ')', '{', '}', ';']))
        .collect();
    // `trl sft` is two words.
    let pairs = words.windows(2).map(|pair| pair.join(" "));
    let mut names = words.iter().map(|word| (*word).to_owned()).chain(pairs);
    names.find_map(|name| other(&name).map(|instead| (name, instead)))
}
