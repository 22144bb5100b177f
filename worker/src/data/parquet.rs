//! Rows of a Parquet file, by the record interface (no Arrow).

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use serde_json::{Number, Value};

use super::Row;
use crate::contained::contained;

/// All rows of a Parquet file.
pub(super) fn read(path: &Path) -> Result<Vec<Row>> {
    // The crate panics at a page without its dictionary, and at dates outside its calendar.
    contained(|| read_all(path))
}

fn read_all(path: &Path) -> Result<Vec<Row>> {
    let file = File::open(path).context("cannot open the file")?;
    let reader = SerializedFileReader::new(file).context("not a Parquet file")?;
    let mut rows = Vec::new();
    for (index, row) in reader.get_row_iter(None).context("cannot read rows")?.enumerate() {
        let place = format!("row {}", index + 1);
        let row = row.with_context(|| place.clone())?;
        let fields = row.get_column_iter().map(|(name, field)| (name.clone(), value(field)));
        rows.push(Row {
            place,
            value: Value::Object(fields.collect()),
        });
    }
    Ok(rows)
}

/// A Parquet value as the JSON that would have said the same. Text without the UTF8 annotation is text too.
fn value(field: &Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Bool(truth) => Value::Bool(*truth),
        Field::Byte(number) => Value::from(*number),
        Field::Short(number) => Value::from(*number),
        Field::Int(number) => Value::from(*number),
        Field::Long(number) => Value::from(*number),
        Field::UByte(number) => Value::from(*number),
        Field::UShort(number) => Value::from(*number),
        Field::UInt(number) => Value::from(*number),
        Field::ULong(number) => Value::from(*number),
        // Their shortest decimals: 0.1 is no 0.10000000149011612.
        Field::Float16(number) => finite(shortest(f32::from(*number))),
        Field::Float(number) => finite(shortest(*number)),
        Field::Double(number) => finite(*number),
        Field::Str(text) => Value::from(text.as_str()),
        // What is no text, an image beside a prompt, is of no use here: who names it as a field is told that it is null.
        Field::Bytes(bytes) => std::str::from_utf8(bytes.data()).map_or(Value::Null, Value::from),
        Field::Group(row) => {
            let fields = row.get_column_iter().map(|(name, field)| (name.clone(), value(field)));
            Value::Object(fields.collect())
        }
        Field::ListInternal(list) => Value::Array(list.elements().iter().map(value).collect()),
        // Dates, decimals and maps: the text that Parquet's own tools print.
        other => Value::from(other.to_string()),
    }
}

fn shortest(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::NAN)
}

fn finite(number: f64) -> Value {
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_number_of_single_precision_is_the_decimal_that_was_written() {
        let values = [
            Field::Float(0.1),
            Field::Float(1234.56),
            Field::Float(f32::NAN),
            Field::Double(0.1),
        ];
        let values: Vec<Value> = values.iter().map(value).collect();
        assert_eq!(values, [json!(0.1), json!(1234.56), Value::Null, json!(0.1)]);
    }
}
