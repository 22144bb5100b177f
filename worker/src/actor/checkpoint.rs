//! Checkpoints: a folder a step, complete or absent.
//!
//! Files are written aside, hashed, made durable and named by one manifest; then the folder is renamed into place. A process
//! killed at any moment leaves either the old set of checkpoints or the new one. Everything random in a run is a function of
//! (seed, step), so the step's number is all a checkpoint needs to know of it.

mod manifest;
mod retention;
mod sums;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

pub use self::manifest::hash_share;
use self::retention::Retention;
pub use self::sums::{Files, files_below};
use super::fence::{Alone, Fence, Watch};
use crate::durable::sync_folder;
use crate::place::Owner;
use crate::run_state::{State, Verified};
use crate::stop::StopFlag;

const WRITING: &str = ".writing-";

/// Before the name of a checkpoint that was found damaged: it is none any more, but its files may be worth something to somebody.
const DAMAGED: &str = ".damaged-";

/// Before the name of a checkpoint that is kept no longer: it is none from then on, however long its files take to delete.
const DELETING: &str = ".deleting-";

/// The checkpoints of a run.
#[derive(Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    /// No run goes on from a policy beyond its `most_kl`.
    retention: Retention,
    /// A step whose checkpoint is to be judged before the next one is made: until then it may be the best.
    awaited: Option<u64>,
    fence: Option<Fence>,
    /// Ends the name of what is not whole. An older attempt, or an earlier job of the same folder, may still write: not into what this one
    /// commits.
    writer: String,
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
            retention: Retention {
                newest: keep.max(1),
                best: keep_best,
                most_kl: None,
            },
            awaited: None,
            fence: None,
            writer: "1".to_owned(),
        })
    }

    /// A policy is good while its KL is at most this. The newest one that was found so stays, and those beyond it are passed over.
    pub fn good_up_to(mut self, most_kl: Option<f64>) -> Self {
        self.retention.most_kl = most_kl;
        self
    }

    /// Takes the folder for one attempt of the run: an older one can write nothing from now on.
    ///
    /// # Errors
    /// [`Superseded`](super::fence::Superseded) when a newer attempt was here; when the folder cannot be written.
    pub fn fenced(self, owner: Owner) -> anyhow::Result<Self> {
        let writer = format!("{}-{}", owner.run, owner.attempt);
        let fence = Some(Fence::take(&self.folder, owner)?);
        Ok(Self { fence, writer, ..self })
    }

    /// The checkpoint of `step` outlives the next [`save`](Self::save), because it will be [judged](Self::judge) after it.
    pub fn awaits(&mut self, step: Option<u64>) {
        self.awaited = step;
    }

    /// Whether this attempt, if it is one, may still write.
    ///
    /// # Errors
    /// [`Superseded`](super::fence::Superseded); when the folder cannot be read.
    pub fn check_fence(&self) -> anyhow::Result<()> {
        self.fence.as_ref().map_or(Ok(()), Fence::check)
    }

    /// Asks the run to stop once it may write no more, for as long as what this gives lives; None outside a cluster.
    ///
    /// # Errors
    /// As [`Fence::watch`].
    pub fn watch(&self, stop: &StopFlag) -> anyhow::Result<Option<Watch>> {
        let watch = self.fence.as_ref().map(|fence| fence.watch(stop.clone()));
        watch.transpose()
    }

    /// Commits a checkpoint of `state`; `write` puts its files into the folder it is given, and says which of them are hashed.
    ///
    /// # Errors
    /// [`Superseded`](super::fence::Superseded); when a file cannot be written. Earlier checkpoints are untouched.
    pub fn save(&self, state: State, write: impl FnOnce(&Path) -> anyhow::Result<Files>) -> anyhow::Result<PathBuf> {
        let name = folder_name(state.step);
        let aside = self.folder.join(format!("{WRITING}{name}-{}", self.writer));
        let target = self.folder.join(&name);
        let alone = self.alone()?;
        // What an earlier attempt, or one that failed, left half written: its room may be what this one needs.
        self.sweep()?;
        remove(&aside)?;
        fs::create_dir(&aside).with_context(|| format!("cannot make {}", aside.display()))?;
        // Writing takes a while, and what is aside is in nobody's way.
        drop(alone);
        let written = write(&aside).and_then(|hashed| manifest::commit(&aside, &state, hashed));
        if written.is_err() {
            // The error says what failed. Where the disk is full, the last words of the run need the room.
            let _ = remove(&aside);
            // Whoever has taken over deletes what is half written, and that is what failed then.
            self.check_fence()?;
        }
        written.with_context(|| {
            format!(
                "cannot write the checkpoint of step {} in {}",
                state.step,
                aside.display()
            )
        })?;
        // Hashing takes a while: another attempt may have begun.
        let _alone = self.alone()?;
        self.discard(state.step, &target)?;
        self.put(&aside, &target)?;
        self.check_fence()?;
        self.prune(state.step, self.awaited)?;
        Ok(target)
    }

    /// Holds newer attempts off while what this gives lives, as far as that can be, where none has begun.
    ///
    /// # Errors
    /// As [`check_fence`](Self::check_fence).
    fn alone(&self) -> anyhow::Result<Option<Alone>> {
        let alone = self.fence.as_ref().map(Fence::alone);
        self.check_fence()?;
        Ok(alone)
    }

    /// Moves what was written to where it is a checkpoint. One that is there stays: no folder with files in it is renamed over.
    fn put(&self, aside: &Path, target: &Path) -> anyhow::Result<()> {
        let moved = fs::rename(aside, target);
        if moved.is_err() {
            // A newer attempt has deleted the one folder, or made the other.
            self.check_fence()?;
        }
        moved.with_context(|| format!("cannot move the checkpoint to {}", target.display()))?;
        sync_folder(&self.folder)
    }

    /// Says afterwards how good the checkpoint of `step` is, unless it is damaged or that is known; `by` writes down by what. What was kept
    /// only until this was known goes.
    ///
    /// # Errors
    /// When it is not there, or cannot be written.
    pub fn judge(&self, step: u64, quality: f64, by: impl FnOnce(&mut State)) -> anyhow::Result<()> {
        let awaited = self.awaited.filter(|awaited| *awaited != step);
        self.amend(step, awaited, |state| {
            if state.quality.is_none() {
                state.quality = Some(quality);
                by(state);
            }
        })
    }

    /// Says afterwards how far the policy of the checkpoint of `step` is from the reference. What was kept only until this was known goes.
    ///
    /// # Errors
    /// As [`judge`](Self::judge).
    pub fn measured(&self, step: u64, kl: f64) -> anyhow::Result<()> {
        self.amend(step, self.awaited, |state| state.kl = Some(kl))
    }

    fn amend(&self, step: u64, awaited: Option<u64>, learn: impl FnOnce(&mut State)) -> anyhow::Result<()> {
        let _alone = self.alone()?;
        let folder = self.folder.join(folder_name(step));
        // The run went on from one before it and has other weights under this step: what is known of those is not true of these.
        if self.beyond(&folder).is_some() {
            return Ok(());
        }
        match manifest::amend(&folder, learn) {
            // Whoever goes on from here passes over it, and so does who looks for the best.
            Err(error) if manifest::is_damage(&error) && self.has(step) => {
                tracing::warn!("checkpoint {} is not usable: {error:#}", folder.display());
            }
            amended => amended.with_context(|| format!("checkpoint {}", folder.display()))?,
        }
        self.prune(self.list()?.into_keys().last().unwrap_or(step), awaited)
    }

    /// Whether there is a checkpoint of `step`.
    pub fn has(&self, step: u64) -> bool {
        self.folder.join(folder_name(step)).exists()
    }

    /// The newest checkpoint that is [good](Self::good_up_to) and whose files are intact; None when there is no checkpoint at all. `note` is
    /// told of others: damaged ones are moved aside where an older one is intact, so that they count for nothing any more, neither as kept
    /// nor as the best.
    ///
    /// # Errors
    /// When there are checkpoints but none is good and intact; they stay where they are. When one cannot be read, or is of another
    /// [format](crate::outcome::OtherFormat): it may be whole. When a damaged one cannot be moved.
    pub fn latest(&self, note: impl FnMut(&str)) -> anyhow::Result<Option<Verified>> {
        self.latest_by(|_| Ok(Files::default()), note)
    }

    /// The same with files that several ranks hash: `hash` says what they found in the folder of a checkpoint, each in its
    /// [share](hash_share). What none of them found as it was written is hashed here.
    ///
    /// # Errors
    /// As [`latest`](Self::latest); those of `hash`.
    pub fn latest_by(
        &self,
        mut hash: impl FnMut(&Path) -> anyhow::Result<Files>,
        mut note: impl FnMut(&str),
    ) -> anyhow::Result<Option<Verified>> {
        let (mut problems, mut damaged) = (Vec::new(), Vec::new());
        for (step, folder) in self.list()?.into_iter().rev() {
            if let Some(problem) = self.beyond(&folder) {
                note(&problem);
                problems.push(problem);
                continue;
            }
            let found = hash(&folder)?;
            match manifest::verify(&folder, &found).and_then(|state| named(state, step)) {
                Ok(state) => {
                    for step in damaged {
                        note(&self.move_aside(step)?);
                    }
                    return Ok(Some(Verified { folder, state }));
                }
                Err(error) if !manifest::is_damage(&error) => {
                    return Err(error.context(format!("cannot read the checkpoint {}", folder.display())));
                }
                Err(error) => {
                    let problem = format!("checkpoint {} is not usable: {error:#}", folder.display());
                    note(&problem);
                    problems.push(problem);
                    damaged.push((step, folder));
                }
            }
        }
        ensure!(
            problems.is_empty(),
            "{}\nno usable checkpoint is left in {}; to start afresh give `run` --fresh, or move it away, with the records of its run",
            problems.join("\n"),
            self.folder.display()
        );
        Ok(None)
    }

    /// The newest checkpoint that says what it is; whether its files are intact is not looked at.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn newest(&self) -> anyhow::Result<Option<(PathBuf, State)>> {
        let newest_first = self.list()?.into_iter().rev();
        let mut said = newest_first.filter_map(|(_, folder)| {
            let state = manifest::read(&folder).ok()?.state;
            Some((folder, state))
        });
        Ok(said.next())
    }

    /// The newest step up to `last` whose checkpoint is not known to be beyond what is [good](Self::good_up_to): the one that a run goes on from,
    /// where its files are intact. None also where the folder cannot be listed.
    pub fn newest_good(&self, last: u64) -> Option<u64> {
        let listed = self.list().ok()?;
        let mut newest_first = listed.range(..=last).rev();
        let good = newest_first.find(|(_, folder)| self.beyond(folder).is_none());
        good.map(|(step, _)| *step)
    }

    /// What is wrong with the policy of a checkpoint, where that is known.
    fn beyond(&self, folder: &Path) -> Option<String> {
        let (kl, most) = (manifest::read(folder).ok()?.state.kl?, self.retention.most_kl?);
        (kl > most).then(|| {
            format!(
                "checkpoint {} is passed over: its policy's mean sequence KL to the reference is {kl:.3}, above algorithm.kl.stopAbove = {most}; \
                 raise that to go on from there",
                folder.display()
            )
        })
    }

    /// Takes a damaged checkpoint out of the count, and says where it is now.
    fn move_aside(&self, (step, folder): (u64, PathBuf)) -> anyhow::Result<String> {
        let _alone = self.alone()?;
        let aside = self.hide(DAMAGED, step, &folder);
        let aside = aside.with_context(|| format!("cannot move {} aside", folder.display()))?;
        self.stand_by(&aside, &folder)?;
        sync_folder(&self.folder)?;
        Ok(format!("what is left of step {step} is in {}", aside.display()))
    }

    /// Gives the folder of a step a name under which it is no checkpoint: where it is now.
    fn hide(&self, prefix: &str, step: u64, folder: &Path) -> io::Result<PathBuf> {
        let named = |times: u64| self.folder.join(format!("{prefix}{}-{times}", folder_name(step)));
        // The step may have been hidden before, and written anew since.
        let aside = (1..).map(named).find(|aside| !aside.exists());
        let aside = aside.ok_or(io::ErrorKind::AlreadyExists)?;
        fs::rename(folder, &aside)?;
        Ok(aside)
    }

    /// Takes a checkpoint out of the count as a whole: a process that is killed while the files are deleted leaves no half of one.
    fn discard(&self, step: u64, folder: &Path) -> anyhow::Result<()> {
        match self.hide(DELETING, step, folder) {
            Ok(aside) => self.stand_by(&aside, folder),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error).with_context(|| format!("cannot delete {}", folder.display())),
        }
    }

    /// Looks at the fence once more after a folder was hidden, and puts it back where this attempt may write no more: a newer one may have
    /// committed it between the last look and the move.
    fn stand_by(&self, aside: &Path, folder: &Path) -> anyhow::Result<()> {
        let checked = self.check_fence();
        // One that cannot be put back was replaced by the newer attempt meanwhile, which deletes it.
        if checked.is_err() && fs::rename(aside, folder).is_ok() {
            sync_folder(&self.folder)?;
        }
        checked
    }

    /// The folders of all checkpoints, whether they are intact or not.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn folders(&self) -> anyhow::Result<Vec<PathBuf>> {
        Ok(self.list()?.into_values().collect())
    }

    /// Deletes every checkpoint, damaged ones too.
    ///
    /// # Errors
    /// When a folder cannot be deleted.
    pub fn clear(&self) -> anyhow::Result<()> {
        self.all_folders()?.iter().try_for_each(|folder| remove(folder))
    }

    /// Every checkpoint, damaged ones too, and those that are being deleted: what [`clear`](Self::clear) deletes.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn all_folders(&self) -> anyhow::Result<Vec<PathBuf>> {
        Ok([self.folders()?, self.hidden(DAMAGED)?, self.hidden(DELETING)?].concat())
    }

    /// Deletes what was left half written, and checkpoints that are kept no longer. Somebody may have a file there open on a network file
    /// system, or have put one there that is not ours to delete: that is no reason to end a run, and is tried again with the next checkpoint.
    fn sweep(&self) -> anyhow::Result<()> {
        let found = [self.hidden(WRITING)?, self.hidden(DELETING)?].concat();
        // What a newer attempt writes is among them only if that had begun when they were listed.
        self.check_fence()?;
        for left in found {
            if let Err(error) = remove(&left) {
                tracing::warn!("{error:#}; it is no checkpoint any more, and takes room");
            }
        }
        Ok(())
    }

    /// What lies here under names that begin with `prefix`.
    fn hidden(&self, prefix: &str) -> anyhow::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.folder).with_context(|| format!("cannot list {}", self.folder.display()))?;
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(prefix) {
                found.push(entry.path());
            }
        }
        Ok(found)
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

    /// Leaves what is to be kept of the checkpoints up to `newest`, and the `awaited` one if the best is kept. Any beyond it is of no
    /// use to this run, and is written anew in its turn: it may not push one out that is whole.
    fn prune(&self, newest: u64, awaited: Option<u64>) -> anyhow::Result<()> {
        let mut all = self.list()?;
        all.retain(|step, _| *step <= newest);
        let mut stay = self.retention.steps(&all);
        stay.extend(awaited.filter(|_| self.retention.best));
        for (step, folder) in all {
            if !stay.contains(&step) {
                self.discard(step, &folder)?;
            }
        }
        self.sweep()
    }
}

fn folder_name(step: u64) -> String {
    format!("step-{step:08}")
}

/// The state of a checkpoint whose folder is named for `step`: under the name of another one it would be kept, and written over, as that.
fn named(state: State, step: u64) -> anyhow::Result<State> {
    let (own, other) = (folder_name(state.step), folder_name(step));
    ensure!(own == other, "it holds {own}, not {other}: name its folder {own}");
    Ok(state)
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
mod tests;
