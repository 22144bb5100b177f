//! Files and folders that survive a loss of power.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::Context;

/// Writes a small file aside and renames it into place: it is there with all of its bytes, or as it was.
///
/// # Errors
/// When it cannot be written, naming it.
pub fn write_durably(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    write_durably_by(&path.with_extension("writing"), path, bytes)
}

/// As [`write_durably`], by way of the file `aside`: who else writes `path` at the same time has another.
///
/// # Errors
/// When it cannot be written, naming it.
pub fn write_durably_by(aside: &Path, path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let written = File::create(aside).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(aside, path)
    });
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Makes the names in a folder durable.
///
/// # Errors
/// When it cannot be opened or synced, naming it.
pub fn sync_folder(folder: &Path) -> anyhow::Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.with_context(|| format!("cannot make {} durable", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_cannot_be_made_durable_is_named() {
        let folder = tempfile::tempdir().unwrap();
        sync_folder(folder.path()).unwrap();
        let gone = folder.path().join("gone");
        let words = sync_folder(&gone).unwrap_err().to_string();
        assert!(words.contains(&gone.display().to_string()), "{words}");
    }
}
