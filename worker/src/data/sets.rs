//! The test sets that the rows of a file are of: few, since each has figures of its own at every evaluation.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::fields;

/// A column that is an id would make a metric of every row.
const MOST: usize = 32;

/// The sets that were met.
#[derive(Debug)]
pub(super) struct Sets<'a> {
    /// None: rows name no set.
    field: Option<&'a str>,
    names: BTreeSet<Arc<str>>,
}

impl<'a> Sets<'a> {
    /// None yet, of rows that name them in `field`.
    pub fn named_by(field: Option<&'a str>) -> Self {
        Self {
            field,
            names: BTreeSet::new(),
        }
    }

    /// The set of a row; None without a field.
    ///
    /// # Errors
    /// A row without a name for it, with the field and what is wanted.
    pub fn of_row(&mut self, row: &Value) -> Result<Option<Arc<str>>> {
        let Some(field) = self.field else {
            return Ok(None);
        };
        let name = fields::set(row, field)?;
        if let Some(known) = self.names.get(&*name) {
            return Ok(Some(known.clone()));
        }
        let name: Arc<str> = name.into();
        self.names.insert(name.clone());
        Ok(Some(name))
    }

    /// Whether they are few enough.
    ///
    /// # Errors
    /// More than 32, with the field and how many there are.
    pub fn check(&self) -> Result<()> {
        let count = self.names.len();
        ensure!(
            count <= MOST,
            "field {:?} names {count} test sets, want at most {MOST}: give evaluation.setField a column of few values",
            self.field.unwrap_or_default()
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn named(values: &[Value]) -> Result<Vec<Option<Arc<str>>>> {
        let mut sets = Sets::named_by(Some("meta.set"));
        let rows = values.iter().map(|value| json!({"meta": {"set": value}}));
        let names = rows.map(|row| sets.of_row(&row)).collect::<Result<Vec<_>>>()?;
        sets.check()?;
        Ok(names)
    }

    #[test]
    fn a_test_set_is_named_by_a_string_or_by_a_number_as_text() {
        let names = named(&[json!("AIME24"), json!(5), json!("5"), json!("AIME24")]).unwrap();
        let names: Vec<_> = names.iter().map(|name| name.as_deref().unwrap()).collect();
        assert_eq!(names, ["AIME24", "5", "5", "AIME24"]);
    }

    #[test]
    fn rows_have_no_set_where_no_field_names_one() {
        let mut sets = Sets::named_by(None);
        assert_eq!(sets.of_row(&json!({"set": "AIME24"})).unwrap(), None);
        sets.check().unwrap();
    }

    #[test]
    fn a_row_that_names_no_set_is_refused_with_what_is_wanted() {
        let refused = |value: Value| named(&[json!("AIME24"), value]).unwrap_err().to_string();
        let want = "want the name of a test set: a string or a number";
        assert_eq!(refused(Value::Null), format!("field \"meta.set\" is null, {want}"));
        assert_eq!(
            refused(json!(["a"])),
            format!("field \"meta.set\" is the list [\"a\"], {want}")
        );
        let mut sets = Sets::named_by(Some("set"));
        let missing = sets.of_row(&json!({"prompt": "x"})).unwrap_err().to_string();
        assert_eq!(missing, "field \"set\" is missing; the row has \"prompt\"");
    }

    #[test]
    fn a_name_has_1_to_64_characters() {
        named(&[json!("\u{e4}".repeat(64))]).unwrap();
        for length in [0, 65] {
            let refused = named(&[json!("a".repeat(length))]).unwrap_err().to_string();
            let wanted = format!("field \"meta.set\" names a test set by {length} characters, want 1 to 64");
            assert_eq!(refused, wanted);
        }
    }

    #[test]
    fn a_column_that_is_an_id_is_refused_with_how_many_sets_it_makes() {
        let ids = |count: u64| -> Vec<Value> { (0..count).map(Value::from).collect() };
        named(&ids(32)).unwrap();
        let refused = named(&ids(513)).unwrap_err().to_string();
        assert_eq!(
            refused,
            "field \"meta.set\" names 513 test sets, want at most 32: give evaluation.setField a column of few values"
        );
    }
}
