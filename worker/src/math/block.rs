//! Reading one block of the question: every complaint names the block, the field and what was found.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};
use tch::{Kind, Tensor};

/// A JSON object whose fields are known by name.
pub(super) struct Block<'a> {
    pub name: &'static str,
    fields: &'a Map<String, Value>,
    kind: Kind,
}

impl<'a> Block<'a> {
    /// Refuses anything but an object with these fields.
    pub fn new(name: &'static str, value: &'a Value, known: &[&str], kind: Kind) -> Result<Self> {
        let Value::Object(fields) = value else {
            bail!("{name}: expected an object, found {}", found(value));
        };
        if let Some(unknown) = fields.keys().find(|field| !known.contains(&field.as_str())) {
            bail!("{name}: unknown field {unknown:?}; it may have {}", known.join(", "));
        }
        Ok(Self { name, fields, kind })
    }

    /// A field's value; null counts as left out.
    pub fn value(&self, field: &str) -> Option<&'a Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    pub fn number(&self, field: &str) -> Result<Option<f64>> {
        self.value(field)
            .map(|value| number(value, &self.path(field), self.kind))
            .transpose()
    }

    /// A number from 0 to 1.
    pub fn share(&self, field: &str) -> Result<Option<f64>> {
        let share = self.number(field)?;
        if let Some(share) = share.filter(|share| !(0.0..=1.0).contains(share)) {
            bail!("{}: expected a number from 0 to 1, found {share}", self.path(field));
        }
        Ok(share)
    }

    /// The coefficient of a penalty.
    pub fn coefficient(&self, field: &str) -> Result<Option<f64>> {
        let coefficient = self.number(field)?;
        if let Some(coefficient) = coefficient.filter(|coefficient| *coefficient < 0.0) {
            bail!(
                "{}: expected a number of at least 0, found {coefficient}",
                self.path(field)
            );
        }
        Ok(coefficient)
    }

    /// A bound above 0, or 0 or false for none, as in a manifest.
    pub fn bound(&self, field: &str) -> Result<Option<Option<f64>>> {
        if self.value(field) == Some(&Value::Bool(false)) {
            return Ok(Some(None));
        }
        let Some(bound) = self.number(field)? else {
            return Ok(None);
        };
        ensure!(
            bound >= 0.0,
            "{}: expected a number above 0, or 0 for off, found {bound}",
            self.path(field)
        );
        Ok(Some((bound != 0.0).then_some(bound)))
    }

    /// A whole number of at least 1.
    pub fn count(&self, field: &str) -> Result<Option<usize>> {
        let Some(value) = self.value(field) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(count) if count > 0 => Ok(Some(count as usize)),
            _ => bail!(
                "{}: expected a whole number of at least 1, found {}",
                self.path(field),
                found(value)
            ),
        }
    }

    pub fn flag(&self, field: &str) -> Result<Option<bool>> {
        let Some(value) = self.value(field) else {
            return Ok(None);
        };
        match value.as_bool() {
            Some(flag) => Ok(Some(flag)),
            None => bail!("{}: expected true or false, found {}", self.path(field), found(value)),
        }
    }

    pub fn text(&self, field: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.value(field) else {
            return Ok(None);
        };
        match value.as_str() {
            Some(text) => Ok(Some(text)),
            None => bail!("{}: expected a name, found {}", self.path(field), found(value)),
        }
    }

    /// A rectangular array as a [batch, time] tensor.
    pub fn matrix(&self, field: &str) -> Result<Option<Tensor>> {
        self.value(field)
            .map(|value| self.rows(value, field, number))
            .transpose()
    }

    pub fn required_matrix(&self, field: &str) -> Result<Tensor> {
        self.matrix(field)?
            .with_context(|| format!("{} is missing", self.path(field)))
    }

    /// An array of 0 and 1 or booleans as a [batch, time] tensor.
    pub fn mask(&self, field: &str) -> Result<Option<Tensor>> {
        let bits = self
            .value(field)
            .map(|value| self.rows(value, field, bit))
            .transpose()?;
        Ok(bits.map(|bits| bits.to_kind(Kind::Bool)))
    }

    /// An array of `batch` elements.
    pub fn column<T>(
        &self,
        field: &str,
        batch: i64,
        element: impl Fn(&Value, &str, Kind) -> Result<T>,
    ) -> Result<Option<Vec<T>>> {
        let Some(value) = self.value(field) else {
            return Ok(None);
        };
        let path = self.path(field);
        let Value::Array(elements) = value else {
            bail!("{path}: expected an array of {batch}, found {}", found(value));
        };
        ensure!(
            elements.len() as i64 == batch,
            "{path} has {} element(s), the batch has {batch}",
            elements.len()
        );
        elements
            .iter()
            .enumerate()
            .map(|(at, value)| element(value, &format!("{path}[{at}]"), self.kind))
            .collect::<Result<_>>()
            .map(Some)
    }

    /// Refuses matrices of different shapes; the first says what the others must be.
    pub fn same_shape(&self, matrices: &[(&str, Option<&Tensor>)]) -> Result<()> {
        let mut given = matrices
            .iter()
            .filter_map(|(field, tensor)| tensor.map(|tensor| (field, tensor.size())));
        let Some((first, shape)) = given.next() else {
            return Ok(());
        };
        for (field, other) in given {
            ensure!(
                other == shape,
                "{} is {} x {}, but {} is {} x {}",
                self.path(field),
                other[0],
                other[1],
                self.path(first),
                shape[0],
                shape[1]
            );
        }
        Ok(())
    }

    pub fn path(&self, field: &str) -> String {
        format!("{}.{field}", self.name)
    }

    fn rows(&self, value: &Value, field: &str, element: impl Fn(&Value, &str, Kind) -> Result<f64>) -> Result<Tensor> {
        let path = self.path(field);
        let Value::Array(rows) = value else {
            bail!("{path}: expected rows of numbers, found {}", found(value));
        };
        ensure!(!rows.is_empty(), "{path} is empty: expected at least one row");
        let mut numbers = Vec::new();
        let mut time = None;
        for (sample, row) in rows.iter().enumerate() {
            let Value::Array(row) = row else {
                bail!("{path}[{sample}]: expected a row of numbers, found {}", found(row));
            };
            let time = *time.get_or_insert(row.len());
            ensure!(time > 0, "{path}[{sample}] is empty: expected at least one number");
            ensure!(
                row.len() == time,
                "{path}[{sample}] has {} numbers, {path}[0] has {time}",
                row.len()
            );
            for (t, value) in row.iter().enumerate() {
                numbers.push(element(value, &format!("{path}[{sample}][{t}]"), self.kind)?);
            }
        }
        let shape = [rows.len() as i64, (numbers.len() / rows.len()) as i64];
        Ok(Tensor::from_slice(&numbers).f_view(shape)?.f_to_kind(self.kind)?)
    }
}

