//! Moves all files off a data server, in a cluster that is not running.

use std::collections::BTreeSet;
use std::path::PathBuf;

use bytes::Bytes;
use espalier_meta::relayout;
use espalier_proto::{DataReply, DataRequest, Errno, Ino, RangeOp, SeekWhat, ServerId};
use espalier_store::Store;

use crate::data::DataStore;
use crate::disk::Disk;
use crate::error::Error;
use crate::fsck::checkpoint;
use crate::ranks::{finish_transactions, open_ranks};
use crate::volume::OpenOptions;

/// The result of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Number of files that were moved.
    pub moved: u64,
    /// Number of files that stay because they are striped over all other servers, too.
    pub left: u64,
}

/// Unit of copying, in bytes.
const PIECE: u64 = 1 << 20;

/// Moves the datafiles of a data server to servers in `to` that the files do not use yet. An
/// interrupted drain can be repeated: the original is removed only after all copies are durable.
///
/// # Errors
/// Errors of the stores, also if one is in use; unfinished operations between ranks.
pub fn drain(
    ranks: &[PathBuf],
    from: (ServerId, PathBuf),
    to: &[(ServerId, PathBuf)],
) -> Result<Drained, Error> {
    let open = |(number, path): &(ServerId, PathBuf)| DataStore::open(path, *number, false);
    let (from, to) = (open(&from)?, to.iter().map(open).collect::<Result<Vec<_>, _>>()?);
    let mut volumes = open_ranks(ranks, &OpenOptions::read_once())?;
    finish_transactions(&mut volumes);
    if volumes.iter().any(|volume| volume.meta.open_transactions() > 0) {
        return Err(Error::Undecided);
    }
    let (mut moved, mut left) = (0, BTreeSet::new());
    for volume in volumes {
        let disk = checkpoint(volume)?;
        moved += drain_rank(&disk, &from, &to, &mut left)?;
    }
    for (ino, _) in from.datafiles()? {
        // Includes files that an earlier attempt has moved.
        if !left.contains(&ino) {
            from.execute(DataRequest::Remove { ino }).map_err(Error::Drain)?;
        }
    }
    from.sync_removed().map_err(Error::Drain)?;
    Ok(Drained { moved, left: left.len() as u64 })
}

/// Drains the files of one metadata server; returns the number of moved files.
fn drain_rank(
    disk: &Disk,
    from: &DataStore,
    to: &[DataStore],
    left: &mut BTreeSet<Ino>,
) -> Result<u64, Error> {
    let mut writes = Vec::new();
    for record in disk.store.records() {
        let (object, key, value) = record?;
        let mut failed = None;
        let write = relayout(object, &key, &value, |ino, layout| {
            if !layout.servers().contains(&from.number()) {
                return None;
            }
            let others: Vec<_> = to.iter().filter(|one| !layout.servers().contains(&one.number())).collect();
            // Inode numbers are consecutive, so this distributes the files evenly.
            let Some(other) = others.get((ino.0 % others.len().max(1) as u64) as usize) else {
                left.insert(ino);
                return None;
            };
            failed = copy(from, other, ino).err();
            layout.replace(from.number(), other.number()).ok()
        });
        if let Some(errno) = failed {
            return Err(Error::Drain(errno));
        }
        writes.extend(write);
    }
    let moved = writes.len() as u64;
    disk.store.stage(writes)?;
    disk.store.publish()?;
    Ok(moved)
}

/// Copies a datafile with its holes and its mtime, durably.
fn copy(from: &DataStore, to: &DataStore, ino: Ino) -> Result<(), Errno> {
    let DataReply::Stats(stats) = from.execute(DataRequest::Stat { inos: vec![ino] })? else {
        return Err(Errno::EIO);
    };
    let stat = *stats.first().ok_or(Errno::EIO)?;
    // An empty datafile need not exist.
    to.execute(DataRequest::Fill {
        ino,
        data: Bytes::new(),
        size: stat.size,
        mtime: stat.mtime,
        sync: false,
    })?;
    let seek = |offset, what| match from.execute(DataRequest::range(ino, RangeOp::Seek { offset, what }))? {
        DataReply::Found(found) => Ok(found),
        _ => Err(Errno::EIO),
    };
    let mut at = 0;
    while at < stat.size
        && let Some(mut offset) = seek(at, SeekWhat::Data)?
    {
        at = seek(offset, SeekWhat::Hole)?.unwrap_or(stat.size);
        while offset < at {
            let size = PIECE.min(at - offset) as u32;
            let DataReply::Bytes(data) = from.execute(DataRequest::read(ino, offset, size))? else {
                return Err(Errno::EIO);
            };
            if data.is_empty() {
                break;
            }
            let read = data.len() as u64;
            to.execute(DataRequest::write(ino, offset, data))?;
            offset += read;
        }
    }
    for request in [
        DataRequest::SetMtime { ino, mtime: stat.mtime },
        DataRequest::Sync { ino },
        DataRequest::Finalise { ino, durable: 0 },
    ] {
        to.execute(request)?;
    }
    Ok(())
}
