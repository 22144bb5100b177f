//! Lines: a connection between rank 0 and each other rank that carries nothing, so that a node which vanishes is noticed.
//!
//! The end of a process closes its connections, and c10d tells whoever waits for it. A node without power or network closes nothing:
//! who waits for it in a collective would wait for the collective's deadline. On a connection that carries nothing the kernel asks the
//! other kernel for a sign of life now and then (SO_KEEPALIVE, man 7 tcp). The kernel answers, not the process: a rank may compute for an
//! hour, swap or be stopped by SIGSTOP.
//!
//! c10d's own connections cannot be used for that. Gloo sets no such option (gloo/transport/tcp/pair.cc), and nothing is asked
//! while a segment waits for its acknowledgement (tcp_keepalive_timer in Linux' net/ipv4/tcp_timer.c), as they often do there. What
//! bounds that wait, TCP_USER_TIMEOUT, also ends the connection to one that reads slowly: it counts the time in which the other side takes
//! nothing (man 7 tcp: "due to zero window size"). A line carries nothing, so it needs none.
//!
//! Rank 0 finds who is lost, says so in the store and wakes the others; another rank finds that rank 0 is lost.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use socket2::{SockRef, TcpKeepalive};
use subtle::ConstantTimeEq as _;

use super::meeting::Meeting;
use super::pulse::{Watch, say_lost};
use crate::native::collective::Group;
use crate::native::store::Store;

/// For all lines to be drawn: the ranks have just met.
const DRAWING: Duration = Duration::from_secs(60);
/// For who connects to say who it is. The next one waits meanwhile.
const GREETING: Duration = Duration::from_secs(2);
/// Between two looks whether somebody connects.
const PAUSE: Duration = Duration::from_millis(10);
/// A line is lost when so many questions have no answer.
const QUESTIONS: u32 = 4;
/// Bytes of a secret.
const SECRET: usize = 32;
/// Bytes of a greeting: secret and rank.
const HELLO: usize = SECRET + 4;
/// Rank 0 has taken the greeting.
const TAKEN: u8 = b'+';
/// Rank 0 has found a rank lost: the store says which.
const LOST: u8 = b'!';

/// Where rank 0 waits for the others, and what they show: only who reaches the store knows it.
#[derive(Deserialize, Serialize)]
struct Invitation {
    /// No name: a pod's own is known to that pod alone.
    address: SocketAddr,
    secret: String,
}

/// This rank's lines.
#[derive(Debug)]
pub struct Lines {
    shared: Arc<Shared>,
    watchers: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    meeting: Meeting,
    store: Arc<Store>,
    /// What is given up when a rank is lost. It ends without a line's doing.
    group: Weak<Group>,
    /// By the rank at the other end: all others' at rank 0, elsewhere rank 0's.
    ends: BTreeMap<usize, TcpStream>,
    /// That rank 0 is lost, in words: nobody can ask its store any more.
    lost: OnceLock<String>,
    over: AtomicBool,
}

impl Lines {
    /// Draws them, once the ranks have met in `group`, and gives that up when one breaks.
    ///
    /// # Errors
    /// When a rank draws none in time, by its name; when rank 0 is not reached.
    pub fn draw(meeting: &Meeting, store: &Arc<Store>, group: &Arc<Group>) -> Result<Self> {
        let ends = match meeting.rank {
            0 => take_all(meeting, store)?,
            _ => BTreeMap::from([(0, connect(meeting, store)?)]),
        };
        for end in ends.values() {
            end.set_read_timeout(None)?;
            ask_for_life(end, meeting.timing.silence).context("cannot set a socket's keepalive options")?;
        }
        let others: Vec<usize> = ends.keys().copied().collect();
        let mut lines = Self {
            shared: Arc::new(Shared {
                meeting: meeting.clone(),
                store: store.clone(),
                group: Arc::downgrade(group),
                ends,
                lost: OnceLock::new(),
                over: AtomicBool::new(false),
            }),
            watchers: Vec::new(),
        };
        for rank in others {
            let shared = lines.shared.clone();
            let watcher = std::thread::Builder::new().name("line".into());
            let watcher = watcher.spawn(move || shared.watch(rank));
            lines.watchers.push(watcher.context("cannot start a thread")?);
        }
        Ok(lines)
    }

    /// That rank 0 is lost, in words, where this rank has found out.
    pub fn lost(&self) -> Option<&str> {
        self.shared.lost.get().map(String::as_str)
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        for end in self.shared.ends.values() {
            // One that is broken is at its end.
            let _ = end.shutdown(Shutdown::Both);
        }
        for watcher in self.watchers.drain(..) {
            let _ = watcher.join();
        }
    }
}

impl Shared {
    /// Until the line to `rank` ends, or breaks.
    fn watch(&self, rank: usize) {
        let Some(mut end) = self.ends.get(&rank) else { return };
        let mut byte = [0];
        loop {
            match end.read(&mut byte) {
                // The process at the other end is gone, and its other connections with it: c10d tells who waits for it.
                Ok(0) => return,
                Ok(_) if rank == 0 && byte == [LOST] => self.give_up("rank 0 says that a rank is lost"),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.lose(rank, &error),
            }
        }
    }

