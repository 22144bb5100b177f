//! TensorBoard event files, encoded by hand: records framed as TensorFlow's `core/lib/io/record_writer.h` describes,
//! holding `Event` messages of `core/util/event.proto`. Two formats of a page each; a protobuf dependency would be larger.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};

use super::run_dir::settle;

/// What the names of event files begin with.
const NAME: &str = "events.out.tfevents.";

/// A growing event file.
#[derive(Debug)]
pub(super) struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Makes a new event file in `folder`. TensorBoard drops what earlier files of the folder say about steps after
    /// `completed_steps`, all where that is 0: those run again.
    pub fn create(folder: &Path, completed_steps: u64) -> Result<EventFile> {
        static FILES: AtomicU32 = AtomicU32::new(0);
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let host = hostname::get()
            .unwrap_or_default()
            .to_string_lossy()
            .replace(['/', '\0'], "-");
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        // TensorBoard reads files in the order of their names, hence the padding.
        // A clock may have gone backwards since the last one was made.
        let second = newest(folder)?.map_or(0, |newest| newest.saturating_add(1));
        let second = second.max(now() as u64);
        let name = format!("{NAME}{second:010}.{host}.{}.{number}", std::process::id());
        let path = folder.join(name);
        let file = OpenOptions::new()
            .create_new(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        let mut events = EventFile { path, file };
        events.write(&file_version())?;
        // A run that begins has an evaluation before its first step.
        let first = if completed_steps > 0 { completed_steps + 1 } else { 0 };
        events.write(&session_start(first))?;
        Ok(events)
    }

    /// Adds one event with a scalar per tag.
    pub fn scalars(&mut self, step: u64, values: &[(String, f64)]) -> Result<()> {
        self.write(&scalars(step, values))
    }

    /// Makes the events survive a loss of power.
    pub fn settle(&self) -> Result<()> {
        settle(&self.file, &self.path)
    }

    fn write(&mut self, event: &[u8]) -> Result<()> {
        self.file
            .write_all(&frame(event))
            .with_context(|| format!("cannot write to {}", self.path.display()))
    }
}

/// The second in the name of the last event file in `folder`; None where there is none.
fn newest(folder: &Path) -> Result<Option<u64>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let second = |name: &str| name.strip_prefix(NAME)?.split('.').next()?.parse::<u64>().ok();
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    Ok(names.filter_map(|name| second(name.to_str()?)).max())
}

fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}

/// `Event { wall_time = 1, step = 2 }`; the caller adds what happened.
fn event(step: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    fixed64(&mut bytes, 1, now());
    varint_field(&mut bytes, 2, step);
    bytes
}

/// `Event.file_version = 3`: the first record of every file.
fn file_version() -> Vec<u8> {
    let mut bytes = event(0);
    bytes_field(&mut bytes, 3, b"brain.Event:2");
    bytes
}

/// `Event.session_log = 7 { status = 1: START = 1 }` at the first step to come.
fn session_start(step: u64) -> Vec<u8> {
    let mut bytes = event(step);
    bytes_field(&mut bytes, 7, &[1 << 3, 1]);
    bytes
}

/// `Event.summary = 5 { value = 1 { tag = 1, simple_value = 2 } }`.
fn scalars(step: u64, values: &[(String, f64)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, value) in values {
        let mut scalar = Vec::new();
        bytes_field(&mut scalar, 1, tag.as_bytes());
        scalar.push(2 << 3 | 5);
        scalar.extend((*value as f32).to_le_bytes());
        bytes_field(&mut summary, 1, &scalar);
    }
    let mut bytes = event(step);
    bytes_field(&mut bytes, 5, &summary);
    bytes
}

fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn varint_field(bytes: &mut Vec<u8>, field: u8, value: u64) {
    bytes.push(field << 3);
    varint(bytes, value);
}

fn fixed64(bytes: &mut Vec<u8>, field: u8, value: f64) {
    bytes.push(field << 3 | 1);
    bytes.extend(value.to_le_bytes());
}

fn bytes_field(bytes: &mut Vec<u8>, field: u8, contents: &[u8]) {
    bytes.push(field << 3 | 2);
    varint(bytes, contents.len() as u64);
    bytes.extend(contents);
}

/// Length, checksum of the length, contents, checksum of the contents.
fn frame(contents: &[u8]) -> Vec<u8> {
    let length = (contents.len() as u64).to_le_bytes();
    let mut bytes = Vec::with_capacity(contents.len() + 16);
    bytes.extend(length);
    bytes.extend(masked_crc32c(&length).to_le_bytes());
    bytes.extend(contents);
    bytes.extend(masked_crc32c(contents).to_le_bytes());
    bytes
}

