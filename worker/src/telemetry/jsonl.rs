//! Files of one JSON object per line: appended to, cut back on resume, read with torn lines skipped.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::run_dir::{settle, write_whole_by};

/// A file that grows by lines. A line is written by one call, so only a crash of the machine or a full disk tears one.
#[derive(Debug)]
pub(super) struct JsonLines {
    path: PathBuf,
    file: File,
    /// The last write failed, perhaps in the middle of a line.
    torn: bool,
}

#[derive(Deserialize)]
struct Stamp {
    step: u64,
}

impl JsonLines {
    /// Opens the file at its end, after dropping torn lines and the lines of steps later than `last_step`: a run that
    /// resumes from there writes those steps again. One that begins (0) evaluates before its first step, so that it keeps no
    /// line at all. The file is replaced whole, so a kill in between loses nothing.
    pub fn open(path: &Path, last_step: u64) -> Result<JsonLines> {
        cut(path, last_step)?;
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .with_context(|| format!("cannot open {} for writing", path.display()))?;
        Ok(JsonLines {
            path: path.to_owned(),
            file,
            torn: false,
        })
    }

    /// Adds one line.
    pub fn append(&mut self, record: &impl Serialize) -> Result<()> {
        self.append_all(std::slice::from_ref(record))
    }

    /// Adds one line per record.
    pub fn append_all(&mut self, records: &[impl Serialize]) -> Result<()> {
        // What a full disk tore must not take the next line with it.
        let mut lines = if self.torn { b"\n".to_vec() } else { Vec::new() };
        for record in records {
            serde_json::to_writer(&mut lines, record)
                .with_context(|| format!("cannot encode a line of {}", self.path.display()))?;
            lines.push(b'\n');
        }
        let written = self.file.write_all(&lines);
        self.torn = written.is_err();
        written.with_context(|| format!("cannot write {} bytes to {}", lines.len(), self.path.display()))
    }

    /// Makes the lines survive a loss of power.
    pub fn settle(&self) -> Result<()> {
        settle(&self.file, &self.path)
    }
}

fn cut(path: &Path, last_step: u64) -> Result<()> {
    // Only a regular file has a past to cut; a pipe or device is written to as it is.
    if !path.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Ok(());
    }
    let keeps = |line: &[u8]| {
        let stamp = || serde_json::from_slice::<Stamp>(line);
        last_step > 0 && line.ends_with(b"\n") && stamp().is_ok_and(|stamp| stamp.step <= last_step)
    };
    let mut keeps_all = true;
    let looked = each_line(path, |line| {
        keeps_all &= keeps(line);
        Ok(())
    });
    looked.with_context(|| format!("cannot read {}", path.display()))?;
    if keeps_all {
        return Ok(());
    }
    write_whole_by(path, |file| {
        each_line(path, |line| if keeps(line) { file.write_all(line) } else { Ok(()) })
    })
}

/// Shows every line with its end, one at a time: a file of samples may be larger than the memory.
fn each_line(path: &Path, mut show: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut file = BufReader::new(File::open(path)?);
    let mut line = Vec::new();
    while file.read_until(b'\n', &mut line)? > 0 {
        show(&line)?;
        line.clear();
    }
    Ok(())
}

/// What a file of lines holds.
#[derive(Debug)]
pub(crate) struct Lines<T> {
    /// The lines that could be read, in order.
    pub records: Vec<T>,
    /// How many could not: torn by a crash, or written by another version.
    pub unreadable: usize,
}

/// Reads every line; a file that is not there has none.
///
/// # Errors
/// When the file is there and cannot be read.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<Lines<T>> {
    let mut records = Vec::new();
    let unreadable = each(path, |record| records.push(record))?;
    Ok(Lines { records, unreadable })
}

