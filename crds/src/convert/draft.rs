//! A manifest while it is being made from flags: what was given, the fields that follow from it, and what could not be said.

use serde_json::Value;

use super::row::{self, Read, Row, To, is_null, is_off};

/// A flag as it was given.
#[derive(Clone, Debug)]
pub struct Argument {
    /// Its name, without dashes.
    pub name: String,
    /// Its name and values as a person would write them.
    pub shown: String,
    /// Its values.
    pub values: Vec<String>,
    /// What of them only a shell could know.
    pub unknown: Option<String>,
}

/// A value that a flag cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{flag}: {message}")]
pub struct WrongValue {
    /// The flag.
    pub flag: String,
    /// What is wrong.
    pub message: String,
}

/// A field of the manifest and where its value is from.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Path below `spec`.
    pub field: String,
    /// Its value.
    pub value: Value,
    /// The flags it follows from, in words.
    pub source: String,
}

/// What the person who converts has to know.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Note {
    /// What it is about.
    pub kind: NoteKind,
    /// The flag or field.
    pub subject: String,
    /// Why, and what to do.
    pub message: String,
}

/// What a note is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub enum NoteKind {
    /// A field has a placeholder that must be replaced.
    Missing,
    /// A flag was not translated, or not as it was.
    NotTranslated,
    /// A flag needs nothing here.
    Needless,
}

/// A manifest in the making.
#[derive(Debug)]
pub struct Draft {
    rows: Vec<Row>,
    /// By row, each in the order given.
    given: Vec<Vec<Argument>>,
    /// What the launcher said of the number of processes.
    pub launcher: Vec<String>,
    /// In the order of the flags; the last of a field counts.
    pub settings: Vec<Setting>,
    /// In the order in which they came up.
    pub notes: Vec<Note>,
    framework: &'static str,
}

impl Draft {
    /// Applies every row that is a field's own: flags first, then the framework's defaults.
    ///
    /// # Errors
    /// A value that its flag cannot have.
    pub fn new(
        framework: &'static str,
        rows: Vec<Row>,
        given: Vec<Vec<Argument>>,
        launcher: Vec<String>,
    ) -> Result<Self, WrongValue> {
        let mut draft = Self {
            rows,
            given,
            launcher,
            settings: Vec::new(),
            notes: Vec::new(),
            framework,
        };
        for index in 0..draft.rows.len() {
            draft.apply(index)?;
        }
        Ok(draft)
    }

    fn apply(&mut self, index: usize) -> Result<(), WrongValue> {
        let row = self.rows[index];
        let given = self.given[index].clone();
        match row.to {
            To::Fields(fields, read) => {
                let Some((values, source)) = self.effective(index) else {
                    return Ok(());
                };
                if is_null(&values) && !matches!(read, Read::One(_) | Read::Truth) {
                    return Ok(());
                }
                if !given.is_empty() && !row.note.is_empty() {
                    self.leave(row.names[0], row.note);
                }
                let wrong = |message| WrongValue {
                    flag: source.clone(),
                    message,
                };
                match read {
                    // A word that is not known here is a setting that is not translated.
                    Read::One(_) => match read.values(&values, fields.len()) {
                        Ok(read) => self.assign(fields, read, &source),
                        Err(message) => self.leave(
                            &source,
                            &format!("{message}; what {} does else is kept", self.framework),
                        ),
                    },
                    Read::Model => self.model(fields[0], &values, &source).map_err(wrong)?,
                    Read::Data => self.data(fields[0], &values, &source).map_err(wrong)?,
                    _ => {
                        let read = read.values(&values, fields.len()).map_err(wrong)?;
                        self.assign(fields, read, &source);
                    }
                }
            }
            To::Nowhere if given.is_empty() && row.default.is_some() => {
                let framework = self.framework;
                self.leave(&format!("{framework}'s default"), row.note);
            }
            // One row has several names: each is said.
            To::Nowhere => {
                for given in given.iter().filter(|given| !row.is_silent_of(&given.values)) {
                    self.leave(&given.name, row.note);
                }
            }
            To::Needless => {
                for given in &given {
                    self.note(NoteKind::Needless, &given.name, row.note);
                }
            }
            To::Computed(_) => {}
        }
        Ok(())
    }