/// Rotated and offset as in `crc32c.h`, since a checksum of data that holds checksums is weak.
fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli, RFC 3720 appendix B.4), bit-reflected.
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut crc = byte as u32;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    };
    !bytes
        .iter()
        .fold(!0, |crc, byte| crc >> 8 ^ TABLE[(crc as u8 ^ byte) as usize])
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A protobuf field: its number and contents.
    enum Field<'a> {
        Varint(u64),
        Fixed64([u8; 8]),
        Fixed32([u8; 4]),
        Bytes(&'a [u8]),
    }

    fn read_varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return value;
            }
        }
        panic!("a varint of more than ten bytes");
    }

    fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
        let (head, tail) = bytes.split_at(count);
        *bytes = tail;
        head
    }

    fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = read_varint(&mut bytes);
            let field = match key & 7 {
                0 => Field::Varint(read_varint(&mut bytes)),
                1 => Field::Fixed64(take(&mut bytes, 8).try_into().unwrap()),
                2 => {
                    let length = read_varint(&mut bytes) as usize;
                    Field::Bytes(take(&mut bytes, length))
                }
                5 => Field::Fixed32(take(&mut bytes, 4).try_into().unwrap()),
                other => panic!("wire type {other}"),
            };
            fields.push((key >> 3, field));
        }
        fields
    }

    /// The contents of every record, checksums checked.
    fn records(mut bytes: &[u8]) -> Vec<&[u8]> {
        let mut records = Vec::new();
        while !bytes.is_empty() {
            let length = take(&mut bytes, 8);
            assert_eq!(take(&mut bytes, 4), masked_crc32c(length).to_le_bytes());
            let contents = take(&mut bytes, u64::from_le_bytes(length.try_into().unwrap()) as usize);
            assert_eq!(take(&mut bytes, 4), masked_crc32c(contents).to_le_bytes());
            records.push(contents);
        }
        records
    }

    /// (step, tag, value) of every scalar in the folder's files.
    pub fn read_scalars(folder: &Path) -> Vec<(u64, String, f32)> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            for record in records(&bytes) {
                let event = fields(record);
                let step = event.iter().find_map(|field| match field {
                    (2, Field::Varint(step)) => Some(*step),
                    _ => None,
                });
                for (_, summary) in event.iter().filter(|(number, _)| *number == 5) {
                    let Field::Bytes(summary) = summary else {
                        panic!("a summary is a message")
                    };
                    for (_, value) in fields(summary) {
                        let Field::Bytes(value) = value else {
                            panic!("a value is a message")
                        };
                        let (mut tag, mut scalar) = (String::new(), f32::NAN);
                        for field in fields(value) {
                            match field {
                                (1, Field::Bytes(text)) => tag = String::from_utf8(text.to_vec()).unwrap(),
                                (2, Field::Fixed32(bits)) => scalar = f32::from_le_bytes(bits),
                                (number, _) => panic!("field {number} of a scalar"),
                            }
                        }
                        found.push((step.unwrap(), tag, scalar));
                    }
                }
            }
        }
        found
    }

    #[test]
    fn crc32c_agrees_with_the_published_vectors() {
        // RFC 3720 appendix B.4 and the usual check value.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn what_is_written_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(folder.path(), 0).unwrap();
        file.scalars(1, &[("ppo/reward".into(), 0.25), ("ppo/kl".into(), f64::NAN)])
            .unwrap();
        file.scalars(300, &[("ppo/reward".into(), -3.5)]).unwrap();
        let read = read_scalars(folder.path());
        assert_eq!(read.len(), 3);
        assert_eq!(read[0], (1, "ppo/reward".into(), 0.25));
        assert!(read[1].2.is_nan());
        assert_eq!(read[2], (300, "ppo/reward".into(), -3.5));
    }

    #[test]
    fn a_file_starts_with_its_version_and_with_the_first_step_that_counts_from_here() {
        for (completed, first) in [(0, 0), (40, 41)] {
            let folder = tempfile::tempdir().unwrap();
            let file = EventFile::create(folder.path(), completed).unwrap();
            let bytes = std::fs::read(&file.path).unwrap();
            let records = records(&bytes);
            let version = fields(records[0]);
            assert!(matches!(version[0], (1, Field::Fixed64(time)) if f64::from_le_bytes(time) > 1e9));
            assert!(matches!(version[2], (3, Field::Bytes(b"brain.Event:2"))));
            let start = fields(records[1]);
            assert!(matches!(start[1], (2, Field::Varint(step)) if step == first));
            assert!(matches!(start[2], (7, Field::Bytes([8, 1]))));
        }
    }

    #[test]
    fn a_file_that_is_made_after_the_clock_went_back_stands_behind_the_last_one() {
        let folder = tempfile::tempdir().unwrap();
        let last = folder.path().join("events.out.tfevents.9000000000.host.1.0");
        std::fs::write(&last, "").unwrap();
        let file = EventFile::create(folder.path(), 4).unwrap();
        assert!(file.path > last, "{}", file.path.display());
    }

    #[test]
    fn two_files_of_one_process_and_second_have_different_names() {
        let folder = tempfile::tempdir().unwrap();
        EventFile::create(folder.path(), 0).unwrap();
        EventFile::create(folder.path(), 0).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
