//! The processes of a control plane. `tests/cluster/supervise` is their parent: it ends them when its input closes, which
//! the kernel does for us even if this process is killed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};

/// Longest wait for an answer, a stop's own seconds not counted.
const ANSWER: Duration = Duration::from_secs(30);

/// Longest wait for all processes to end.
const END: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Supervisor {
    process: Child,
    talk: Mutex<Option<Talk>>,
}

#[derive(Debug)]
struct Talk {
    commands: ChildStdin,
    answers: Receiver<String>,
}

/// Where an enclosed node is.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Enclosure {
    /// Its address, which this machine reaches and no other.
    pub(crate) address: Ipv4Addr,
    /// The cgroup of its pods, in every hierarchy.
    pub(crate) cgroup: String,
}

impl Talk {
    fn answer(&self, what: &str, patience: Duration) -> Result<Value> {
        let answer = match self.answers.recv_timeout(patience) {
            Ok(answer) => serde_json::from_str::<Value>(&answer)?,
            Err(RecvTimeoutError::Timeout) => bail!("{what}: the supervisor did not answer within {patience:?}"),
            Err(RecvTimeoutError::Disconnected) => bail!("{what}: the supervisor has ended"),
        };
        match answer["error"].as_str() {
            Some(error) => bail!("{what}: {error}"),
            None => Ok(answer),
        }
    }
}

impl Supervisor {
    /// A supervisor of processes that work in `folder` and log there.
    pub(crate) fn start(folder: &Path) -> Result<Self> {
        Self::run("supervise", folder)
    }

    /// The same in namespaces of its own, in which a real node can run.
    pub(crate) fn enclosed(folder: &Path) -> Result<(Self, Enclosure)> {
        let supervisor = Self::run("enclosure", folder)?;
        let made = supervisor.answer("the namespaces to be made", ANSWER)?;
        let made = serde_json::from_value(made).context("tests/cluster/enclosure does not say where it is")?;
        Ok((supervisor, made))
    }

    fn run(script: &str, folder: &Path) -> Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster").join(script);
        let mut process = Command::new(&script)
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C in a terminal goes to the group of the tests; the supervisor learns of it by their end.
            .process_group(0)
            .spawn()
            .with_context(|| format!("{} does not start: is Python 3 installed?", script.display()))?;
        let (commands, stdout) = (process.stdin.take(), process.stdout.take());
        let commands = commands.context("the supervisor has no input")?;
        let stdout = stdout.context("the supervisor has no output")?;
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let talk = Mutex::new(Some(Talk { commands, answers }));
        Ok(Self { process, talk })
    }

    /// Starts `argv` under a name; its output goes to `<name>.log`.
    pub(crate) fn spawn(&self, name: &str, argv: &[String], env: &BTreeMap<String, String>) -> Result<()> {
        self.ask(&json!({"start": name, "argv": argv, "env": env}), ANSWER)?;
        Ok(())
    }

    /// SIGTERM; SIGKILL after `patience`. Waits for the end.
    pub(crate) fn stop(&self, name: &str, patience: Duration) -> Result<()> {
        let command = json!({"stop": name, "seconds": patience.as_secs_f64()});
        self.ask(&command, patience + ANSWER)?;
        Ok(())
    }

    /// The exit code of a process that has ended; negative for a signal.
    pub(crate) fn exit_code(&self, name: &str) -> Result<Option<i64>> {
        Ok(self.ask(&json!({"poll": name}), ANSWER)?["code"].as_i64())
    }

    fn ask(&self, command: &Value, patience: Duration) -> Result<Value> {
        let mut talk = self.talk.lock();
        let talk = talk.as_mut().context("the supervisor has ended")?;
        writeln!(talk.commands, "{command}").with_context(|| format!("the supervisor has ended before {command}"))?;
        talk.answer(&command.to_string(), patience)
    }

    fn answer(&self, what: &str, patience: Duration) -> Result<Value> {
        let mut talk = self.talk.lock();
        talk.as_mut()
            .context("the supervisor has ended")?
            .answer(what, patience)
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // Its input ends here; what follows waits for the clean-up, so that ports and memory are free again.
        *self.talk.lock() = None;
        let end = Instant::now() + END;
        while matches!(self.process.try_wait(), Ok(None)) {
            if Instant::now() > end {
                eprintln!("the processes of a control plane did not end within {END:?}");
                let _ = self.process.kill();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
