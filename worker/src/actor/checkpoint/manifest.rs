//! What a checkpoint says of itself: the state of the run, and size and digest of each file. Written last, it commits.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};

use super::sums::{FileEntry, Files, files_below, hash, several_at_once};
use crate::durable::{sync_folder, write_durably};
use crate::outcome::OtherFormat;
use crate::ranks::deal::deal;
use crate::run_state::State;

const MANIFEST: &str = "manifest.json";
const FORMAT: u32 = 2;

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Manifest {
    format: u32,
    pub(super) state: State,
    files: BTreeMap<String, FileEntry>,
}

impl Manifest {
    fn write(&self, folder: &Path) -> anyhow::Result<()> {
        write_durably(&folder.join(MANIFEST), &serde_json::to_vec_pretty(self)?)?;
        sync_folder(folder)
    }
}

#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// Makes every file in `folder` durable and writes the manifest that names them; `known` are those that are hashed.
pub(super) fn commit(folder: &Path, state: &State, known: Files) -> anyhow::Result<()> {
    let manifest = Manifest {
        format: FORMAT,
        state: state.clone(),
        files: settle(folder, known)?.0,
    };
    manifest.write(folder)
}

/// Writes down what became known of a checkpoint's weights after it was made.
pub(super) fn amend(folder: &Path, learn: impl FnOnce(&mut State)) -> anyhow::Result<()> {
    let mut manifest = read(folder)?;
    let before = manifest.state.clone();
    learn(&mut manifest.state);
    match manifest.state == before {
        true => Ok(()),
        false => manifest.write(folder),
    }
}

/// That of a checkpoint.
pub(super) fn read(folder: &Path) -> anyhow::Result<Manifest> {
    let text = fs::read(folder.join(MANIFEST)).with_context(|| format!("{MANIFEST} cannot be read"))?;
    let damaged = || format!("{MANIFEST} is damaged");
    // Another format may have other fields.
    let Format { format } = serde_json::from_slice(&text).with_context(damaged)?;
    if format != FORMAT {
        return Err(OtherFormat {
            found: format,
            read: FORMAT,
        }
        .into());
    }
    serde_json::from_slice(&text).with_context(damaged)
}

/// The state of a checkpoint whose files are all as they were written. `found` is what other ranks have hashed of them; what is not there, or
/// not as it was written, is looked at here: what this process sees is what counts.
pub(super) fn verify(folder: &Path, found: &Files) -> anyhow::Result<State> {
    let manifest = inside(folder)?;
    let unknown = manifest
        .files
        .iter()
        .filter(|(name, entry)| found.0.get(*name) != Some(*entry));
    let names: Vec<&String> = unknown.map(|(name, _)| name).collect();
    let hashed = several_at_once(&names, |name| hash(&folder.join(name)));
    for (name, found) in names.into_iter().zip(hashed) {
        let found = found.with_context(|| format!("{name} cannot be read"))?;
        let entry = &manifest.files[name];
        if &found != entry {
            bail!(
                "{name} was changed: {} bytes sha256 {}, the manifest says {} bytes {}",
                found.bytes,
                found.sha256,
                entry.bytes,
                entry.sha256
            );
        }
    }
    Ok(manifest.state)
}

/// What one rank of `count` finds of a checkpoint's files, in its share of them: as many bytes as the others', as far as can be. What it cannot
/// read is not among them. `done` is called after each file, by several threads.
pub fn hash_share(folder: &Path, (rank, count): (usize, usize), done: impl Fn() + Sync) -> Files {
    // Whatever is wrong with it, rank 0 finds it as well, and says so.
    let Ok(manifest) = inside(folder) else {
        return Files::default();
    };
    let sizes: Vec<usize> = manifest.files.values().map(|entry| entry.bytes as usize).collect();
    let names: Vec<&String> = manifest.files.keys().collect();
    let hands = deal(&sizes, count);
    let share: Vec<&String> = hands.get(rank).into_iter().flatten().map(|&at| names[at]).collect();
    let hashed = several_at_once(&share, |name| {
        let hashed = hash(&folder.join(name));
        done();
        hashed
    });
    let read = share.into_iter().cloned().zip(hashed);
    Files(read.filter_map(|(name, hashed)| Some((name, hashed.ok()?))).collect())
}

/// A manifest whose names are those of files in the checkpoint's folder: a damaged one may lead anywhere, to a device that never ends, say.
fn inside(folder: &Path) -> anyhow::Result<Manifest> {
    let manifest = read(folder)?;
    for name in manifest.files.keys() {
        let inside = Path::new(name)
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        ensure!(inside, "{MANIFEST} names {name:?}, which is no file of the checkpoint");
    }
    Ok(manifest)
}

/// Whether an error of [`verify`] says that files are missing or not as they were written. A disk or a file system that does not answer is
/// none: the same files may be there in a moment.
pub(super) fn is_damage(error: &anyhow::Error) -> bool {
    let is_lost = |error: &io::Error| {
        use io::ErrorKind::{InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound, UnexpectedEof};
        // The last two are of names that a damaged manifest has.
        matches!(
            error.kind(),
            NotFound | UnexpectedEof | NotADirectory | IsADirectory | InvalidInput | InvalidFilename
        )
    };
    !error.is::<OtherFormat>() && error.chain().filter_map(|cause| cause.downcast_ref()).all(is_lost)
}

/// Makes all files durable, and hashes those that nobody has hashed.
fn settle(root: &Path, mut known: Files) -> anyhow::Result<Files> {
    let (mut unknown, mut missing) = (Vec::new(), known.0.clone());
    let files = files_below(root)?;
    for path in &files {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        file.sync_all()
            .with_context(|| format!("cannot make {} durable", path.display()))?;
        let Some(entry) = missing.remove(&*path.strip_prefix(root)?.to_string_lossy()) else {
            unknown.push(path.clone());
            continue;
        };
        let bytes = file.metadata()?.len();
        ensure!(
            bytes == entry.bytes,
            "{} has {bytes} bytes, and whoever wrote it wrote {}",
            path.display(),
            entry.bytes
        );
    }
    ensure!(missing.is_empty(), "{} lacks {:?}", root.display(), missing.keys());
    folders_of(root, &files).into_iter().try_for_each(sync_folder)?;
    known.extend(Files::of(root, &unknown, || ())?);
    Ok(known)
}

/// The folder of a checkpoint and those below it that hold its files.
fn folders_of<'a>(root: &'a Path, files: &'a [PathBuf]) -> BTreeSet<&'a Path> {
    let above = |file: &'a PathBuf| file.ancestors().skip(1).take_while(|folder| folder.starts_with(root));
    files.iter().flat_map(above).chain([root]).collect()
}
