//! What a checkpoint says of itself: the state of the run, and size and digest of each file. Written last, it commits.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::actor::durable::{sync_folder, write_durably};

const MANIFEST: &str = "manifest.json";
const FORMAT: u32 = 2;

/// What a run needs to go on besides tensors.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Steps completed: the policy version of the weights beside it.
    pub step: u64,
    /// KL coefficient the next step uses.
    pub kl_coefficient: f64,
    /// Updates of the actor's optimizer.
    pub actor_updates: u64,
    /// Updates of the critic's optimizer.
    pub critic_updates: u64,
    /// What "best" is judged by: the held-out score of these weights, where there are held-out prompts and this step was
    /// evaluated; where there are none, the mean score of the samples that these weights drew for a later step, from when it is known.
    pub quality: Option<f64>,
    /// The run's configuration, to refuse a resume under another one.
    pub run_config: serde_json::Value,
}

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

#[derive(Debug, Deserialize, Serialize, PartialEq)]
struct FileEntry {
    bytes: u64,
    sha256: String,
}

/// Makes every file in `folder` durable and writes the manifest that names them.
pub(super) fn commit(folder: &Path, state: &State) -> anyhow::Result<()> {
    let manifest = Manifest {
        format: FORMAT,
        state: state.clone(),
        files: hash_all(folder)?,
    };
    manifest.write(folder)
}

/// Gives a checkpoint another quality.
pub(super) fn judge(folder: &Path, quality: f64) -> anyhow::Result<()> {
    let mut manifest = read(folder)?;
    match manifest.state.quality.replace(quality) {
        Some(known) if known == quality => Ok(()),
        _ => manifest.write(folder),
    }
}

/// That of a checkpoint.
pub(super) fn read(folder: &Path) -> anyhow::Result<Manifest> {
    let text = fs::read(folder.join(MANIFEST)).with_context(|| format!("{MANIFEST} cannot be read"))?;
    let manifest: Manifest = serde_json::from_slice(&text).with_context(|| format!("{MANIFEST} is damaged"))?;
    ensure!(
        manifest.format == FORMAT,
        "it has format {}, this version reads format {FORMAT}",
        manifest.format
    );
    Ok(manifest)
}

/// The state of a checkpoint whose files are all as they were written.
pub(super) fn verify(folder: &Path) -> anyhow::Result<State> {
    let manifest = read(folder)?;
    for (name, entry) in &manifest.files {
        // A damaged name may lead anywhere: to a device that never ends, say.
        let inside = Path::new(name)
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        ensure!(inside, "{MANIFEST} names {name:?}, which is no file of the checkpoint");
        let found = hash(&folder.join(name)).with_context(|| format!("{name} cannot be read"))?;
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

fn hash_all(root: &Path) -> anyhow::Result<BTreeMap<String, FileEntry>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            File::open(&path)?
                .sync_all()
                .with_context(|| format!("cannot make {} durable", path.display()))?;
            let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
            files.insert(name, hash(&path)?);
        }
        sync_folder(&folder)?;
    }
    Ok(files)
}

fn hash(path: &Path) -> io::Result<FileEntry> {
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