/// A number that the dtype holds.
pub(super) fn number(value: &Value, path: &str, kind: Kind) -> Result<f64> {
    let Some(number) = value.as_f64() else {
        bail!("{path}: expected a number, found {}", found(value));
    };
    let finite = if kind == Kind::Float {
        (number as f32).is_finite()
    } else {
        number.is_finite()
    };
    ensure!(
        finite,
        "{path}: expected a finite number, found {value} (too large for {})",
        dtype(kind)
    );
    Ok(number)
}

pub(super) fn integer(value: &Value, path: &str, _: Kind) -> Result<i64> {
    let whole = value
        .as_f64()
        .filter(|number| number.fract() == 0.0 && number.abs() < 9e15);
    match value.as_i64().or(whole.map(|number| number as i64)) {
        Some(integer) => Ok(integer),
        None => bail!("{path}: expected a whole number, found {}", found(value)),
    }
}

/// What tells one thing from another: a whole number, or text as verl's `uid`.
pub(super) fn label(value: &Value, path: &str, kind: Kind) -> Result<String> {
    match value {
        Value::String(text) => Ok(format!("{text:?}")),
        Value::Number(_) => Ok(integer(value, path, kind)?.to_string()),
        other => bail!("{path}: expected a whole number or text, found {}", found(other)),
    }
}

pub(super) fn boolean(value: &Value, path: &str, kind: Kind) -> Result<bool> {
    Ok(bit(value, path, kind)? != 0.0)
}

fn bit(value: &Value, path: &str, _: Kind) -> Result<f64> {
    match value {
        Value::Bool(on) => Ok(f64::from(*on)),
        Value::Number(number) if number.as_f64() == Some(0.0) => Ok(0.0),
        Value::Number(number) if number.as_f64() == Some(1.0) => Ok(1.0),
        _ => bail!("{path}: expected 0 or 1, found {}", found(value)),
    }
}

pub(super) fn dtype(kind: Kind) -> &'static str {
    if kind == Kind::Float { "float32" } else { "float64" }
}

/// A value in a complaint: short ones as they are.
pub(super) fn found(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".into(),
        Value::Array(elements) => format!("an array of {}", elements.len()),
        other => other.to_string(),
    }
}
