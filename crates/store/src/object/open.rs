//! The streams whose state is in memory.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::stream::Stream;

/// Streams whose state stays in memory.
const OPEN: usize = 4096;

/// Streams by their names. When there are too many, those that nobody uses are forgotten.
pub(super) struct OpenStreams<K>(Mutex<HashMap<K, Arc<Mutex<Stream>>>>);

impl<K> Default for OpenStreams<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Copy + Eq + Hash> OpenStreams<K> {
    /// Calls `of` with a stream, which no other call has meanwhile.
    pub fn with<T>(&self, name: K, of: impl FnOnce(&mut Stream) -> T) -> T {
        let stream = {
            let mut open = self.lock();
            if open.len() >= OPEN && !open.contains_key(&name) {
                // A stream in use has another reference.
                open.retain(|_, stream| Arc::strong_count(stream) > 1 || !locked(stream).is_clean());
            }
            Arc::clone(open.entry(name).or_default())
        };
        of(&mut locked(&stream))
    }

    /// The names of all of them.
    pub fn names(&self) -> Vec<K> {
        self.lock().keys().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Arc<Mutex<Stream>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn locked(stream: &Mutex<Stream>) -> MutexGuard<'_, Stream> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}
