//! Rows of a Parquet file, by the record interface (no Arrow).

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::Type;
use serde_json::{Number, Value};

use super::Row;
use crate::contained::contained;
use crate::hub::only_a_pointer;

/// What the rows of a file may be: a file of a few kilobytes can stand for any number of them, each of any length.
struct Room {
    rows: usize,
    bytes: usize,
}

/// Sixteen million prompts are more than a run ever comes to, and 8 GiB of text more than a pod of its actor would hold twice.
const ROOM: Room = Room {
    rows: 1 << 24,
    bytes: 8 << 30,
};

/// All rows of a Parquet file, of the columns in which `fields` lie alone.
pub(super) fn read(path: &Path, fields: Option<&[&str]>) -> Result<Vec<Row>> {
    // The crate panics at a page without its dictionary, and at dates outside its calendar.
    contained(|| read_all(path, fields, ROOM))
}

fn read_all(path: &Path, fields: Option<&[&str]>, room: Room) -> Result<Vec<Row>> {
    let file = File::open(path).context("cannot open the file")?;
    let reader = SerializedFileReader::new(file).with_context(|| no_parquet(path))?;
    let schema = reader.metadata().file_metadata().schema();
    let columns = fields.map(|fields| columns(schema, fields)).transpose()?.flatten();
    let (mut rows, mut bytes) = (Vec::new(), 0);
    for (index, row) in reader.get_row_iter(columns).context("cannot read rows")?.enumerate() {
        let place = format!("row {}", index + 1);
        let most = room.rows;
        ensure!(
            index < most,
            "it has more than {most} rows: cut it to those that are needed"
        );
        let row = row.with_context(|| place.clone())?;
        let fields = row.get_column_iter().map(|(name, field)| (name.clone(), value(field)));
        let value = Value::Object(fields.collect());
        bytes += size(&value);
        let most = room.bytes;
        ensure!(
            bytes <= most,
            "{place}: up to here it has more than {most} bytes of values: cut it to those that are needed"
        );
        rows.push(Row { place, value });
    }
    Ok(rows)
}

/// What is wrong with a file that cannot be read as Parquet.
fn no_parquet(path: &Path) -> String {
    let mut first = Vec::new();
    // A file that cannot be read again is no Parquet file either.
    let _ = File::open(path).and_then(|file| file.take(64).read_to_end(&mut first));
    only_a_pointer(&first).map_or("not a Parquet file".to_owned(), |pointer| format!("it is {pointer}"))
}

/// The columns of these fields, each a column or a path that begins with one. None, which is all of them, where one is missing: the error
/// then names those that are there.
fn columns(schema: &Type, fields: &[&str]) -> Result<Option<Type>> {
    let all = schema.get_fields();
    let named = |name: &str| all.iter().position(|column| column.name() == name);
    let found = fields.iter().copied().map(|field| {
        let first = field.split('.').next().unwrap_or(field);
        named(field).or_else(|| named(first))
    });
    let Some(found) = found.collect::<Option<BTreeSet<usize>>>() else {
        return Ok(None);
    };
    let found = found.into_iter().map(|at| all[at].clone()).collect();
    let columns = Type::group_type_builder(schema.name()).with_fields(found);
    Ok(Some(columns.build()?))
}

/// Bytes that a value takes of memory, about.
fn size(value: &Value) -> usize {
    let below = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + size(value)).sum(),
    };
    size_of::<Value>() + below
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

    fn rows(fields: Option<&[&str]>, room: Room) -> Result<Vec<Row>> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/prompts/snappy.parquet");
        read_all(&file, fields, room)
    }

    #[test]
    fn a_file_that_unfolds_to_more_than_memory_holds_is_given_up_with_the_limit() {
        assert_eq!(rows(None, ROOM).unwrap().len(), 3);
        let refused = rows(None, Room { rows: 2, ..ROOM }).unwrap_err().to_string();
        assert!(refused.contains("more than 2 rows"), "{refused}");
        let refused = rows(None, Room { bytes: 500, ..ROOM }).unwrap_err().to_string();
        assert!(refused.contains("more than 500 bytes"), "{refused}");
    }

    #[test]
    fn columns_that_nobody_asks_for_are_not_read_unless_one_is_missing() {
        let names = |fields: &[&str]| -> Vec<String> {
            let rows = rows(Some(fields), ROOM).unwrap();
            rows[0].value.as_object().unwrap().keys().cloned().collect()
        };
        assert_eq!(names(&["answer", "reward_model.ground_truth", "answer"]).len(), 2);
        assert_eq!(names(&["question"]), ["question"]);
        let all = rows(None, ROOM).unwrap()[0].value.as_object().unwrap().len();
        assert_eq!(names(&["question", "nosuch"]).len(), all);
    }

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
