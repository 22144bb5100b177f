//! A value behind a lock that a panic does not poison.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value behind a lock. A panic while it was held leaves a whole value behind: every change made here is one insertion,
/// removal or assignment.
#[derive(Debug, Default)]
pub struct Locked<T>(Mutex<T>);

/// A map behind a lock.
pub type Table<K, V> = Locked<HashMap<K, V>>;

impl<T> Locked<T> {
    /// Puts a value behind a lock.
    pub fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// The value, for as long as the guard lives.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash, V> Table<K, V> {
    /// Removes an entry.
    pub fn forget(&self, key: &K) -> Option<V> {
        self.lock().remove(key)
    }
}
