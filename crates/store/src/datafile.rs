//! What a data server does with its store, which has a stream for each datafile.

use espalier_proto::{DataReply, DataRequest, Time};

use crate::error::StoreError;
use crate::store::Store;

/// Does what is asked of a data server. `sync`: what is written is durable then.
///
/// # Errors
/// Those of the store.
pub fn carry_out(store: &dyn Store, request: DataRequest, sync: bool) -> Result<DataReply, StoreError> {
    let changed = |ino| if sync { store.stream_sync(ino) } else { Ok(()) };
    match request {
        DataRequest::Read { ino, offset, size } => {
            let mut bytes = vec![0; size as usize];
            let read = store.stream_read(ino, offset, &mut bytes)?;
            bytes.truncate(read);
            return Ok(DataReply::Bytes(bytes));
        }
        DataRequest::Seek { ino, offset, what } => {
            return Ok(DataReply::Found(store.stream_seek(ino, offset, what)?));
        }
        DataRequest::Stat { inos } => {
            let stats = inos.into_iter().map(|ino| store.stream_stat(ino)).collect::<Result<_, _>>()?;
            return Ok(DataReply::Stats(stats));
        }
        DataRequest::New => return Ok(DataReply::Inos(store.new_streams()?)),
        DataRequest::Space => return Ok(DataReply::Space(store.space()?)),
        DataRequest::Write { ino, offset, data } => {
            store.stream_write(ino, offset, &data)?;
            changed(ino)?;
        }
        DataRequest::Allocate { ino, offset, length, mode } => {
            store.stream_allocate(ino, offset, length, mode)?;
            changed(ino)?;
        }
        DataRequest::Truncate { ino, size } => {
            store.stream_truncate(ino, size)?;
            changed(ino)?;
        }
        DataRequest::Precreate { inos } => {
            for ino in inos {
                store.stream_truncate(ino, 0)?;
                store.stream_set_mtime(ino, Time::default())?;
            }
        }
        // What is there may have been written to: then this comes late.
        DataRequest::Create { ino } if store.stream_stat(ino)?.ctime != Time::default() => {}
        DataRequest::Create { ino } => {
            store.stream_truncate(ino, 0)?;
            store.stream_set_mtime(ino, Time::default())?;
            changed(ino)?;
        }
        DataRequest::Discard { inos } => {
            inos.into_iter().try_for_each(|ino| store.stream_remove(ino))?;
            store.sync_removed_streams()?;
        }
        // One that is not there has no time, nor bytes.
        DataRequest::SetMtime { ino, .. } if store.stream_stat(ino)?.ctime == Time::default() => {}
        DataRequest::SetMtime { ino, mtime } => {
            store.stream_set_mtime(ino, mtime)?;
            changed(ino)?;
        }
        // What an earlier attempt has left would count.
        DataRequest::Fill { ino, size: 0, .. } => store.stream_remove(ino)?,
        DataRequest::Fill { ino, data, size, mtime, sync: sync_it } => {
            store.stream_create(ino)?;
            store.stream_write(ino, 0, &data)?;
            store.stream_truncate(ino, size)?;
            store.stream_set_mtime(ino, mtime)?;
            if sync_it || sync {
                store.stream_sync(ino)?;
            }
        }
        DataRequest::Settle { ino } => store.stream_settle(ino)?,
        DataRequest::Sync { ino } => store.stream_sync(ino)?,
        DataRequest::Remove { ino } => store.stream_remove(ino)?,
        // The machine's own.
        DataRequest::Admit { .. } => {}
    }
    Ok(DataReply::Done)
}
