//! Streams that the store, or data servers, may still list as provisional
//! ([`StreamCall::Finalise`](crate::StreamCall::Finalise)).

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::mem::take;

use espalier_proto::Ino;

#[derive(Debug, Default)]
pub(crate) struct ProvisionalStreams {
    /// Unstuffed files in the store.
    in_store: BTreeSet<Ino>,
    /// Files on data servers; `None`: there never were any.
    on_servers: Option<BTreeSet<Ino>>,
}

impl ProvisionalStreams {
    pub(crate) fn new(in_store: Vec<Ino>, on_servers: Option<Vec<Ino>>) -> Self {
        let on_servers = on_servers.map(|inos| inos.into_iter().collect());
        Self { in_store: in_store.into_iter().collect(), on_servers }
    }

    pub(crate) fn in_store(&self) -> impl Iterator<Item = Ino> {
        self.in_store.iter().copied()
    }

    /// `None`: no file was ever on data servers.
    pub(crate) fn on_servers(&self) -> Option<&BTreeSet<Ino>> {
        self.on_servers.as_ref()
    }

    pub(crate) fn is_on_servers(&self, ino: Ino) -> bool {
        self.on_servers.as_ref().is_some_and(|inos| inos.contains(&ino))
    }

    pub(crate) fn note_unstuffed(&mut self, ino: Ino) {
        self.in_store.insert(ino);
    }

    pub(crate) fn note_striped(&mut self, ino: Ino) {
        self.on_servers.get_or_insert_default().insert(ino);
    }

    /// Notes that datafiles exist.
    pub(crate) fn note_servers(&mut self) {
        self.on_servers.get_or_insert_default();
    }

    pub(crate) fn note_finalised(&mut self, ino: Ino) {
        self.in_store.remove(&ino);
        if let Some(inos) = &mut self.on_servers {
            inos.remove(&ino);
        }
    }

    /// Those in the store, for recovery, which finalises them.
    pub(crate) fn take_in_store(&mut self) -> BTreeSet<Ino> {
        take(&mut self.in_store)
    }
}
