//! Rows of a Parquet file, by the record interface (no Arrow).

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use half::f16;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::Type;
use serde_json::{Number, Value};

use super::Row;
use super::place::{At, name};
use crate::contained::contained;
use crate::hub::only_a_pointer;

/// What the rows of all files may still be: a file of a few kilobytes can stand for any number of them, each of any length.
pub(super) struct Room {
    rows: Budget,
    bytes: Budget,
}

/// So much of which so much is used.
struct Budget {
    most: usize,
    used: usize,
}

impl Default for Room {
    /// Sixteen million prompts are more than a run ever comes to, and 8 GiB of text more than a pod of its actor would hold twice.
    fn default() -> Self {
        Self::of(1 << 24, 8 << 30)
    }
}

impl Room {
    fn of(rows: usize, bytes: usize) -> Self {
        let budget = |most| Budget { most, used: 0 };
        Self {
            rows: budget(rows),
            bytes: budget(bytes),
        }
    }

    /// Uses some of it up for a row.
    fn take(&mut self, row: &Value) -> Result<()> {
        for (budget, taken, what) in [
            (&mut self.rows, 1, "rows"),
            (&mut self.bytes, size(row), "bytes of values"),
        ] {
            budget.used += taken;
            let most = budget.most;
            ensure!(
                budget.used <= most,
                "up to here there are more than {most} {what}: cut them to those that are needed"
            );
        }
        Ok(())
    }
}

/// All rows of a Parquet file, of the columns in which `fields` lie alone.
pub(super) fn read(path: &Path, fields: Option<&[&str]>, room: &mut Room) -> Result<Vec<Row>> {
    // The crate panics at a page without its dictionary, and at dates outside its calendar.
    contained(|| read_all(path, fields, room))
}

fn read_all(path: &Path, fields: Option<&[&str]>, room: &mut Room) -> Result<Vec<Row>> {
    let file = File::open(path).context("cannot open the file")?;
    let reader = SerializedFileReader::new(file).with_context(|| no_parquet(path))?;
    let schema = reader.metadata().file_metadata().schema();
    let columns = fields.map(|fields| columns(schema, fields)).transpose()?.flatten();
    let (mut rows, name) = (Vec::new(), name(path));
    for (index, row) in reader.get_row_iter(columns).context("cannot read rows")?.enumerate() {
        let at = At::row(index);
        let row = row.with_context(|| at.to_string())?;
        let fields = row.get_column_iter().map(|(name, field)| (name.clone(), value(field)));
        let value = Value::Object(fields.collect());
        room.take(&value).with_context(|| at.to_string())?;
        let place = at.in_file(&name);
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
        Field::Float16(number) => finite(shortest_half(*number)),
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
        Field::MapInternal(map) => {
            let entries = map.entries().iter().map(|(key, held)| (key_text(key), value(held)));
            Value::Object(entries.collect())
        }
        // The crate ends whole ones with a point: 42 of DECIMAL(38, 0), as warehouses write whole numbers, is "42.".
        Field::Decimal(_) => Value::from(field.to_string().trim_end_matches('.')),
        // Dates and times: the text that Parquet's own tools print.
        other => Value::from(other.to_string()),
    }
}

/// The key of a map as that of an object, which is a text.
fn key_text(key: &Field) -> String {
    match value(key) {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

fn shortest(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::NAN)
}

/// Five digits tell any two of half precision apart. A whole one stays as it is: 65504 is no 65500.
fn shortest_half(number: f16) -> f64 {
    let exact = f64::from(number);
    if exact.fract() == 0.0 {
        return exact;
    }
    let rounded = |decimals: usize| format!("{exact:.decimals$e}").parse::<f64>().ok();
    let mut all = (0..5).filter_map(rounded);
    // Not by the processor's own instruction, which rounds twice on some.
    all.find(|rounded| f16::from_f64_const(*rounded) == number)
        .unwrap_or(exact)
}

fn finite(number: f64) -> Value {
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rows(fields: Option<&[&str]>, room: &mut Room) -> Result<Vec<Row>> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/prompts/snappy.parquet");
        read_all(&file, fields, room)
    }

    #[test]
    fn files_that_unfold_to_more_than_memory_holds_are_given_up_with_the_limit() {
        let mut room = Room::of(5, 1 << 20);
        assert_eq!(rows(None, &mut room).unwrap().len(), 3);
        let refused = format!("{:#}", rows(None, &mut room).unwrap_err());
        assert!(
            refused.starts_with("row 3: up to here there are more than 5 rows"),
            "{refused}"
        );
        let refused = format!("{:#}", rows(None, &mut Room::of(5, 500)).unwrap_err());
        assert!(refused.contains("more than 500 bytes"), "{refused}");
    }

    #[test]
    fn columns_that_nobody_asks_for_are_not_read_unless_one_is_missing() {
        let names = |fields: &[&str]| -> Vec<String> {
            let rows = rows(Some(fields), &mut Room::default()).unwrap();
            rows[0].value.as_object().unwrap().keys().cloned().collect()
        };
        assert_eq!(names(&["answer", "reward_model.ground_truth", "answer"]).len(), 2);
        assert_eq!(names(&["question"]), ["question"]);
        let all = rows(None, &mut Room::default()).unwrap()[0]
            .value
            .as_object()
            .unwrap()
            .len();
        assert_eq!(names(&["question", "nosuch"]).len(), all);
    }

    #[test]
    fn a_whole_decimal_has_no_point_and_a_map_is_an_object() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/prompts/warehouse.parquet");
        let rows = read_all(&file, None, &mut Room::default()).unwrap();
        let values: Vec<Value> = rows.into_iter().map(|row| row.value).collect();
        let wanted = [
            json!({"whole": "42", "small": "-7", "price": "1.50", "meta": {"answer": "42", "none": null}}),
            json!({"whole": "-1000", "small": "0", "price": "-0.05", "meta": {}}),
            json!({"whole": null, "small": null, "price": null, "meta": null}),
        ];
        assert_eq!(values, wanted);
    }

    #[test]
    fn a_number_of_half_precision_is_the_decimal_that_was_written() {
        for written in [0.0, 0.1, -0.3, 0.25, 7.31, 0.3333, 42.0, 12344.0, 65504.0, 6e-8] {
            assert_eq!(value(&Field::Float16(f16::from_f64(written))), json!(written));
        }
        for none in [f16::NAN, f16::INFINITY, f16::NEG_INFINITY] {
            assert_eq!(value(&Field::Float16(none)), Value::Null);
        }
        // Whatever it is, it is no other one.
        for bits in 0..=u16::MAX {
            let number = f16::from_bits(bits);
            let same = f16::from_f64_const(shortest_half(number)) == number;
            assert!(same || number.is_nan(), "{number}");
        }
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
