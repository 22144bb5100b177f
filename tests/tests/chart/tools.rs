//! The pinned programs of `tests/cluster`, run to their end.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use ppo_tests::Programs;

use crate::process::{Running, finish_within};

/// For any of them; Go fetches a module meanwhile.
const DEADLINE: Duration = Duration::from_secs(600);

static PROGRAMS: LazyLock<Programs> =
    LazyLock::new(|| Programs::of(&["helm", "chart-tools", "kube-score", "helm-unittest"]).unwrap());

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

pub fn chart() -> PathBuf {
    repository().join("charts/ppo-operator")
}

/// What a program said.
pub struct Said {
    pub ok: bool,
    pub out: String,
    pub err: String,
}

impl Said {
    /// Its standard output, when it liked what it saw.
    pub fn unless_it_failed(self) -> String {
        assert!(self.ok, "{}\n{}", self.out, self.err);
        self.out
    }
}

/// Runs a pinned program with `input` on its standard input, in the repository's root.
pub fn run(program: &str, args: &[&str], input: &str) -> Said {
    let mut command = Command::new(PROGRAMS.path(program).unwrap());
    // Helm keeps settings and caches of its user; those of whoever runs the tests stay out.
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("helm");
    command
        .env("HELM_CONFIG_HOME", &home)
        .env("HELM_CACHE_HOME", &home)
        .env("HELM_DATA_HOME", &home);
    complete(command.args(args).current_dir(repository()), input)
}

/// Runs a command to its end.
pub fn complete(command: &mut Command, input: &str) -> Said {
    let pipes = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = Running::start(pipes);
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // From another thread: a program that answers line by line would wait for its reader.
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = finish_within(DEADLINE, child);
    // A program may end before it has read everything; then its status tells.
    let _ = writer.join().unwrap();
    Said {
        ok: output.status.success(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The files of a folder with that ending, sorted.
pub fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|found| found == ending))
        .collect();
    paths.sort();
    paths
}

pub fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}
