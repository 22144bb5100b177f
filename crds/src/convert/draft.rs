//! A manifest while it is being made from flags: what was given, the fields that follow from it, and what could not be said.

mod rows;

use serde_json::Value;

use super::row::{self, Read, Row, To, is_null};

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
    /// A cluster would refuse a field.
    OnCluster,
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

    /// Sets a field, whatever it was before.
    pub fn set(&mut self, field: &str, value: impl Into<Value>, source: &str) {
        self.unset(field);
        self.settings.push(Setting {
            field: field.into(),
            value: value.into(),
            source: source.into(),
        });
    }

    /// Sets a field to a setting's number, where it has one.
    ///
    /// # Errors
    /// When it is no number.
    pub fn set_number(&mut self, field: &str, name: &str) -> Result<(), WrongValue> {
        if let Some(number) = self.number(name)? {
            self.set(field, number, &self.source(name));
        }
        Ok(())
    }

    /// Sets a field to a setting's whole number, where it has one.
    ///
    /// # Errors
    /// When it is no number, or a negative one.
    pub fn set_count(&mut self, field: &str, name: &str) -> Result<(), WrongValue> {
        if let Some(count) = self.count(name)? {
            self.set(field, count, &self.source(name));
        }
        Ok(())
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

    /// Says of a setting that was given what its row has to say.
    pub fn leave_given(&mut self, name: &str) {
        if let Some(index) = self.index(name) {
            self.leave_row(index);
        }
    }

    /// One row has several names: each is said.
    fn leave_row(&mut self, index: usize) {
        let row = self.rows[index];
        for given in self.given[index].clone() {
            if !row.is_silent_of(&given.values) {
                self.leave(&given.name, row.note);
            }
        }
    }

    /// Takes back what was said of a flag.
    pub fn unsay(&mut self, flag: &str) {
        self.notes.retain(|note| note.subject != flag);
    }

    /// Puts a value that must be replaced at a place of a field, or of what is below it, and says why.
    pub fn placeholder(&mut self, field: &str, place: &str, value: impl Into<Value>, why: &str) {
        self.set(place, value, "replace");
        self.missing(field, why);
    }

    /// Says that a field has a placeholder.
    pub fn missing(&mut self, field: &str, what: &str) {
        self.note(NoteKind::Missing, &format!("spec.{field}"), what);
    }

    /// Says what a cluster would refuse of a field, whose path is a manifest's.
    pub fn on_cluster(&mut self, field: &str, what: &str) {
        self.note(NoteKind::OnCluster, field, what);
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

    /// The name by which a setting was given last.
    pub fn given_as(&self, name: &str) -> Option<&str> {
        let index = self.index(name)?;
        self.given[index].last().map(|argument| argument.name.as_str())
    }

    /// All names of a setting, the newest first.
    pub fn names(&self, name: &str) -> &'static [&'static str] {
        match self.index(name) {
            Some(index) => self.rows[index].names,
            None => &[],
        }
    }

    /// The fields that a setting is for.
    pub fn fields(&self, name: &str) -> &'static [&'static str] {
        let row = self.index(name).map(|index| self.rows[index].to);
        match row {
            Some(To::Fields(fields, _) | To::Computed(fields)) => fields,
            Some(To::Needless | To::Nowhere) | None => &[],
        }
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

    /// A setting's one value and its source; None for `null` too.
    fn one(&self, name: &str) -> Option<(String, String)> {
        let (mut values, source) = self.values(name)?;
        let is_one = values.len() == 1 && !is_null(&values);
        Some((values.pop().filter(|_| is_one)?, source))
    }

    /// A setting's word, where it is one that is not here.
    pub fn other_word(&self, name: &str) -> Option<String> {
        let index = self.index(name)?;
        let To::Fields(fields, words @ (Read::One(_) | Read::Each(_))) = self.rows[index].to else {
            return None;
        };
        let (values, _) = self.effective(index)?;
        let is_other = !is_null(&values) && words.values(&values, fields.len()).is_err();
        is_other.then(|| values.join(" "))
    }

    /// A setting's whole number. `null` is none.
    ///
    /// # Errors
    /// When it is no number, or a negative one.
    pub fn count(&self, name: &str) -> Result<Option<u64>, WrongValue> {
        let Some((value, flag)) = self.one(name) else {
            return Ok(None);
        };
        let count = row::size(&value).map_err(|message| WrongValue { flag, message })?;
        Ok(Some(count))
    }

    /// The whole number of a setting that a negative one or `False` switches off: such a one is none, and `null`.
    ///
    /// # Errors
    /// When it is no number.
    pub fn count_or_off(&self, name: &str) -> Result<Option<u64>, WrongValue> {
        let Some((value, flag)) = self.one(name) else {
            return Ok(None);
        };
        row::count_or_off(&value).map_err(|message| WrongValue { flag, message })
    }

    /// A setting's number.
    ///
    /// # Errors
    /// When it is no number.
    pub fn number(&self, name: &str) -> Result<Option<f64>, WrongValue> {
        let Some((value, flag)) = self.one(name) else {
            return Ok(None);
        };
        let number = row::float(&value).map_err(|message| WrongValue { flag, message })?;
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
