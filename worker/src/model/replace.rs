//! Replaces a model's folder by another one, as a whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

/// Looks whether a model of `bytes` could be written to `target`, before time goes into making it.
///
/// # Errors
/// When `target` is something that a model must not replace, or cannot be written, or the disk has too little room.
pub fn probe(target: &Path, bytes: u64) -> Result<()> {
    let target = &behind_links(target);
    let place = Place::of(target)?;
    if target.exists() {
        ensure!(
            target.is_dir(),
            "{} is a file; a model is a folder: give another name",
            target.display()
        );
        let mut inside = fs::read_dir(target).with_context(|| format!("cannot read {}", target.display()))?;
        let is_model = ["config.json", "adapter_config.json"]
            .iter()
            .any(|name| target.join(name).exists());
        ensure!(
            is_model || inside.next().is_none(),
            "{} has files and is not a model's folder; it would be replaced whole: give an empty or a new one",
            target.display()
        );
        let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev());
        ensure!(
            device(target)? == device(&place.parent)?,
            "{} is where another disk is mounted and cannot be replaced; give a folder inside it",
            target.display()
        );
    }
    place.sweep();
    fs::create_dir_all(&place.half).with_context(|| format!("cannot write beside {}", target.display()))?;
    remove_folder(&place.half)?;
    // Some network file systems do not tell.
    if let Ok(disk) = rustix::fs::statvfs(&place.parent) {
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        ensure!(
            disk.f_blocks == 0 || free >= bytes,
            "the model takes {} MiB and {} MiB are free in {}; make room or give another folder",
            bytes.div_ceil(1 << 20),
            free >> 20,
            place.parent.display()
        );
    }
    Ok(())
}

/// Has `write` fill a temporary folder beside `target`, and puts it in its place.
pub(super) fn replace_folder(target: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let target = &behind_links(target);
    let place = Place::of(target)?;
    place.sweep();
    let Place {
        parent,
        half,
        whole,
        old,
    } = &place;
    remove_folder(half)?;
    remove_folder(whole)?;
    fs::create_dir(half).with_context(|| format!("creating {}", half.display()))?;
    let lock = File::open(half).with_context(|| format!("opening {}", half.display()))?;
    // Without it, on a file system that has no locks, nobody else gets one either, and so nobody sweeps it away.
    let _ = lock.try_lock();
    if let Err(error) = write(half).and_then(|()| sync(half)) {
        // The error already says what failed; a left-over would only be in the way.
        let _ = fs::remove_dir_all(half);
        return Err(error);
    }
    fs::rename(half, whole).with_context(|| format!("moving {} to {}", half.display(), whole.display()))?;
    let moved = remove_folder(old).and_then(|()| swap(whole, target, old));
    moved.with_context(|| {
        format!(
            "the model is written whole and stays in {}: move it yourself",
            whole.display()
        )
    })?;
    sync(parent)?;
    remove_folder(old)
}

/// Where a link leads, there or not yet: the folder there is replaced, on its own disk, and the link stays.
fn behind_links(target: &Path) -> PathBuf {
    // As many as Linux follows. Without a slash at the end, behind which a link is the folder that it leads to.
    let mut path: PathBuf = target.components().collect();
    for _ in 0..40 {
        let Ok(next) = fs::read_link(&path) else { break };
        path.pop();
        path.push(next);
    }
    path
}

/// Where a folder is replaced. What lies beside it is named after it and this process.
struct Place {
    parent: PathBuf,
    /// Where its successor is written, under a lock.
    half: PathBuf,
    /// Where its successor is when it is written.
    whole: PathBuf,
    /// Where it goes while its successor takes its name.
    old: PathBuf,
}

impl Place {
    /// Makes the folder that `target` is in.
    fn of(target: &Path) -> Result<Self> {
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let Some(name) = target.file_name() else {
            bail!("{} is not a folder name", target.display())
        };
        fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
        let aside = |suffix: &str| {
            let mut hidden = OsString::from(".");
            hidden.push(name);
            hidden.push(format!(".{suffix}-{}", std::process::id()));
            parent.join(hidden)
        };
        Ok(Self {
            parent: parent.to_owned(),
            half: aside("half"),
            whole: aside("new"),
            old: aside("old"),
        })
    }

    /// Makes room of what killed processes left half written. What is whole may be all that somebody has, and stays.
    fn sweep(&self) {
        let entries = fs::read_dir(&self.parent).into_iter().flatten().flatten();
        let halves = entries.map(|entry| entry.path()).filter(|path| self.is_half(path));
        for half in halves.filter(|half| is_abandoned(half)) {
            if let Err(error) = remove_folder(&half) {
                tracing::warn!("a killed process left it half written: {error:#}");
            }
        }
    }

    /// Whether `path` has the name that some process gives a successor while it writes it.
    fn is_half(&self, path: &Path) -> bool {
        let stem = |path: &Path| {
            let name = path.file_name()?.as_bytes();
            let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
            (digits > 0).then(|| name[..name.len() - digits].to_owned())
        };
        stem(path).is_some_and(|found| Some(found) == stem(&self.half))
    }
}

