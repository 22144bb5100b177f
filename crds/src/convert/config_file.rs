//! TRL's `--config FILE`: a flat YAML file whose keys are flags. Whoever converts reads it, as no file is touched here.

use serde_json::{Map, Value};

use super::ConvertError;
use super::NotKnown;
use super::framework::Framework;
use super::shell::Word;
use crate::nesting;

/// The text of a file that a command line names, or why it cannot be read.
pub type Reader<'a> = &'a dyn Fn(&str) -> Result<String, String>;

/// Variables of the environment for the process, which is no setting (`TrlParser`).
const ENVIRONMENT: &str = "env";

/// The flags with those of the file that they name in front: of a flag that both have the last counts, which is the command line's.
///
/// # Errors
/// A file that is not known, cannot be read, or is no mapping.
pub fn with_file(flags: Vec<Word>, framework: Framework, read: Reader<'_>) -> Result<Vec<Word>, ConvertError> {
    if framework != Framework::Trl {
        return Ok(flags);
    }
    let (mut of_file, mut others) = (Vec::new(), Vec::new());
    let mut words = flags.into_iter();
    while let Some(word) = words.next() {
        let file = match word.split_once('=') {
            Some(("--config", file)) => Some(file),
            _ if word.text == "--config" => words.next(),
            _ => {
                others.push(word);
                continue;
            }
        };
        of_file.extend(in_file(&file.unwrap_or_default(), read)?);
    }
    of_file.append(&mut others);
    Ok(of_file)
}

fn in_file(file: &Word, read: Reader<'_>) -> Result<Vec<Word>, ConvertError> {
    if let Some(what) = file.unknown.clone() {
        let flag = format!("--config {}", file.written());
        return Err(ConvertError::NotKnown(vec![NotKnown { what, flag }]));
    }
    let path = file.text.clone();
    let unread = |why: String| ConvertError::ConfigFile {
        path: path.clone(),
        why,
    };
    let text = read(&path).map_err(unread)?;
    if let Some(error) = nesting::too_deep(&text) {
        return Err(unread(error.to_string()));
    }
    let settings: Map<String, Value> = serde_yaml::from_str(&text).map_err(|error| unread(error.to_string()))?;
    let settings = settings.iter().filter(|(name, _)| *name != ENVIRONMENT);
    Ok(settings.flat_map(|(name, value)| flag(name, value)).collect())
}

/// A key and its value as the words of a flag. An empty list is none.
fn flag(name: &str, value: &Value) -> Vec<Word> {
    let values = match value {
        Value::Array(items) if items.is_empty() => return Vec::new(),
        Value::Array(items) => items.iter().map(plain).collect(),
        one => vec![plain(one)],
    };
    let flag = format!("--{name}");
    let words = std::iter::once(flag).chain(values);
    words.map(|word| Word::new(word, None)).collect()
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        // `null`, a number, a truth; a mapping as JSON, which transformers takes too.
        other => other.to_string(),
    }
}

/// The first of TRL's configurations in a Python script, and the command that takes its arguments as flags.
pub fn in_python(script: &str, framework: Framework) -> Option<(&'static str, &'static str)> {
    let configs = [
        ("GRPOConfig", "trl grpo"),
        ("RLOOConfig", "trl rloo"),
        ("PPOConfig", "ppo.py"),
    ];
    let lines = script.lines().filter(|line| !line.trim_start().starts_with('#'));
    let is_called = |name: &str| {
        let mut behind = lines.clone().flat_map(|line| line.split(name).skip(1));
        behind.any(|rest| rest.trim_start_matches([' ', '\t']).starts_with('('))
    };
    let found = configs.into_iter().find(|(name, _)| is_called(name));
    found.filter(|_| framework == Framework::Trl)
}
