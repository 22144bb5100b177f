//! Writing one block of the answer: a number that is not finite is an error, never a null.

use anyhow::{Result, ensure};
use serde_json::{Map, Value, json};
use tch::{Device, Kind, Tensor};

/// A block of the answer.
pub(super) struct Answer {
    name: &'static str,
    fields: Map<String, Value>,
}

impl Answer {
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            fields: Map::new(),
        }
    }

    /// Adds a [batch, time] tensor as rows.
    pub fn matrix(mut self, field: &str, tensor: &Tensor) -> Result<Self> {
        let time = tensor.size().last().copied().unwrap_or(0).max(1) as usize;
        let flat = tensor
            .detach()
            .f_to_device(Device::Cpu)?
            .f_to_kind(Kind::Double)?
            .f_contiguous()?
            .f_view(-1)?;
        let numbers = Vec::<f64>::try_from(&flat)?;
        let mut rows = Vec::new();
        for (sample, row) in numbers.chunks(time).enumerate() {
            for (t, number) in row.iter().enumerate() {
                self.refuse_unless_finite(*number, &format!("{field}[{sample}][{t}]"))?;
            }
            rows.push(
                row.iter()
                    .map(|&number| written(number, tensor.kind()))
                    .collect::<Vec<Value>>(),
            );
        }
        self.fields.insert(field.into(), json!(rows));
        Ok(self)
    }

    pub fn number(mut self, field: &str, number: f64, kind: Kind) -> Result<Self> {
        self.refuse_unless_finite(number, field)?;
        self.fields.insert(field.into(), written(number, kind));
        Ok(self)
    }

    pub fn numbers(mut self, field: &str, numbers: &[f64]) -> Result<Self> {
        for (at, &number) in numbers.iter().enumerate() {
            self.refuse_unless_finite(number, &format!("{field}[{at}]"))?;
        }
        self.fields.insert(field.into(), json!(numbers));
        Ok(self)
    }

    pub fn done(self) -> Value {
        Value::Object(self.fields)
    }

    fn refuse_unless_finite(&self, number: f64, field: &str) -> Result<()> {
        ensure!(
            number.is_finite(),
            "{}: the result {field} is {number}: the inputs are out of the range this profile's formula can take",
            self.name
        );
        Ok(())
    }
}

/// The shortest decimal that reads back as the same number of its dtype.
fn written(number: f64, kind: Kind) -> Value {
    if kind != Kind::Float {
        return json!(number);
    }
    let short = format!("{:?}", number as f32);
    short.parse::<f64>().map_or(Value::Null, |number| json!(number))
}