    /// Values and their source: the flag, else the framework's default.
    fn effective(&self, index: usize) -> Option<(Vec<String>, String)> {
        match (self.given[index].last(), self.rows[index].default) {
            (Some(given), _) => Some((given.values.clone(), given.shown.clone())),
            (None, Some(default)) => Some((
                default.split_whitespace().map(str::to_owned).collect(),
                format!("{}'s default", self.framework),
            )),
            (None, None) => None,
        }
    }

    fn assign(&mut self, fields: &[&str], values: Vec<Option<Value>>, source: &str) {
        for (field, value) in fields.iter().zip(values) {
            if let Some(value) = value {
                self.set(field, value, source);
            }
        }
    }

    /// A folder, or a model of the hub by the form of its name.
    fn model(&mut self, field: &str, values: &[String], source: &str) -> Result<(), String> {
        let [value] = values else {
            return Err(format!("wants one model, has {}", values.len()));
        };
        if is_off(values) {
            return Ok(());
        }
        let first = value.split(',').next().unwrap_or(value);
        if first != value {
            self.leave(source, &format!("several models: only {first} is taken"));
        }
        if let Some(below) = first.strip_prefix('~') {
            let place = format!("/models/{}", below.rsplit('/').next().unwrap_or(below));
            self.set(&format!("{field}.path"), place.as_str(), source);
            let how = format!("{first} lies below a home folder, which only a shell knows: write its path in full");
            self.missing(&format!("{field}.path"), &how);
        } else if is_path(first) {
            self.set(&format!("{field}.path"), first, source);
        } else {
            self.set(&format!("{field}.hub.id"), first, source);
        }
        Ok(())
    }

    /// Sets a model's place from a setting's values.
    ///
    /// # Errors
    /// When they name several.
    pub fn set_model(&mut self, field: &str, values: &[String], source: &str) -> Result<(), WrongValue> {
        self.model(field, values, source).map_err(|message| WrongValue {
            flag: source.into(),
            message,
        })
    }

    /// A data file; a data set of the hub cannot be read here.
    fn data(&mut self, field: &str, values: &[String], source: &str) -> Result<(), String> {
        let files: Vec<String> = values.iter().flat_map(|value| row::list(value)).collect();
        let Some(first) = files.first() else {
            return Ok(());
        };
        if files.len() > 1 {
            let message = format!("{} files: only {first} is taken; join them into one", files.len());
            self.leave(source, &message);
        }
        let file = first.rsplit('@').next().unwrap_or(first);
        let known = [".jsonl", ".json", ".parquet"].iter().any(|end| file.ends_with(end));
        if known && !file.starts_with('~') {
            self.set(&format!("{field}.path"), file, source);
            return Ok(());
        }
        let name = if is_path(file) {
            "data"
        } else {
            file.rsplit('/').next().unwrap_or("data")
        };
        let place = format!("/data/{name}.jsonl");
        self.set(&format!("{field}.path"), place.as_str(), source);
        let how = if is_path(file) {
            format!("{file} is no .jsonl, .json or .parquet file with an absolute or relative path")
        } else {
            format!(
                "data sets are files here: `datasets.load_dataset({file:?}, split=\"train\").to_json({place:?})` writes one"
            )
        };
        self.missing(&format!("{field}.path"), &how);
        Ok(())
    }

    /// Sets a field, whatever it was before.
    pub fn set(&mut self, field: &str, value: impl Into<Value>, source: &str) {
        self.unset(field);
        self.settings.push(Setting {
            field: field.into(),
            value: value.into(),
            source: source.into(),
        });
    }

    /// Removes a field, and what is below it.
    pub fn unset(&mut self, field: &str) {
        let below = format!("{field}.");
        self.settings
            .retain(|setting| setting.field != field && !setting.field.starts_with(&below));
    }

    /// A field's value.
    pub fn get(&self, field: &str) -> Option<&Value> {
        let setting = self.settings.iter().find(|setting| setting.field == field);
        setting.map(|setting| &setting.value)
    }

    /// Whether the field, or one below it, is set.
    pub fn has(&self, field: &str) -> bool {
        let below = format!("{field}.");
        self.settings
            .iter()
            .any(|setting| setting.field == field || setting.field.starts_with(&below))
    }

    /// Whether there is a critic: the estimator is `gae`, or none is set, which means `gae`.
    pub fn has_critic(&self) -> bool {
        self.get("algorithm.advantage.estimator")
            .is_none_or(|estimator| estimator == "gae")
    }

