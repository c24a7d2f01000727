//! Namespace sync (sevilla 6.4.2): while a namespace is mounted, a thread of the mount merges what
//! is new at intervals. The program in the namespace goes on meanwhile.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail};
use espalier_meta::{Decoupled, MERGE};
use espalier_policy::Policy;
use espalier_runtime::{
    BigFile, ClientJournal, Error, NamespaceOrigin, NamespaceRest, NamespaceSync, OutgoingBatch, SyncPoint,
    next_batch,
};
use rustix::fs::{XattrFlags, fsetxattr};

use super::{open_dir, state_of};
use crate::policy;
use crate::remove::text;

/// Bytes of records that are read before they are sent.
const READ_AHEAD: usize = 64 << 20;

/// Starts the syncs of a namespace that is about to be mounted on its decoupled directory, if that
/// has an interval. `None`: the store is that of another file system, or is not synced.
pub(crate) fn start(store: &Path, mountpoint: &Path) -> Result<Option<Arc<SyncPoint>>> {
    let origin = match NamespaceOrigin::read(store) {
        Err(Error::NoNamespace(_)) => return Ok(None),
        origin => origin?,
    };
    // The store may be mounted anywhere, also to look at it.
    let Ok(dir) = open_dir(mountpoint) else { return Ok(None) };
    let Ok(Some(decoupled)) = state_of(&dir) else { return Ok(None) };
    if decoupled.id != origin.decoupled.id || decoupled.merged > 0 && !decoupled.shows {
        return Ok(None);
    }
    let Some(interval) = policy::effective(mountpoint)?.or(&Policy::DEFAULT).sync_interval() else {
        return Ok(None);
    };
    let sync_point = Arc::new(SyncPoint::new(interval.seconds().get()));
    let id = origin.decoupled.id;
    let syncs = Syncs {
        dir,
        path: mountpoint.into(),
        id,
        namespace: NamespaceSync::new(store, origin),
        sync_point: Arc::clone(&sync_point),
    };
    // It ends with the process: a request to a server that is down may last.
    std::thread::spawn(move || syncs.run());
    Ok(Some(sync_point))
}

/// The syncs of a mounted namespace.
struct Syncs {
    /// The decoupled directory, below the mount.
    dir: File,
    path: PathBuf,
    id: u128,
    namespace: NamespaceSync,
    sync_point: Arc<SyncPoint>,
}

impl Syncs {
    fn run(mut self) {
        while self.sync_point.take() {
            let outcome = match state_of(&self.dir) {
                Ok(Some(decoupled)) if decoupled.id == self.id => self.sync(&decoupled),
                // It was merged or aborted.
                Ok(_) => return self.sync_point.close(),
                Err(error) => Err(error),
            };
            let is_complete = outcome.unwrap_or_else(|error| {
                tracing::warn!("cannot sync {}, and will try again: {error:#}", self.path.display());
                false
            });
            self.sync_point.end(is_complete);
        }
    }

    /// Merges what is new. Returns false if the tables are needed before the end: the next sync
    /// continues.
    fn sync(&mut self, decoupled: &Decoupled) -> Result<bool> {
        let Some(namespace) = self.namespace.read(&self.sync_point)? else { return Ok(false) };
        let rest = self.namespace.rest_of(&namespace, decoupled, false)?;
        let mut at = rest.first();
        while at < rest.len() {
            let batches = self.batches(&rest, at)?;
            let Some(last) = batches.last() else { return Ok(false) };
            at = last.next;
            if at == rest.len() {
                // The server may be slow.
                self.sync_point.give_back();
            }
            self.namespace.record(at)?;
            for batch in batches {
                if let Err(errno) = fsetxattr(&self.dir, MERGE, &batch.value, XattrFlags::empty()) {
                    let merged = state_of(&self.dir)?.map_or(rest.first(), |decoupled| decoupled.merged);
                    let entry = rest.path_of(merged);
                    bail!("'{}': {}", OsStr::from_bytes(&entry).display(), text(errno));
                }
            }
        }
        Ok(true)
    }

    /// Batches from a record on, as far as memory suffices and the tables can be read.
    fn batches(&self, rest: &NamespaceRest<'_>, mut at: u64) -> Result<Vec<OutgoingBatch<()>>> {
        let (mut batches, mut bytes) = (Vec::new(), 0);
        while at < rest.len() && bytes < READ_AHEAD {
            // The end of the merge sends big files.
            let no_upload = |file: &BigFile| bail!("inode {} is a big file", file.inode.ino);
            let Some(batch) = self.sync_point.read(|| next_batch(rest, at, no_upload)) else { break };
            let batch = batch?;
            at = batch.next;
            bytes += batch.value.len();
            batches.push(batch);
        }
        Ok(batches)
    }
}
