//! A framework's flags as data: which field of the manifest each sets, how its value is read, and what to know.

use serde_json::Value;

/// One setting of a framework.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its names, the newest first. A name that ends with `*` stands for all that begin so.
    pub names: &'static [&'static str],
    /// What the framework takes without it, where our default, under its profile, is another.
    pub default: Option<&'static str>,
    /// What becomes of it.
    pub to: To,
    /// Values that mean the same as leaving the flag out: dropped without a note. `None`/`null` always is.
    pub off: &'static [&'static str],
    /// What to know, or why it is not translated and what to do. Empty where nothing is to be said.
    pub note: &'static str,
}

/// What becomes of a setting.
#[derive(Clone, Copy, Debug)]
pub enum To {
    /// Its value goes into these fields of the spec: into each, or one value into one field where there are several.
    Fields(&'static [&'static str], Read),
    /// These fields are computed from it and others.
    Computed(&'static [&'static str]),
    /// Nothing is to be set: it is always so here, or has nothing to act on.
    Needless,
    /// No field says it.
    Nowhere,
}

/// How a value is read.
#[derive(Clone, Copy, Debug)]
pub enum Read {
    /// A whole number that is not negative.
    Count,
    /// A whole number; a negative one or `False`, which mean "off" there, set nothing.
    CountOrOff,
    /// A whole number; a negative one or `False`, which mean "never", become 0.
    CountOrNever,
    /// A number.
    Number,
    /// As many numbers as there are fields.
    Numbers,
    /// Truth; a flag without a value is true.
    Truth,
    /// A text.
    Text,
    /// A folder, or a model of the hub.
    Model,
    /// Data files.
    Data,
    /// A folder that is written into.
    Folder,
    /// Always this, whatever the value, unless it is off.
    Is(&'static str),
    /// One of these: their word, and ours. An empty word of ours sets nothing.
    One(&'static [(&'static str, &'static str)]),
    /// The same where a word of theirs is one of ours for each field.
    Each(&'static [(&'static str, &'static [&'static str])]),
}

/// Why adapters have no dropout.
pub const NO_DROPOUT: &str =
    "adapters have no dropout: PPO's ratio compares two passes over the same tokens, which must agree";

impl Row {
    /// Whether it is the setting of this name.
    pub fn is(&self, name: &str) -> bool {
        self.names.iter().any(|known| match known.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => *known == name,
        })
    }
}

/// A row whose value goes into one field.
pub const fn field(names: &'static [&'static str], fields: &'static [&'static str], read: Read) -> Row {
    row(names, To::Fields(fields, read), "")
}

/// A row that others are computed with.
pub const fn computed(names: &'static [&'static str], fields: &'static [&'static str], note: &'static str) -> Row {
    row(names, To::Computed(fields), note)
}

/// A row that needs nothing here.
pub const fn needless(names: &'static [&'static str], note: &'static str) -> Row {
    row(names, To::Needless, note)
}

/// A row that no field says.
pub const fn nowhere(names: &'static [&'static str], note: &'static str) -> Row {
    row(names, To::Nowhere, note)
}

const fn row(names: &'static [&'static str], to: To, note: &'static str) -> Row {
    Row {
        names,
        default: None,
        to,
        off: &[],
        note,
    }
}

impl Row {
    /// With the framework's default.
    pub const fn or(mut self, default: &'static str) -> Self {
        self.default = Some(default);
        self
    }

    /// With values that need no word.
    pub const fn off(mut self, values: &'static [&'static str]) -> Self {
        self.off = values;
        self
    }

    /// Whether these values need no word.
    pub fn is_silent_of(&self, values: &[String]) -> bool {
        let named = |value: &str| value.is_empty() || self.off.contains(&value.to_lowercase().as_str());
        is_null(values) || matches!(values, [value] if named(value))
    }

    /// With something to know.
    pub const fn note(mut self, note: &'static str) -> Self {
        self.note = note;
        self
    }
}

/// Whether a value is none: Hydra's `null`, Python's `None`.
pub fn is_null(values: &[String]) -> bool {
    matches!(values, [value] if ["null", "none"].contains(&value.to_lowercase().as_str()))
}

/// Whether a value switches its setting off.
pub fn is_off(values: &[String]) -> bool {
    let off = ["0", "0.0", "false", "none", "null", "no", "-1", "[]", ""];
    matches!(values, [value] if off.contains(&value.to_lowercase().as_str()))
}

