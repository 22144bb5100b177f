//! Processes that a test starts: every wait for one ends, and none outlives its test. The worker's own tests, and those of
//! the chart, hold this file as a module too.

#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{BufRead as _, BufReader, Read};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Longest wait for anything a test starts.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// A process that is killed where its test ends before it.
pub struct Running(Child);

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let started = command.spawn();
        Self(started.unwrap_or_else(|error| panic!("{command:?} does not start: {error}")))
    }

    /// What it has said on stderr once `words` are among it. A thread reads on: the process must neither wait for a reader
    /// nor write into a closed pipe.
    pub fn said(&mut self, words: &str) -> String {
        let lines = BufReader::new(self.0.stderr.take().unwrap()).lines();
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // Nobody listens once the words are there.
                let _ = sender.send(line);
            }
        });
        let ends = Instant::now() + DEADLINE;
        let mut said = String::new();
        while !said.contains(words) {
            match receiver.recv_timeout(ends.saturating_duration_since(Instant::now())) {
                Ok(line) => said += &(line + "\n"),
                Err(RecvTimeoutError::Disconnected) => panic!("the process ended before it said {words:?}: {said}"),
                Err(RecvTimeoutError::Timeout) => panic!("{words:?} was not said within {DEADLINE:?}: {said}"),
            }
        }
        said
    }

    /// Waits for the end of `what` it is.
    pub fn ended(&mut self, what: &str) -> ExitStatus {
        let mut status = None;
        wait_for(&format!("the end of {what}"), || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Kills it, and waits until it is gone. One that had ended by itself fails the test: nothing was interrupted.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        let status = self.ended("a process that was killed");
        assert_eq!(status.signal(), Some(9), "it ended before it was killed: {status}");
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command to its end.
pub fn output(command: &mut Command) -> Output {
    let pipes = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    finish(Running::start(pipes))
}

/// Waits for a process; one that hangs is killed and fails the test.
pub fn finish(process: Running) -> Output {
    finish_within(DEADLINE, process)
}

/// The same of one that takes longer.
pub fn finish_within(deadline: Duration, mut process: Running) -> Output {
    let ends = Instant::now() + deadline;
    let (stdout, stderr) = (drained(process.stdout.take()), drained(process.stderr.take()));
    loop {
        if let Some(status) = process.try_wait().unwrap() {
            return Output {
                status,
                stdout: rest(&stdout),
                stderr: rest(&stderr),
            };
        }
        if Instant::now() > ends {
            drop(process);
            let words = rest(&stderr);
            let words = String::from_utf8_lossy(&words);
            panic!("the process did not end within {deadline:?}: {words}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// All of a pipe, which a thread reads: no process waits until there is room in it.
fn drained(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut read = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut read).unwrap();
        }
        // Where the test has failed nobody listens.
        let _ = sender.send(read);
    });
    receiver
}

/// What [`drained`] reads of a process that has ended.
fn rest(pipe: &Receiver<Vec<u8>>) -> Vec<u8> {
    let read = pipe.recv_timeout(DEADLINE);
    read.unwrap_or_else(|_| panic!("the process has ended, and a child of it held its pipe for {DEADLINE:?}"))
}

/// Waits until `ready` says so.
pub fn wait_for(what: &str, ready: impl FnMut() -> bool) {
    wait_within(DEADLINE, what, ready);
}

/// The same of what takes longer.
pub fn wait_within(deadline: Duration, what: &str, mut ready: impl FnMut() -> bool) {
    let ends = Instant::now() + deadline;
    while !ready() {
        assert!(Instant::now() < ends, "{what} did not happen within {deadline:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn signal(process: &Child, name: &str) {
    let sent = kill(&[name, &process.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

/// `kill` of bash: a machine need not have the program of that name.
pub fn kill(words: &[&str]) -> Command {
    let mut command = Command::new("bash");
    command.args(["-c", "kill \"$@\"", "kill"]).args(words);
    command
}
