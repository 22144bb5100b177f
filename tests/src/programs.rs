//! Where the pinned programs are: `tests/cluster/build` makes them once per machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The programs of one or more modules of `tests/cluster`.
#[derive(Clone, Debug)]
pub struct Programs {
    folders: BTreeMap<String, PathBuf>,
}

impl Programs {
    /// The programs of these modules, built first when this machine does not have them: minutes, with progress on stderr.
    /// Blocks; others that build at the same time are waited for. `build` has deadlines of its own for both.
    ///
    /// # Errors
    /// When Go is missing or a module does not build; the reason stands on stderr.
    pub fn of(modules: &[&str]) -> Result<Self> {
        let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster/build");
        let output = Command::new(&build)
            .args(modules)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("{} does not start: is Python 3 installed?", build.display()))?;
        if !output.status.success() {
            bail!(
                "{} {} failed ({}); the reason stands above",
                build.display(),
                modules.join(" "),
                output.status
            );
        }
        let listing = String::from_utf8(output.stdout).context("tests/cluster/build printed no text")?;
        let folders = listing.lines().filter_map(|line| line.split_once(' '));
        Ok(Self {
            folders: folders.map(|(module, bin)| (module.to_owned(), bin.into())).collect(),
        })
    }

    /// The path of a program.
    ///
    /// # Errors
    /// When none of the modules has it.
    pub fn path(&self, program: &str) -> Result<PathBuf> {
        let mut candidates = self.folders.values().map(|bin| bin.join(program));
        match candidates.find(|path| path.exists()) {
            Some(path) => Ok(path),
            None => bail!("no program {program} in {:?}", self.folders),
        }
    }
}
