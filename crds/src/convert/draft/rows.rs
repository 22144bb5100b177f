//! What every row of a table does by itself to the draft.

use serde_json::Value;

use super::{Argument, Draft, NoteKind, WrongValue};
use crate::convert::row::{self, Read, Row, To, is_null};
use crate::convert::source::{set_data, set_folder, set_model};

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
                if is_null(&values) && !matches!(read, Read::One(_) | Read::Each(_) | Read::Truth) {
                    return Ok(());
                }
                if !given.is_empty() && !row.note.is_empty() && !row.is_silent_of(&values) {
                    self.leave(row.names[0], row.note);
                }
                match read {
                    // A word that is not known here is a setting that is not translated.
                    Read::One(_) | Read::Each(_) => match read.values(&values, fields.len()) {
                        Ok(words) => self.assign(fields, words, &source),
                        Err(message) => {
                            let why = match (values.as_slice(), read) {
                                ([value], Read::One(words)) => row::not_available(value, words, fields),
                                ([value], Read::Each(words)) => row::not_available(value, words, fields),
                                _ => message,
                            };
                            self.leave(&source, &why);
                        }
                    },
                    Read::Model => set_model(self, fields[0], &values, &source)?,
                    Read::Data => set_data(self, fields[0], &values, &source),
                    Read::Folder => set_folder(self, fields[0], &values, &source)?,
                    _ => {
                        let read = read.values(&values, fields.len());
                        let read = read.map_err(|message| WrongValue {
                            flag: source.clone(),
                            message,
                        })?;
                        self.assign(fields, read, &source);
                    }
                }
            }
            To::Nowhere if given.is_empty() && row.default.is_some() => {
                let framework = self.framework;
                self.leave(&format!("{framework}'s default"), row.note);
            }
            To::Nowhere => self.leave_row(index),
            To::Needless => {
                for given in &given {
                    self.note(NoteKind::Needless, &given.name, row.note);
                }
            }
            To::Computed(_) => {}
        }
        Ok(())
    }

    fn assign(&mut self, fields: &[&str], values: Vec<Option<Value>>, source: &str) {
        for (field, value) in fields.iter().zip(values) {
            if let Some(value) = value {
                self.set(field, value, source);
            }
        }
    }
}
