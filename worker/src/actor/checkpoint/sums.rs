//! Size and digest of a checkpoint's files. The rank that writes a file computes both as it writes, so no rank reads back a file of
//! another rank.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Files that are hashed at once: one core hashes 1 to 2 GB/s, and disks give more.
const AT_ONCE: usize = 8;

/// What a file is known by.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub(super) struct FileEntry {
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

/// Files by their names in a checkpoint's folder.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
pub struct Files(pub(super) BTreeMap<String, FileEntry>);

impl Files {
    /// Those at `paths` in the checkpoint's folder `root`. `done` is called after each, by several threads.
    ///
    /// # Errors
    /// When one cannot be read, naming it.
    pub fn of(root: &Path, paths: &[PathBuf], done: impl Fn() + Sync) -> Result<Self> {
        let hashed = several_at_once(paths, |path| {
            let hashed = hash(path);
            done();
            hashed
        });
        let mut files = BTreeMap::new();
        for (path, hashed) in paths.iter().zip(hashed) {
            let hashed = hashed.with_context(|| format!("cannot read {}", path.display()))?;
            files.insert(path.strip_prefix(root)?.to_string_lossy().into_owned(), hashed);
        }
        Ok(Self(files))
    }

    /// These too.
    pub fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }
}

/// All files in `folder` and in folders below it.
///
/// # Errors
/// When a folder cannot be listed, naming it.
pub fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    Ok(files)
}

pub(super) fn hash(path: &Path) -> io::Result<FileEntry> {
    let mut file = File::open(path)?;
    let (mut digest, mut bytes, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 20]);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        digest.update(&buffer[..read]);
        bytes += read as u64;
    }
    let sha256 = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(FileEntry { bytes, sha256 })
}

/// What `work` makes of each item, in their order.
pub(super) fn several_at_once<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, made) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(items.len())));
    let take = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(number) else { return };
            let one = work(item);
            made.lock().push((number, one));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..items.len().min(AT_ONCE) {
            scope.spawn(take);
        }
    });
    let mut made = made.into_inner();
    made.sort_by_key(|(number, _)| *number);
    made.into_iter().map(|(_, one)| one).collect()
}