/// Whether nobody writes to a folder any more: a lock ends with the process that took it.
fn is_abandoned(folder: &Path) -> bool {
    File::open(folder).is_ok_and(|folder| folder.try_lock().is_ok())
}

/// Gives `whole` the name of `target`, which becomes `old` where it was there; all as before where that fails.
fn swap(whole: &Path, target: &Path, old: &Path) -> Result<()> {
    let context = || format!("moving it to {}", target.display());
    let replaces = target.exists();
    if replaces {
        fs::rename(target, old).with_context(context)?;
    }
    let moved = fs::rename(whole, target);
    if moved.is_err() && replaces {
        fs::rename(old, target).with_context(|| format!("the old one is in {}", old.display()))?;
    }
    moved.with_context(context)
}

fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Makes a file durable, or the names in a folder.
pub(super) fn sync(path: &Path) -> Result<()> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .with_context(|| format!("syncing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_a_model_may_not_replace_is_refused_before_it_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |name: &str, bytes| format!("{:#}", probe(&folder.path().join(name), bytes).unwrap_err());
        fs::write(folder.path().join("file"), "").unwrap();
        fs::create_dir(folder.path().join("photos")).unwrap();
        fs::write(folder.path().join("photos/cat.jpg"), "").unwrap();
        assert!(refused("file", 0).contains("is a file"));
        assert!(refused("photos", 0).contains("is not a model's folder"));
        assert!(refused("file/model", 0).contains("creating"));
        assert!(refused("new", u64::MAX / 2).contains("make room"));
        fs::write(folder.path().join("photos/config.json"), "").unwrap();
        for name in ["new", "photos", "not/yet/there"] {
            probe(&folder.path().join(name), 1).unwrap();
        }
        assert_eq!(
            files(folder.path()),
            ["file", "not", "photos"],
            "nothing is left behind"
        );
    }

    #[test]
    fn a_model_goes_where_a_link_leads_and_the_link_stays() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("disk/model", &link).unwrap();
        // First where nothing is yet, then over what is there, and by the link with a slash behind it.
        for (target, content) in [
            (link.clone(), "new"),
            (link.clone(), "newer"),
            (link.join(""), "newest"),
        ] {
            probe(&target, 1).unwrap();
            replace_folder(&target, |half| Ok(fs::write(half.join("config.json"), content)?)).unwrap();
            let real = folder.path().join("disk/model/config.json");
            assert_eq!(fs::read_to_string(real).unwrap(), content);
            assert!(link.is_symlink());
        }
        assert_eq!(files(folder.path()), ["disk", "link"]);
        std::os::unix::fs::symlink("loop", folder.path().join("loop")).unwrap();
        probe(&folder.path().join("loop/model"), 1).unwrap_err();
    }

    #[test]
    fn a_model_that_cannot_take_its_name_stays_where_it_is_and_so_does_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("model");
        fs::write(&target, "old").unwrap();
        let written = replace_folder(&target, |half| {
            // Where the old one would go is taken by what cannot be removed as a folder.
            let old = half.to_string_lossy().replace(".half-", ".old-");
            fs::write(old, "").map_err(Into::into)
        });
        let words = format!("{:#}", written.unwrap_err());
        assert!(words.contains("stays in") && words.contains(".model.new-"), "{words}");
        assert_eq!(fs::read_to_string(&target).unwrap(), "old");
        assert_eq!(files(folder.path()).len(), 3);
    }

    #[test]
    fn a_model_that_cannot_be_written_leaves_the_old_one_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("model");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("config.json"), "old").unwrap();
        replace_folder(&target, |_| bail!("disk full")).unwrap_err();
        assert_eq!(
            (files(folder.path()), files(&target)),
            (vec!["model".into()], vec!["config.json".into()])
        );
        replace_folder(&target, |half| Ok(fs::write(half.join("weights"), "new")?)).unwrap();
        assert_eq!(
            (files(folder.path()), files(&target)),
            (vec!["model".into()], vec!["weights".into()])
        );
    }

    #[test]
    fn what_a_killed_process_left_half_written_goes_and_what_somebody_writes_or_has_whole_stays() {
        let folder = tempfile::tempdir().unwrap();
        // Numbers that no process has.
        let beside = [
            ".model.half-5000001",
            ".model.half-5000002",
            ".model.half-mine",
            ".model.new-5000003",
            ".other.half-5000004",
        ];
        for name in beside {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("weights"), "").unwrap();
        }
        let another = File::open(folder.path().join(beside[1])).unwrap();
        another.lock().unwrap();
        let target = folder.path().join("model");
        let written = replace_folder(&target, |half| {
            Place::of(&target)?.sweep();
            Ok(fs::write(half.join("weights"), "new")?)
        });
        written.unwrap();
        assert_eq!(files(folder.path()), [&beside[1..], &["model"]].concat());
    }
}