impl Read {
    /// The values of the fields, in their order; `None` for one that is not set.
    ///
    /// # Errors
    /// What was expected instead.
    pub fn values(self, values: &[String], fields: usize) -> Result<Vec<Option<Value>>, String> {
        let one = || match values {
            [value] => Ok(value.as_str()),
            [] => Err("wants a value".to_owned()),
            several => Err(format!("wants one value, has {}", several.len())),
        };
        let same = |value: Option<Value>| vec![value; fields.max(1)];
        Ok(match self {
            Self::Count => same(Some(size(one()?)?.into())),
            Self::CountOrOff => same(count_or_off(one()?)?.map(Value::from)),
            Self::CountOrNever => same(Some(count_or_off(one()?)?.unwrap_or(0).into())),
            Self::Number => same(Some(number(one()?)?)),
            Self::Numbers => {
                let items: Vec<String> = values.iter().flat_map(|value| list(value)).collect();
                if items.len() != fields {
                    return Err(format!("wants {fields} numbers, has {}", items.len()));
                }
                items
                    .iter()
                    .map(|item| number(item).map(Some))
                    .collect::<Result<_, _>>()?
            }
            Self::Truth => same(Some(truth(values)?.into())),
            Self::Text | Self::Model | Self::Data | Self::Folder => same(Some(one()?.into())),
            Self::Is(ours) => same((!is_off(values)).then(|| ours.into())),
            Self::One(words) => same(word(find(words, one()?)?)),
            Self::Each(words) => find(words, one()?)?.iter().map(|ours| word(ours)).collect(),
        })
    }
}

/// What is ours for their word.
fn find<'a, T>(words: &'a [(&str, T)], value: &str) -> Result<&'a T, String> {
    let value = value.to_lowercase();
    let found = words.iter().find(|(theirs, _)| *theirs == value);
    let (_, ours) = found.ok_or_else(|| format!("{value} is none of these: {}", theirs(words)))?;
    Ok(ours)
}

/// An empty one is none.
fn word(ours: &str) -> Option<Value> {
    (!ours.is_empty()).then(|| ours.into())
}

fn theirs<T>(words: &[(&str, T)]) -> String {
    let known: Vec<_> = words.iter().map(|(theirs, _)| *theirs).collect();
    known.join(", ")
}

/// What becomes of a word that is not here. Where all that are mean the same, because that is how it always is here, the job has the first.
pub fn not_available<T: PartialEq>(value: &str, words: &[(&str, T)], fields: &[&str]) -> String {
    match words {
        [(first, ours), others @ ..] if others.iter().all(|(_, other)| other == ours) => {
            format!("{value} is not available; the job uses {first}")
        }
        _ => {
            let known = theirs(words);
            let (fields, are) = (fields.join(" and "), if fields.len() > 1 { "are" } else { "is" });
            format!("{value} is not available (these are: {known}); see that {fields} {are} what you want")
        }
    }
}

/// A whole number; `1e8` and `512.0` are ones too.
pub fn count(text: &str) -> Result<i64, String> {
    let plain = text.trim().replace('_', "");
    let whole = |number: &f64| number.fract() == 0.0 && number.abs() < 9e15;
    plain
        .parse()
        .ok()
        .or_else(|| plain.parse::<f64>().ok().filter(whole).map(|number| number as i64))
        .ok_or_else(|| format!("wants a whole number, has {text:?}"))
}

/// A whole number that is not negative.
pub fn size(text: &str) -> Result<u64, String> {
    u64::try_from(count(text)?).map_err(|_| format!("wants a whole number that is not below 0, has {text:?}"))
}

/// A whole number that a negative one switches off, as `False` does, which is 0 to Python; none where it is off.
pub fn count_or_off(text: &str) -> Result<Option<u64>, String> {
    if text.trim().eq_ignore_ascii_case("false") {
        return Ok(None);
    }
    Ok(u64::try_from(count(text)?).ok())
}

/// A number as Python writes it: `1_000.0` is one, `inf` and `nan` are none that a field takes.
pub fn float(text: &str) -> Result<f64, String> {
    let parsed = text.trim().replace('_', "").parse::<f64>().ok();
    let finite = parsed.filter(|number| number.is_finite());
    finite.ok_or_else(|| format!("wants a number, has {text:?}"))
}

fn number(text: &str) -> Result<Value, String> {
    float(text).map(Value::from)
}

/// A value of any type, as Hydra reads it: a truth, a number, else a text.
pub fn plain(text: &str) -> Value {
    match text.to_lowercase().as_str() {
        "true" => true.into(),
        "false" => false.into(),
        _ => {
            let whole = text.parse::<i64>().map(Value::from);
            whole.or_else(|_| number(text)).unwrap_or_else(|_| text.into())
        }
    }
}

/// Truth of a flag: without a value it is set.
pub fn truth(values: &[String]) -> Result<bool, String> {
    match values {
        [] => Ok(true),
        [value] => match value.to_lowercase().as_str() {
            "true" | "1" | "yes" | "on" | "t" | "y" => Ok(true),
            "false" | "0" | "no" | "off" | "f" | "n" | "none" | "null" => Ok(false),
            _ => Err(format!("wants true or false, has {value:?}")),
        },
        several => Err(format!("wants true or false, has {} values", several.len())),
    }
}

/// The items of `a,b` or `['a', "b"]`.
pub fn list(text: &str) -> Vec<String> {
    let text = text.trim();
    let inside = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .or_else(|| text.strip_prefix('(').and_then(|text| text.strip_suffix(')')))
        .unwrap_or(text);
    let items = inside.split(',').map(|item| item.trim().trim_matches(['\'', '"']));
    items.filter(|item| !item.is_empty()).map(str::to_owned).collect()
}
