//! A run that starts anew in the folder of an earlier one, whose results are deleted.

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

/// Refuses a run that reads what it would [delete](clear) first.
///
/// # Errors
/// [`Invalid`] with the field that names it; when the folder cannot be listed.
pub fn refuse(folder: &RunDir, checkpoints: &Checkpoints, config: &RunConfig) -> Result<()> {
    let left = [checkpoints.all_folders()?, folder.results().to_vec()].concat();
    Ok(refuse_what_is_read(config, &left)?)
}

/// A run may start from the model that an earlier one left, but not where it would delete it first.
fn refuse_what_is_read(config: &RunConfig, left: &[PathBuf]) -> Result<(), Invalid> {
    for (field, path) in read_by(config) {
        if let Some(deleted) = left.iter().find(|left| is_within(path, left)) {
            return Err(Invalid::new(format!(
                "--fresh would delete {}, and {field} is {}: give another --run-dir, or move it away and name its new place",
                deleted.display(),
                path.display()
            )));
        }
    }
    Ok(())
}

/// Whether `path` is `folder` or below it. Of a path that is not there nothing is deleted.
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
