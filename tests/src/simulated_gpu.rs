//! GPUs for the worker on a machine that has none: `tests/simulated_gpu`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

/// Where the loader looks first.
const LOADER: &str = "LD_LIBRARY_PATH";

/// Simulated GPUs of a process.
#[derive(Clone, Debug)]
pub struct SimulatedGpus {
    folder: PathBuf,
    count: usize,
    mebibytes: usize,
    /// Whether our own CUDA library is there, too.
    graphs: bool,
}

impl SimulatedGpus {
    /// So many of 4 GiB each. They are compiled first where this machine does not have them: half a minute.
    ///
    /// # Errors
    /// When they do not compile.
    pub fn new(count: usize) -> Result<Self> {
        static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        let folder = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
        match folder {
            Ok(folder) => Ok(Self {
                folder: folder.clone(),
                count,
                mebibytes: 4096,
                graphs: true,
            }),
            Err(error) => bail!("{error}"),
        }
    }

    /// The same with as much memory each.
    #[must_use]
    pub fn of_mebibytes(mut self, mebibytes: usize) -> Self {
        self.mebibytes = mebibytes;
        self
    }

    /// Without our own CUDA library: nothing is captured in graphs.
    #[must_use]
    pub fn without_graphs(mut self) -> Self {
        self.graphs = false;
        self
    }

    /// What the environment of a process has to have besides.
    ///
    /// # Errors
    /// When the folder's name cannot be in a list of folders.
    pub fn environment(&self) -> Result<Vec<(&'static str, OsString)>> {
        let ours = [
            Some(self.folder.clone()),
            self.graphs.then(|| self.folder.join("graphs")),
        ];
        Ok(vec![
            before_the_loaders(ours.into_iter().flatten())?,
            ("SIMULATED_GPUS", self.count.to_string().into()),
            ("SIMULATED_GPU_MIB", self.mebibytes.to_string().into()),
        ])
    }

    /// The program that uses them wrongly in the way of that name.
    pub fn faults(&self, name: &str) -> Command {
        let mut command = Command::new(self.folder.join("faults"));
        command.arg(name);
        command
    }
}

/// The loader's variable with `folders` before those that it has here.
pub(crate) fn before_the_loaders(folders: impl Iterator<Item = PathBuf>) -> Result<(&'static str, OsString)> {
    let before = std::env::var_os(LOADER).unwrap_or_default();
    let all = folders.chain(std::env::split_paths(&before));
    Ok((LOADER, std::env::join_paths(all)?))
}

fn build() -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("simulated_gpu/build.py");
    let built = Command::new(&script)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output();
    let built = built.with_context(|| format!("{} does not start: is Python 3 installed?", script.display()))?;
    if !built.status.success() {
        bail!(
            "{} failed ({}); the reason stands above",
            script.display(),
            built.status
        );
    }
    let folder = String::from_utf8(built.stdout).context("it printed no text")?;
    Ok(folder.trim().into())
}
