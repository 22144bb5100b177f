//! Reads a PpoJob manifest for a command that runs on this machine.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use ppo_crds::manifest::{documents, parse_manifest, without_mark};
use ppo_crds::resolve::{Environment, resolve};
use ppo_crds::{PpoJob, RunConfig, ValidationErrors};

/// A manifest nobody can run as it stands. The exit status says that trying again does not help.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(String);

impl Invalid {
    /// Says what cannot be used, and what would fix it.
    pub fn new(words: String) -> Self {
        Self(words)
    }
}

/// A manifest and where it came from.
#[derive(Clone, Debug, Args)]
pub struct ManifestArgs {
    /// The PpoJob manifest (YAML); `-` reads standard input.
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub file: PathBuf,
}

/// A file that somebody names on a command line; `-` is standard input.
#[derive(Debug)]
pub struct Given {
    /// What is in it.
    pub text: String,
    /// What it is called in errors.
    pub origin: String,
    /// Where its relative paths start: its folder; the working folder for standard input.
    pub folder: PathBuf,
}

impl Given {
    /// Reads it.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(file: &Path) -> Result<Self> {
        let standard_input = file == Path::new("-");
        let (text, origin) = if standard_input {
            (std::io::read_to_string(std::io::stdin()), "standard input".to_owned())
        } else {
            (std::fs::read_to_string(file), file.display().to_string())
        };
        let text = text.with_context(|| format!("cannot read {origin}"))?;
        let parent = file.parent().filter(|_| !standard_input);
        Ok(Self {
            text: without_mark(&text).to_owned(),
            origin,
            folder: parent.unwrap_or(Path::new("")).to_owned(),
        })
    }
}

/// A manifest with its text and the folder its relative paths start from.
#[derive(Debug)]
pub struct Manifest {
    /// As the user wrote it.
    pub text: String,
    /// Parsed.
    pub job: PpoJob,
    /// Folder of the file; the working folder for standard input.
    pub folder: PathBuf,
    origin: String,
}

impl Manifest {
    /// Reads and parses `file`; `-` is standard input.
    ///
    /// # Errors
    /// When it cannot be read, or [`Invalid`] when it is not a PpoJob.
    pub fn read(file: &Path) -> Result<Self> {
        let Given { text, origin, folder } = Given::read(file)?;
        let job = parse_manifest(&text, &origin).map_err(|error| Invalid(error.to_string()))?;
        Ok(Self {
            text,
            job,
            folder,
            origin,
        })
    }

    /// Whether a field is written in it, and does not only have its default.
    pub fn writes(&self, path: &[&str]) -> bool {
        let documents = documents(&self.text).unwrap_or_default();
        documents.iter().any(|document| {
            let field = path.iter().try_fold(document, |block, name| block.get(*name));
            field.is_some_and(|field| !field.is_null())
        })
    }

    /// What runs on this machine.
    ///
    /// # Errors
    /// [`Invalid`] with everything that is wrong.
    pub fn resolve(&self) -> Result<RunConfig> {
        self.resolve_with(None)
    }

    /// What runs on this machine, with the folders of `volumes` in place of the claims of their names, as in a pod.
    ///
    /// # Errors
    /// [`Invalid`] with everything that is wrong.
    pub fn resolve_with(&self, volumes: Option<&Path>) -> Result<RunConfig> {
        let environment = match volumes {
            Some(volumes) => Environment::Cluster {
                volumes: volumes.to_owned(),
            },
            None => Environment::Laptop {
                manifest_folder: self.folder.clone(),
            },
        };
        resolve(&self.job, &environment).map_err(|errors| self.invalid(&errors).into())
    }

    /// Everything that is wrong with the manifest, under its name.
    pub fn invalid(&self, errors: &ValidationErrors) -> Invalid {
        Invalid(format!("{}:\n{errors}", self.origin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_is_written_is_told_from_one_that_has_its_default() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.yaml");
        let text = "apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetadata: {name: math}\nspec:\n  model: {policy: {path: p}}\n  \
                    prompts: {source: {path: d.jsonl}}\n  \
                    roles: {actor: {gpusPerNode: 1}, rollout: {gpusPerReplica: }, reward: {rules: [{json: {}}]}}\n";
        std::fs::write(&file, text).unwrap();
        let manifest = Manifest::read(&file).unwrap();
        assert!(manifest.writes(&["spec", "roles", "actor", "gpusPerNode"]));
        assert!(!manifest.writes(&["spec", "roles", "rollout", "gpusPerReplica"]));
        assert!(!manifest.writes(&["spec", "roles", "actor", "nodes"]));
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_files_text() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sft.yaml");
        std::fs::write(&file, "\u{feff}data: {path: d}\n").unwrap();
        assert_eq!(Given::read(&file).unwrap().text, "data: {path: d}\n");
    }
}
