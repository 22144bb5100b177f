//! Runs a program to its end, with a deadline.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::Command;
use tokio::time::timeout;

/// `helm install --wait` of a chart is the longest thing run like this.
const DEADLINE: Duration = Duration::from_secs(120);

/// What a program did.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The command line.
    pub command: String,
    /// The exit code; none after a signal.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it complained of.
    pub stderr: String,
}

impl Finished {
    /// The output of a program that must have succeeded.
    ///
    /// # Errors
    /// The command, its exit code and its words.
    pub fn success(self) -> Result<String> {
        match self.code {
            Some(0) => Ok(self.stdout),
            code => bail!("{} ended with {code:?}\n{}{}", self.command, self.stdout, self.stderr),
        }
    }
}

/// Runs a program to its end with variables added to its environment.
///
/// # Errors
/// When it does not start or is not done within two minutes: it is killed then.
pub async fn run(program: &Path, args: &[&str], env: &BTreeMap<String, String>) -> Result<Finished> {
    run_within(program, args, env, DEADLINE).await
}

/// The same with another deadline.
pub(crate) async fn run_within(
    program: &Path,
    args: &[&str],
    env: &BTreeMap<String, String>,
    deadline: Duration,
) -> Result<Finished> {
    let command = format!("{} {}", program.display(), args.join(" "));
    let mut process = Command::new(program);
    process.args(args).envs(env).stdin(Stdio::null()).kill_on_drop(true);
    let Ok(output) = timeout(deadline, process.output()).await else {
        bail!("{command} was not done within {deadline:?}");
    };
    let output = output.with_context(|| format!("{command} does not start"))?;
    Ok(Finished {
        command,
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