/// Shows every line, one at a time, and says how many could not be read; a file that is not there has none.
///
/// # Errors
/// When the file is there and cannot be read.
pub(crate) fn each<T: DeserializeOwned>(path: &Path, mut show: impl FnMut(T)) -> Result<usize> {
    let mut unreadable = 0;
    let read = each_line(path, |line| {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        match serde_json::from_slice(line) {
            Ok(record) => show(record),
            Err(_) => unreadable += 1,
        }
        Ok(())
    });
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        read => read
            .map(|()| unreadable)
            .with_context(|| format!("cannot read {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn steps(path: &Path) -> Vec<u64> {
        read::<Stamp>(path)
            .unwrap()
            .records
            .iter()
            .map(|stamp| stamp.step)
            .collect()
    }

    #[test]
    fn a_resumed_file_has_one_line_per_step() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut first = JsonLines::open(&path, 0).unwrap();
        for step in 1..=7 {
            first.append(&json!({"step": step, "reward": 0.5})).unwrap();
        }
        let mut resumed = JsonLines::open(&path, 4).unwrap();
        for step in 5..=6 {
            resumed.append(&json!({"step": step})).unwrap();
        }
        assert_eq!(steps(&path), [1, 2, 3, 4, 5, 6]);
        assert!(
            std::fs::read_dir(folder.path()).unwrap().count() == 1,
            "nothing left aside"
        );
    }

    #[test]
    fn a_run_that_begins_keeps_no_evaluation_of_one_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("evaluation.jsonl");
        for _ in 0..2 {
            let mut file = JsonLines::open(&path, 0).unwrap();
            for step in [0, 20] {
                file.append(&json!({"step": step})).unwrap();
            }
        }
        assert_eq!(steps(&path), [0, 20]);
        JsonLines::open(&path, 10).unwrap();
        assert_eq!(steps(&path), [0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn a_torn_last_line_costs_that_line_only(count in 1u64..6, torn in 1usize..20) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("metrics.jsonl");
            let mut file = JsonLines::open(&path, 0).unwrap();
            for step in 1..=count {
                file.append(&json!({"step": step, "note": "a line of some length"})).unwrap();
            }
            let text = std::fs::read(&path).unwrap();
            std::fs::write(&path, &text[..text.len() - torn]).unwrap();
            let read = read::<Value>(&path).unwrap();
            // Torn by the newline alone, the line can still be read.
            prop_assert_eq!(read.records.len() as u64, if torn == 1 { count } else { count - 1 });
            let mut resumed = JsonLines::open(&path, u64::MAX).unwrap();
            resumed.append(&json!({"step": count})).unwrap();
            prop_assert_eq!(steps(&path), (1..=count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_full_disk_is_an_error_that_names_the_file() {
        let mut file = JsonLines::open(Path::new("/dev/full"), 0).unwrap();
        let error = format!("{:#}", file.append(&json!({"step": 1})).unwrap_err());
        assert!(
            error.contains("cannot write 11 bytes to /dev/full") && error.contains("No space left"),
            "{error}"
        );
    }

    #[test]
    fn a_device_that_keeps_nothing_settles_as_a_file_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        for path in [path.as_path(), Path::new("/dev/null")] {
            let mut file = JsonLines::open(path, 0).unwrap();
            file.append(&json!({"step": 1})).unwrap();
            file.settle().unwrap();
            file.append(&json!({"step": 2})).unwrap();
        }
        assert_eq!(steps(&path), [1, 2]);
    }

    #[test]
    fn a_line_after_a_torn_one_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut file = JsonLines::open(&path, 0).unwrap();
        file.append(&json!({"step": 1})).unwrap();
        // What a disk leaves that filled up in the middle of a line and has room again.
        file.file.write_all(b"{\"step\": 2, \"rew").unwrap();
        file.torn = true;
        file.append(&json!({"step": 3})).unwrap();
        assert_eq!(steps(&path), [1, 3]);
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("no such folder").join("metrics.jsonl");
        let error = format!("{:#}", JsonLines::open(&path, 0).unwrap_err());
        assert!(error.contains("no such folder/metrics.jsonl"), "{error}");
    }
}