    /// The line to `rank` broke.
    fn lose(&self, rank: usize, error: &io::Error) {
        if self.over.load(Ordering::Relaxed) {
            return;
        }
        let why = format!("the connection to its node broke: {error}");
        if rank == 0 {
            let words = format!("{} is lost, where the ranks meet; {why}", self.meeting.name(0));
            self.give_up(self.lost.get_or_init(|| words));
            return;
        }
        let mut watch = Watch::new(rank);
        // What it did last is in the store.
        let read = watch.silent_for(&self.store);
        let words = format!("{}; {why}", watch.lost(&self.meeting));
        if let Err(error) = read.and_then(|_| say_lost(&self.store, &words)) {
            tracing::debug!("nobody hears who is lost: {error:#}");
        }
        for (_, mut end) in self.ends.iter().filter(|(other, _)| **other != rank) {
            // One that is gone needs not hear it.
            let _ = end.write_all(&[LOST]);
        }
        self.give_up(&words);
    }

    fn give_up(&self, words: &str) {
        tracing::error!("{words}");
        if let Some(group) = self.group.upgrade() {
            group.give_up();
        }
    }
}

/// Has the kernel find out within `silence` that nobody answers any more: it first asks after a third of that, and then every sixth.
fn ask_for_life(end: &TcpStream, silence: Duration) -> io::Result<()> {
    // Whole seconds.
    let interval = Duration::from_secs((silence.as_secs() / 6).max(1));
    let questions = TcpKeepalive::new()
        .with_time(interval * 2)
        .with_interval(interval)
        .with_retries(QUESTIONS);
    SockRef::from(end).set_tcp_keepalive(&questions)
}

fn key(attempt: u32) -> String {
    format!("attempt-{attempt}/lines")
}

fn drawing(meeting: &Meeting) -> Duration {
    DRAWING.min(meeting.timing.collective)
}

/// Rank 0 invites the others, and waits for all of them. It listens on the address that Gloo listens on.
fn take_all(meeting: &Meeting, store: &Store) -> Result<BTreeMap<usize, TcpStream>> {
    let host = meeting.own_host.as_str();
    let listener = TcpListener::bind((host, 0)).with_context(|| format!("cannot listen at {host}"))?;
    listener.set_nonblocking(true)?;
    let invitation = Invitation {
        address: listener.local_addr()?,
        secret: format!("{:0SECRET$x}", rand::random::<u128>()),
    };
    store.set(&key(meeting.attempt), &serde_json::to_vec(&invitation)?)?;
    let limit = drawing(meeting);
    let until = Instant::now() + limit;
    let mut ends = BTreeMap::new();
    while let Some(missing) = (1..meeting.count).find(|rank| !ends.contains_key(rank)) {
        ensure!(
            Instant::now() < until,
            "{} did not connect to {} at {} within {} s",
            meeting.name(missing),
            meeting.name(0),
            invitation.address,
            limit.as_secs()
        );
        match listener.accept() {
            Ok((end, from)) => match greeted(&end, &invitation.secret, meeting.count) {
                Ok(rank) => drop(ends.insert(rank, end)),
                Err(error) => tracing::debug!("{from} is no rank of this run: {error:#}"),
            },
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    tracing::debug!("cannot accept a connection: {error}");
                }
                std::thread::sleep(PAUSE);
            }
        }
    }
    Ok(ends)
}

/// Which rank has connected.
fn greeted(mut end: &TcpStream, secret: &str, count: usize) -> Result<usize> {
    end.set_nonblocking(false)?;
    let until = Instant::now() + GREETING;
    let (mut hello, mut length) = ([0; HELLO], 0);
    while length < HELLO {
        let left = until.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "it says nothing");
        end.set_read_timeout(Some(left))?;
        let read = end.read(&mut hello[length..])?;
        ensure!(read > 0, "it said nothing and left");
        length += read;
    }
    let (shown, rank) = hello.split_at(SECRET);
    ensure!(
        bool::from(secret.as_bytes().ct_eq(shown)),
        "it does not know the secret"
    );
    let rank = u32::from_le_bytes(rank.try_into()?) as usize;
    ensure!((1..count).contains(&rank), "there is no rank {rank} of {count}");
    end.write_all(&[TAKEN])?;
    Ok(rank)
}

/// Another rank's connection to rank 0.
fn connect(meeting: &Meeting, store: &Store) -> Result<TcpStream> {
    let limit = drawing(meeting);
    let invitation = store.wait(&key(meeting.attempt), limit)?;
    let invitation = invitation.with_context(|| format!("{} invites nobody", meeting.name(0)))?;
    let Invitation { address, secret } = serde_json::from_slice(&invitation)?;
    let connected = TcpStream::connect_timeout(&address, limit);
    let greeted = connected.and_then(|end| greet(end, &secret, meeting, limit));
    greeted.with_context(|| format!("{} is not reached at {address}", meeting.name(0)))
}

fn greet(mut end: TcpStream, secret: &str, meeting: &Meeting, limit: Duration) -> io::Result<TcpStream> {
    let mut hello = secret.as_bytes().to_vec();
    hello.extend_from_slice(&(meeting.rank as u32).to_le_bytes());
    end.write_all(&hello)?;
    end.set_read_timeout(Some(limit))?;
    end.read_exact(&mut [0])?;
    Ok(end)
}

#[cfg(test)]
mod tests;
