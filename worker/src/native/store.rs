//! c10d's store: where processes meet and leave each other messages (`native/collective.cpp`).

use std::ffi::{CString, c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::message::checked;

/// Between two looks for a key, at first; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_micros(500);
/// See [`FIRST_PAUSE`]: fifty small requests a second of each rank that waits.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

unsafe extern "C" {
    fn ppo_store_open(
        host: *const c_char,
        port: u16,
        serves: bool,
        deadline_ms: i64,
        store: *mut *mut c_void,
        bound: *mut u16,
    ) -> *mut c_char;
    fn ppo_store_close(store: *mut c_void);
    fn ppo_store_set(store: *mut c_void, key: *const c_char, value: *const u8, length: usize) -> *mut c_char;
    fn ppo_store_delete(store: *mut c_void, key: *const c_char) -> *mut c_char;
    fn ppo_store_get(
        store: *mut c_void,
        key: *const c_char,
        found: *mut bool,
        target: *mut c_void,
        take: unsafe extern "C" fn(*mut c_void, *const u8, usize),
    ) -> *mut c_char;
}

pub(super) fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// A key-value store over TCP; one process is its server, and it ends with that process' handle.
///
/// c10d waits for an answer for as long as the connection stands, which is for ever where a machine vanishes: so a thread asks, and
/// who wants to know waits for that thread no longer than it has patience.
#[derive(Debug)]
pub struct Store {
    asks: Option<Sender<Ask>>,
    thread: Option<JoinHandle<()>>,
    /// Longest wait for an answer.
    patience: Duration,
    /// An answer did not come: the thread may wait for it for ever.
    lost: AtomicBool,
    port: u16,
}

/// Something that is asked of the store, on its thread.
type Ask = Box<dyn FnOnce(&Handle) + Send>;

/// c10d's store.
#[derive(Debug)]
pub(super) struct Handle(*mut c_void);

// SAFETY: c10d's TCPStore guards its connection by a lock.
unsafe impl Send for Handle {}

impl Handle {
    fn open(host: &str, port: u16, serves: bool, deadline: Duration) -> Result<(Self, u16)> {
        let (mut handle, mut bound) = (null_mut(), 0);
        let host = CString::new(host)?;
        // SAFETY: (here and below) pointers are to values that live through the call.
        checked(unsafe {
            ppo_store_open(
                host.as_ptr(),
                port,
                serves,
                milliseconds(deadline),
                &raw mut handle,
                &raw mut bound,
            )
        })?;
        Ok((Self(handle), bound))
    }

    pub(super) fn as_ptr(&self) -> *mut c_void {
        self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once.
        unsafe { ppo_store_close(self.0) };
    }
}

impl Store {
    /// Serves a store on `port` (0: any free one) of every address. `patience` is for every answer.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn serve(port: u16, patience: Duration) -> Result<Self> {
        Self::open("127.0.0.1", port, true, patience, patience).with_context(|| format!("cannot listen on port {port}"))
    }

    /// Reaches the store at `host`:`port`, trying again until the deadline. `patience` is for every answer.
    ///
    /// # Errors
    /// When nobody answers in time.
    pub fn connect(host: &str, port: u16, deadline: Duration, patience: Duration) -> Result<Self> {
        Self::open(host, port, false, deadline, patience)
    }

    fn open(host: &str, port: u16, serves: bool, deadline: Duration, patience: Duration) -> Result<Self> {
        let (asks, asked) = channel::<Ask>();
        let (tell, told) = channel();
        let its = host.to_owned();
        let thread = std::thread::Builder::new().name("store".into()).spawn(move || {
            let opened = Handle::open(&its, port, serves, deadline);
            let (handle, opened) = match opened {
                Ok((handle, port)) => (Some(handle), Ok(port)),
                Err(error) => (None, Err(error)),
            };
            // Nobody who waits any more: it is closed again.
            if tell.send(opened).is_err() {
                return;
            }
            if let Some(handle) = handle {
                asked.into_iter().for_each(|ask| ask(&handle));
            }
        });
        let thread = thread.context("cannot start a thread")?;
        // It is connected by the deadline; what answers then may be no store.
        let opened = told.recv_timeout(deadline.saturating_add(patience));
        let silent = || format!("{host}:{port} takes connections and does not answer");
        Ok(Self {
            port: opened.ok().with_context(silent)??,
            asks: Some(asks),
            thread: Some(thread),
            patience,
            lost: AtomicBool::new(false),
        })
    }

    /// The port it is reached on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What `ask` finds out, for which it is waited so long.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        patience: Duration,
        ask: impl FnOnce(&Handle) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let silent = || {
            format!(
                "the store that the ranks meet at has not answered for {} s",
                patience.as_secs_f64()
            )
        };
        ensure!(!self.lost.load(Ordering::Relaxed), silent());
        let (tell, told) = channel();
        let ask: Ask = Box::new(move |handle| drop(tell.send(ask(handle))));
        let sent = self.asks.as_ref().map(|asks| asks.send(ask));
        ensure!(matches!(sent, Some(Ok(()))), "the store's thread is gone");
        told.recv_timeout(patience).unwrap_or_else(|_| {
            self.lost.store(true, Ordering::Relaxed);
            Err(anyhow!(silent()))
        })
    }

    /// Sets a key.
    ///
    /// # Errors
    /// When the server is gone.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let (key, value) = (CString::new(key)?, value.to_vec());
        self.ask(self.patience, move |store| {
            checked(unsafe { ppo_store_set(store.0, key.as_ptr(), value.as_ptr(), value.len()) })
        })
    }

    /// Forgets a key.
    ///
    /// # Errors
    /// When the server is gone.
    pub fn delete(&self, key: &str) -> Result<()> {
        let key = CString::new(key)?;
        self.ask(self.patience, move |store| {
            checked(unsafe { ppo_store_delete(store.0, key.as_ptr()) })
        })
    }

    /// The value of a key; None when it is not set.
    ///
    /// # Errors
    /// When the server is gone.
    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let key = CString::new(key)?;
        self.ask(self.patience, move |store| {
            let (mut found, mut value) = (false, Vec::new());
            checked(unsafe {
                ppo_store_get(
                    store.0,
                    key.as_ptr(),
                    &raw mut found,
                    (&raw mut value).cast(),
                    take_bytes,
                )
            })?;
            Ok(found.then_some(value))
        })
    }

    /// The value of a key, for which it waits at most so long; None when it was not set in that time.
    ///
    /// # Errors
    /// When the server is gone.
    pub fn wait(&self, key: &str, patience: Duration) -> Result<Option<Vec<u8>>> {
        let ends = Instant::now() + patience;
        let mut pause = FIRST_PAUSE;
        loop {
            let value = self.get(key)?;
            if value.is_some() || Instant::now() >= ends {
                return Ok(value);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.asks = None;
        // One that waits for an answer which never comes is left behind.
        if let Some(thread) = self.thread.take().filter(|_| !self.lost.load(Ordering::Relaxed)) {
            let _ = thread.join();
        }
    }
}

unsafe extern "C" fn take_bytes(target: *mut c_void, bytes: *const u8, length: usize) {
    // SAFETY: the vector of `get`, and as many bytes as the C++ side says.
    let target = unsafe { &mut *target.cast::<Vec<u8>>() };
    if length > 0 {
        target.extend_from_slice(unsafe { std::slice::from_raw_parts(bytes, length) });
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    use super::*;

    /// With what answers.
    const PATIENCE: Duration = Duration::from_secs(20);
    /// With what does not.
    const LITTLE: Duration = Duration::from_secs(2);

    /// The port of a wire to `port` that carries nothing any more, and closes nothing, once `cut`: as when a machine vanishes.
    fn wire(port: u16, cut: &Arc<AtomicBool>) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let bound = listener.local_addr().unwrap().port();
        let cut = cut.clone();
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (near, far) = (near.unwrap(), TcpStream::connect(("127.0.0.1", port)).unwrap());
                for (mut from, mut to) in [
                    (near.try_clone().unwrap(), far.try_clone().unwrap()),
                    (far.try_clone().unwrap(), near.try_clone().unwrap()),
                ] {
                    let cut = cut.clone();
                    std::thread::spawn(move || {
                        let mut bytes = [0; 4096];
                        while let Ok(count) = from.read(&mut bytes)
                            && count > 0
                        {
                            while cut.load(Ordering::Relaxed) {
                                std::thread::park();
                            }
                            to.write_all(&bytes[..count]).unwrap();
                        }
                    });
                }
            }
        });
        bound
    }

    #[test]
    fn a_store_on_a_machine_that_vanishes_is_waited_for_no_longer_than_there_is_patience() {
        let server = Store::serve(0, PATIENCE).unwrap();
        let cut = Arc::new(AtomicBool::new(false));
        let port = wire(server.port(), &cut);
        let mut client = Store::connect("127.0.0.1", port, PATIENCE, PATIENCE).unwrap();
        client.set("key", b"word").unwrap();
        assert_eq!(server.wait("key", PATIENCE).unwrap(), Some(b"word".to_vec()));

        cut.store(true, Ordering::Relaxed);
        client.patience = LITTLE;
        let began = Instant::now();
        let words = client.wait("other", Duration::from_secs(60)).unwrap_err().to_string();
        assert!(words.contains("has not answered for 2 s"), "{words}");
        assert!(began.elapsed() < Duration::from_secs(20));
        // What did not answer once is asked no more, however long it might be waited for.
        client.patience = PATIENCE;
        let began = Instant::now();
        client.get("key").unwrap_err();
        assert!(began.elapsed() < PATIENCE);
    }

    #[test]
    fn what_takes_connections_and_says_nothing_is_no_store() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = silent.local_addr().unwrap().port();
        let began = Instant::now();
        Store::connect("127.0.0.1", port, LITTLE, LITTLE).unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(20));
    }
}
