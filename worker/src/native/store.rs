//! c10d's store: where processes meet and leave word for each other (`native/collective.cpp`).

use std::ffi::{CString, c_char, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::training::checked;

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
#[derive(Debug)]
pub struct Store {
    pub(super) handle: *mut c_void,
    port: u16,
}

// SAFETY: c10d's TCPStore guards its connection by a lock.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Store {
    /// Serves a store on `port` (0: any free one) of every address.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn serve(port: u16, deadline: Duration) -> Result<Self> {
        Self::open("127.0.0.1", port, true, deadline).with_context(|| format!("cannot listen on port {port}"))
    }

    /// Reaches the store at `host`:`port`, trying again until the deadline.
    ///
    /// # Errors
    /// When nobody answers in time.
    pub fn connect(host: &str, port: u16, deadline: Duration) -> Result<Self> {
        Self::open(host, port, false, deadline)
    }

    fn open(host: &str, port: u16, serves: bool, deadline: Duration) -> Result<Self> {
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
        Ok(Self { handle, port: bound })
    }

    /// The port it is reached on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets a key.
    ///
    /// # Errors
    /// When the server is gone.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let key = CString::new(key)?;
        checked(unsafe { ppo_store_set(self.handle, key.as_ptr(), value.as_ptr(), value.len()) })
    }

    /// Forgets a key.
    ///
    /// # Errors
    /// When the server is gone.
    pub fn delete(&self, key: &str) -> Result<()> {
        let key = CString::new(key)?;
        checked(unsafe { ppo_store_delete(self.handle, key.as_ptr()) })
    }

    /// The value of a key; None when it is not set.
    ///
    /// # Errors
    /// When the server is gone.
    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let key = CString::new(key)?;
        let (mut found, mut value) = (false, Vec::new());
        checked(unsafe {
            ppo_store_get(
                self.handle,
                key.as_ptr(),
                &raw mut found,
                (&raw mut value).cast(),
                take_bytes,
            )
        })?;
        Ok(found.then_some(value))
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
        // SAFETY: opened once, closed once.
        unsafe { ppo_store_close(self.handle) };
    }
}

unsafe extern "C" fn take_bytes(target: *mut c_void, bytes: *const u8, length: usize) {
    // SAFETY: the vector of `get`, and as many bytes as the C++ side says.
    let target = unsafe { &mut *target.cast::<Vec<u8>>() };
    if length > 0 {
        target.extend_from_slice(unsafe { std::slice::from_raw_parts(bytes, length) });
    }
}
