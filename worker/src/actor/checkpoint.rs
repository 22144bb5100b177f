//! Checkpoints: a folder a step, complete or absent.
//!
//! Files are written aside, hashed, made durable and named by one manifest; then the folder is renamed into place. A process
//! killed at any moment leaves either the old set of checkpoints or the new one. Everything random in a run is a function of
//! (seed, step), so the step's number is all a checkpoint needs to know of it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::fence::{Fence, Owner};

const MANIFEST: &str = "manifest.json";
const WRITING: &str = ".writing-";
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
    /// What "best" is judged by: the last held-out score, else the step's mean score.
    pub quality: Option<f64>,
    /// The run's configuration, to refuse a resume under another one.
    pub run_config: serde_json::Value,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    format: u32,
    state: State,
    files: BTreeMap<String, FileEntry>,
}

#[derive(Debug, Deserialize, Serialize, PartialEq)]
struct FileEntry {
    bytes: u64,
    sha256: String,
}

/// A checkpoint whose files were all found intact.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub struct Verified {
    /// Its folder.
    pub folder: PathBuf,
    /// Its state.
    pub state: State,
}

/// The checkpoints of a run.
#[derive(Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    keep: usize,
    keep_best: bool,
    fence: Option<Fence>,
}

impl Checkpoints {
    /// Checkpoints in `folder`, of which the newest `keep` stay, and the best one where `keep_best`.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn open(folder: PathBuf, keep: usize, keep_best: bool) -> anyhow::Result<Self> {
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make the checkpoint folder {}", folder.display()))?;
        Ok(Self {
            folder,
            keep: keep.max(1),
            keep_best,
            fence: None,
        })
    }

    /// Takes the folder for one attempt of the run: an older one can write nothing from now on.
    ///
    /// # Errors
    /// [`Superseded`](super::fence::Superseded) when a newer attempt was here; when the folder cannot be written.
    pub fn fenced(self, owner: Owner) -> anyhow::Result<Self> {
        let fence = Some(Fence::take(&self.folder, owner)?);
        Ok(Self { fence, ..self })
    }

    /// Ranks of an older attempt may still write; not into what this one commits.
    fn aside(&self, name: &str) -> String {
        let attempt = self.fence.as_ref().map_or(1, Fence::attempt);
        format!("{WRITING}{name}-{attempt}")
    }

    fn check_fence(&self) -> anyhow::Result<()> {
        self.fence.as_ref().map_or(Ok(()), Fence::check)
    }

    /// Commits a checkpoint of `state`; `write` puts its files into the folder it is given.
    ///
    /// # Errors
    /// When a file cannot be written; earlier checkpoints are untouched.
    pub fn save(&self, state: State, write: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<PathBuf> {
        self.check_fence()?;
        let name = folder_name(state.step);
        let (aside, target) = (self.folder.join(self.aside(&name)), self.folder.join(&name));
        remove(&aside)?;
        fs::create_dir(&aside).with_context(|| format!("cannot make {}", aside.display()))?;
        write(&aside).with_context(|| {
            format!(
                "cannot write the checkpoint of step {} in {}",
                state.step,
                aside.display()
            )
        })?;
        let files = hash_all(&aside)?;
        let manifest = serde_json::to_vec_pretty(&Manifest {
            format: FORMAT,
            state,
            files,
        })?;
        write_durably(&aside.join(MANIFEST), &manifest)?;
        sync_folder(&aside)?;
        // Hashing took a while: another attempt may have begun.
        self.check_fence()?;
        remove(&target)?;
        fs::rename(&aside, &target).with_context(|| format!("cannot move the checkpoint to {}", target.display()))?;
        sync_folder(&self.folder)?;
        self.prune()?;
        Ok(target)
    }

    /// The newest checkpoint whose files are intact; None when there is no checkpoint at all. `note` is told of damaged ones.
    ///
    /// # Errors
    /// When there are checkpoints but none is intact.
    pub fn latest(&self, mut note: impl FnMut(&str)) -> anyhow::Result<Option<Verified>> {
        let mut problems = Vec::new();
        for (_, folder) in self.list()?.into_iter().rev() {
            match verify(&folder) {
                Ok(state) => return Ok(Some(Verified { folder, state })),
                Err(error) => {
                    let problem = format!("checkpoint {} is not usable: {error:#}", folder.display());
                    note(&problem);
                    problems.push(problem);
                }
            }
        }
        ensure!(
            problems.is_empty(),
            "{}\nno usable checkpoint is left in {}; move it away to start afresh",
            problems.join("\n"),
            self.folder.display()
        );
        Ok(None)
    }

    /// Deletes every checkpoint.
    ///
    /// # Errors
    /// When a folder cannot be deleted.
    pub fn clear(&self) -> anyhow::Result<()> {
        self.list()?.iter().try_for_each(|(_, folder)| remove(folder))
    }

    fn list(&self) -> anyhow::Result<BTreeMap<u64, PathBuf>> {
        let entries = fs::read_dir(&self.folder).with_context(|| format!("cannot list {}", self.folder.display()))?;
        let mut found = BTreeMap::new();
        for entry in entries {
            let path = entry?.path();
            let step = path
                .file_name()
                .and_then(|name| name.to_str())
                .and_then(|name| name.strip_prefix("step-"));
            if let Some(step) = step.and_then(|step| step.parse().ok()) {
                found.insert(step, path);
            }
        }
        Ok(found)
    }

    fn prune(&self) -> anyhow::Result<()> {
        let all = self.list()?;
        let best = if self.keep_best { best(&all) } else { None };
        let old = all.len().saturating_sub(self.keep);
        for (step, folder) in all.into_iter().take(old) {
            if Some(step) != best {
                remove(&folder)?;
            }
        }
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(WRITING) {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }
}

/// The step with the highest quality; of equals the newest.
fn best(all: &BTreeMap<u64, PathBuf>) -> Option<u64> {
    let quality = |folder: &Path| {
        read_manifest(folder)
            .ok()?
            .state
            .quality
            .filter(|quality| quality.is_finite())
    };
    all.iter()
        .filter_map(|(step, folder)| Some((*step, quality(folder)?)))
        .max_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)))
        .map(|(step, _)| step)
}