    /// The critic starts from the reward model, where there is one.
    pub fn critic_from_reward(&mut self, source: &str) {
        for place in ["path", "hub.id"] {
            if let Some(reward) = self.get(&format!("roles.reward.model.source.{place}")).cloned() {
                self.set(&format!("model.critic.{place}"), reward, source);
            }
        }
    }

    /// Says that a flag is not translated, or not as it was.
    pub fn leave(&mut self, flag: &str, why: &str) {
        self.note(NoteKind::NotTranslated, flag, why);
    }

    /// Says that a field has a placeholder.
    pub fn missing(&mut self, field: &str, what: &str) {
        self.note(NoteKind::Missing, &format!("spec.{field}"), what);
    }

    fn note(&mut self, kind: NoteKind, subject: &str, message: &str) {
        let note = Note {
            kind,
            subject: subject.into(),
            message: message.into(),
        };
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.rows.iter().position(|row| row.names.contains(&name))
    }

    /// Whether the setting was given.
    pub fn is_given(&self, name: &str) -> bool {
        self.index(name).is_some_and(|index| !self.given[index].is_empty())
    }

    /// What was given by names that begin so.
    pub fn given_below(&self, start: &str) -> Vec<Argument> {
        let given = self.given.iter().flatten();
        given
            .filter(|argument| argument.name.starts_with(start))
            .cloned()
            .collect()
    }

    /// Whether a setting was given by a name that `is` one.
    pub fn has_name(&self, is: impl Fn(&str) -> bool) -> bool {
        self.given.iter().flatten().any(|argument| is(&argument.name))
    }

    /// The values of a setting, given or the framework's default, and their source.
    pub fn values(&self, name: &str) -> Option<(Vec<String>, String)> {
        let index = self.index(name)?;
        self.effective(index)
    }

    /// Where a setting's value is from; its name when it has none.
    pub fn source(&self, name: &str) -> String {
        self.values(name).map_or_else(|| name.to_owned(), |(_, source)| source)
    }

    /// A setting's text.
    pub fn text(&self, name: &str) -> Option<String> {
        self.values(name)?.0.first().cloned().filter(|text| !text.is_empty())
    }

    /// A setting's whole number. Negative and `null` ones are none.
    ///
    /// # Errors
    /// When it is no number.
    pub fn count(&self, name: &str) -> Result<Option<u64>, WrongValue> {
        let Some((values, source)) = self.values(name) else {
            return Ok(None);
        };
        let [value] = values.as_slice() else { return Ok(None) };
        if is_null(&values) {
            return Ok(None);
        }
        let count = row::count(value).map_err(|message| WrongValue { flag: source, message })?;
        Ok(u64::try_from(count).ok())
    }

    /// A setting's number.
    ///
    /// # Errors
    /// When it is no number.
    pub fn number(&self, name: &str) -> Result<Option<f64>, WrongValue> {
        let Some((values, flag)) = self.values(name) else {
            return Ok(None);
        };
        let [value] = values.as_slice() else { return Ok(None) };
        if is_null(&values) {
            return Ok(None);
        }
        let message = format!("wants a number, has {value:?}");
        let number = value.parse().map_err(|_| WrongValue { flag, message })?;
        Ok(Some(number))
    }

    /// Whether a setting is on.
    ///
    /// # Errors
    /// When it is neither true nor false.
    pub fn truth(&self, name: &str) -> Result<bool, WrongValue> {
        let Some((values, flag)) = self.values(name) else {
            return Ok(false);
        };
        row::truth(&values).map_err(|message| WrongValue { flag, message })
    }
}

/// Optimizer updates of a step, by the sizes of the batch that are set so far.
pub fn updates_per_step(draft: &Draft) -> u64 {
    let count = |field: &str| draft.get(field).and_then(Value::as_u64).unwrap_or(1).max(1);
    let samples = count("batch.rolloutBatchSize").saturating_mul(count("batch.nSamplesPerPrompt"));
    (samples / count("batch.trainBatchSize"))
        .max(1)
        .saturating_mul(count("batch.ppoEpochs"))
}

/// Whether a model or data set named so is on a disk: the frameworks look there for what is no name on the hub.
fn is_path(name: &str) -> bool {
    name.starts_with(['/', '.', '~']) || name.split('/').count() > 2
}
