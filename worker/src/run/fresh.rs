//! What a run reads is not what it deletes, where it starts anew in the folder of an earlier one, nor what its model takes the place of.

use std::path::{Path, PathBuf};

use anyhow::Result;
use ppo_crds::RunConfig;
use ppo_crds::run_config::Location;

use crate::actor::checkpoint::Checkpoints;
use crate::manifest::Invalid;
use crate::telemetry::RunDir;

/// Deletes the checkpoints and everything else that an earlier run left in `folder`. Nothing that the run reads may [be
/// there](refuse).
///
/// # Errors
/// When the disk refuses, naming what cannot be deleted.
pub fn clear(folder: &RunDir, checkpoints: &Checkpoints) -> Result<()> {
    checkpoints.clear()?;
    folder.clear()
}

/// Refuses a run that reads what it would [delete](clear) first: it may start from the model that an earlier one left, but not from there.
///
/// # Errors
/// [`Invalid`] with the field that names it; when the folder cannot be listed.
pub fn refuse(folder: &RunDir, checkpoints: &Checkpoints, config: &RunConfig) -> Result<()> {
    let left = [checkpoints.all_folders()?, folder.results().to_vec()].concat();
    let Some(Read { field, path, within }) = Read::of(config, &left) else {
        return Ok(());
    };
    Err(Invalid::new(format!(
        "--fresh would delete {}, and {field} is {}: give another --run-dir, or move it away and name its new place",
        within.display(),
        path.display()
    ))
    .into())
}

/// Refuses a run that reads what its records, or at its end what it has trained, take the place of. `elsewhere` is what gives it another
/// folder.
///
/// # Errors
/// [`Invalid`] with the field that names it.
pub fn refuse_to_replace(folder: &RunDir, config: &RunConfig, elsewhere: &str) -> Result<(), Invalid> {
    let adapter = config.model.adapter.as_ref().map(|_| folder.adapter());
    let trained: Vec<PathBuf> = [folder.model()].into_iter().chain(adapter).collect();
    // They are cut back to the step that a run goes on from: of one that begins no line is kept.
    let records = [
        folder.metrics(),
        folder.samples(),
        folder.events(),
        folder.evaluation(),
        folder.before(),
        folder.before_after(),
    ];
    for (what, places) in [("what is trained", &trained[..]), ("what is recorded", &records[..])] {
        if let Some(Read { field, path, within }) = Read::of(config, places) {
            return Err(Invalid::new(format!(
                "{what} would take the place of {}, and {field} is {}: {elsewhere}, or move it away and name its new place",
                within.display(),
                path.display()
            )));
        }
    }
    Ok(())
}

/// Refuses a folder with a model that no run left there: beside one that a run did lies its configuration. `elsewhere` is what gives the run
/// another folder.
///
/// # Errors
/// [`Invalid`] with the folder that would be lost.
pub fn refuse_to_lose_foreign(folder: &RunDir, elsewhere: &str) -> Result<(), Invalid> {
    if folder.run_config().exists() {
        return Ok(());
    }
    let has_files = |path: &PathBuf| path.read_dir().is_ok_and(|mut files| files.next().is_some());
    match [folder.model(), folder.adapter()].into_iter().find(has_files) {
        Some(lost) => Err(Invalid::new(format!(
            "{} is there, and no run left it (no run_config.json is beside it): what is trained would take its place: {elsewhere}, or move it \
             away",
            lost.display()
        ))),
        None => Ok(()),
    }
}

/// Something that a run reads, in a place that it must not be in.
struct Read<'a> {
    /// Its field in the manifest.
    field: &'static str,
    path: &'a Path,
    within: &'a Path,
}

impl<'a> Read<'a> {
    /// The first that `config` names in one of `places`.
    fn of(config: &'a RunConfig, places: &'a [PathBuf]) -> Option<Self> {
        read_by(config).into_iter().find_map(|(field, path)| {
            let within = places.iter().find(|place| is_within(path, place))?;
            Some(Self { field, path, within })
        })
    }
}

/// Whether `path` is `folder` or below it. Of a path that is not there nothing is lost.
fn is_within(path: &Path, folder: &Path) -> bool {
    let whole = path.canonicalize().ok().zip(folder.canonicalize().ok());
    whole.is_some_and(|(path, folder)| path.starts_with(folder))
}

/// What a run reads from this machine's disk: the fields of the manifest and their places.
fn read_by(config: &RunConfig) -> Vec<(&'static str, &Path)> {
    let model = &config.model;
    let reward = config.reward.model.as_ref();
    let models = [
        ("model.policy", Some(&model.policy)),
        ("model.critic", model.critic.as_ref()),
        ("model.reference", model.reference.as_ref()),
        ("roles.reward.model", reward.map(|model| &model.source)),
    ];
    let data = [
        ("prompts.source", Some(&config.prompts.path)),
        ("evaluation.source", config.evaluation.as_ref().map(|it| &it.path)),
    ];
    let mut read = Vec::new();
    for (field, paths) in data {
        let paths = paths.into_iter().flat_map(|paths| paths.as_slice());
        read.extend(paths.map(|path| (field, path.as_path())));
    }
    for (field, location) in models {
        if let Some(Location::Path(path)) = location {
            read.push((field, path.as_path()));
        }
    }
    read
}