fn folder_name(step: u64) -> String {
    format!("step-{step:08}")
}

fn read_manifest(folder: &Path) -> anyhow::Result<Manifest> {
    let text = fs::read(folder.join(MANIFEST)).with_context(|| format!("{MANIFEST} cannot be read"))?;
    let manifest: Manifest = serde_json::from_slice(&text).with_context(|| format!("{MANIFEST} is damaged"))?;
    ensure!(
        manifest.format == FORMAT,
        "it has format {}, this version reads format {FORMAT}",
        manifest.format
    );
    Ok(manifest)
}

fn verify(folder: &Path) -> anyhow::Result<State> {
    let manifest = read_manifest(folder)?;
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

/// Writes a small file aside and renames it into place: it is there with all of its bytes, or as it was.
///
/// # Errors
/// When it cannot be written, naming it.
pub fn write_durably(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let aside = path.with_extension("writing");
    let written = File::create(&aside).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&aside, path)
    });
    written.with_context(|| format!("cannot write {}", path.display()))
}

fn sync_folder(folder: &Path) -> anyhow::Result<()> {
    File::open(folder)?
        .sync_all()
        .with_context(|| format!("cannot make {} durable", folder.display()))
}

fn remove(folder: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot delete {}", folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(step: u64, quality: Option<f64>) -> State {
        State {
            step,
            kl_coefficient: 0.1,
            actor_updates: step,
            critic_updates: 0,
            quality,
            run_config: serde_json::Value::Null,
        }
    }

    fn write(folder: &Path) -> anyhow::Result<()> {
        fs::create_dir(folder.join("policy"))?;
        fs::write(folder.join("policy/weights"), b"weights")?;
        Ok(fs::write(folder.join("optimizer"), b"moments")?)
    }

    fn steps(checkpoints: &Checkpoints) -> Vec<u64> {
        checkpoints.list().unwrap().into_keys().collect()
    }

    #[test]
    fn the_newest_and_the_best_stay_and_the_rest_goes() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(folder.path().join("checkpoints"), 2, true).unwrap();
        for (step, quality) in [(1, 0.1), (2, 0.9), (3, f64::NAN), (4, 0.3), (5, 0.2)] {
            checkpoints.save(state(step, Some(quality)), write).unwrap();
        }
        assert_eq!(steps(&checkpoints), [2, 4, 5]);
        assert_eq!(checkpoints.latest(|_| ()).unwrap().unwrap().state, state(5, Some(0.2)));
    }

    #[test]
    fn a_save_that_fails_or_is_killed_leaves_the_old_checkpoint_usable() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(folder.path().into(), 3, false).unwrap();
        checkpoints.save(state(1, None), write).unwrap();
        let failed = checkpoints.save(state(2, None), |folder| {
            write(folder)?;
            bail!("disk full")
        });
        assert!(format!("{:#}", failed.unwrap_err()).contains("disk full"));
        assert!(folder.path().join(".writing-step-00000002-1").exists());
        assert_eq!(checkpoints.latest(|_| ()).unwrap().unwrap().state.step, 1);
        checkpoints.save(state(3, None), write).unwrap();
        assert!(!folder.path().join(".writing-step-00000002-1").exists());
    }

    #[test]
    fn a_damaged_checkpoint_is_passed_over_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(folder.path().into(), 3, false).unwrap();
        checkpoints.save(state(1, None), write).unwrap();
        let newest = checkpoints.save(state(2, None), write).unwrap();
        fs::write(newest.join("policy/weights"), b"weightz").unwrap();
        let mut notes = Vec::new();
        let found = checkpoints.latest(|note| notes.push(note.to_owned())).unwrap().unwrap();
        assert_eq!(found.state.step, 1);
        assert!(notes[0].contains("policy/weights was changed"), "{notes:?}");

        fs::remove_file(found.folder.join("optimizer")).unwrap();
        let error = checkpoints.latest(|_| ()).unwrap_err().to_string();
        assert!(
            error.contains("optimizer cannot be read") && error.contains("no usable checkpoint"),
            "{error}"
        );
    }

    #[test]
    fn a_stale_attempt_commits_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let attempt = |attempt| Owner {
            run: "a".into(),
            attempt,
        };
        let open = || Checkpoints::open(folder.path().into(), 3, false).unwrap();
        let stale = open().fenced(attempt(1)).unwrap();
        stale.save(state(1, None), write).unwrap();
        let overtaken = stale.save(state(2, None), |folder| {
            open().fenced(attempt(2))?;
            write(folder)
        });
        assert!(overtaken.unwrap_err().to_string().contains("has taken over"));
        assert_eq!(stale.latest(|_| ()).unwrap().unwrap().state.step, 1);
    }

    #[test]
    fn saving_a_step_again_replaces_it() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(folder.path().into(), 3, false).unwrap();
        checkpoints.save(state(1, None), write).unwrap();
        checkpoints.save(state(1, Some(1.0)), write).unwrap();
        assert_eq!(checkpoints.latest(|_| ()).unwrap().unwrap().state.quality, Some(1.0));
    }
}
