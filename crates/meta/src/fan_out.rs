//! Fan-out of stream calls to data servers, and the combination of their answers.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use bytes::Bytes;
use espalier_proto::{DataReply, DataRequest, Errno, Ino, Layout, Segment, ServerId, StreamStat};

use crate::step::{StreamCall, StreamDone};
use crate::striping::Layouts;

impl StreamCall {
    /// The requests to data servers. Concerns only files with layouts.
    ///
    /// # Errors
    /// `EFBIG` for a size that no file can have.
    pub fn requests(&self, layouts: &Layouts) -> Result<Vec<(ServerId, DataRequest)>, Errno> {
        match self {
            Self::Stat(_) | Self::TryStat(_) | Self::Measure(_) => {
                return Ok(by_server(layouts, |inos| DataRequest::Stat { inos }));
            }
            Self::Precreate => return Ok(by_server(layouts, |inos| DataRequest::Precreate { inos })),
            Self::Discard => return Ok(by_server(layouts, |inos| DataRequest::Discard { inos })),
            _ => {}
        }
        let Some((_, layout)) = layouts.first() else { return Ok(Vec::new()) };
        if let Self::Fill { size, .. } | Self::Truncate { size, .. } = self
            && i64::try_from(*size).is_err()
        {
            return Err(Errno::EFBIG);
        }
        if let Self::Write { ino, offset, bytes } = self {
            let mut scattered = layout.scatter(*offset, bytes.clone());
            let write = |Segment { place, local: offset, .. }| {
                let data = core::mem::take(&mut scattered[place]);
                (layout.servers()[place], DataRequest::write(*ino, offset, data))
            };
            return Ok(layout.parts(*offset, bytes.len() as u64).into_iter().map(write).collect());
        }
        let bytes = if let Self::Fill { bytes, .. } = self { bytes.clone() } else { Bytes::new() };
        let mut contents = layout.scatter(0, bytes);
        let request = |(place, server): (usize, &ServerId)| {
            Some((*server, self.request(layout, place, &mut contents)?))
        };
        Ok(layout.servers().iter().enumerate().filter_map(request).collect())
    }

    fn request(&self, layout: &Layout, place: usize, contents: &mut [Bytes]) -> Option<DataRequest> {
        Some(match *self {
            Self::Stat(_)
            | Self::TryStat(_)
            | Self::Measure(_)
            | Self::Precreate
            | Self::Discard
            | Self::SyncStore
            | Self::Write { .. } => return None,
            Self::Fill { ino, size, mtime, sync, clean, .. } => {
                let (mut data, size) =
                    (core::mem::take(&mut contents[place]), layout.local_size(place, size));
                if clean && size == 0 {
                    return None;
                }
                // Trailing zeros are implied.
                data.truncate(data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
                DataRequest::Fill { ino, data, size, mtime, sync }
            }
            Self::Finalise { ino, durable } => DataRequest::Finalise { ino, durable },
            Self::Truncate { ino, size, by } => {
                DataRequest::Truncate { ino, size: layout.local_size(place, size), by }
            }
            Self::SetMtime { ino, mtime } => DataRequest::SetMtime { ino, mtime },
            Self::Sync { ino } => DataRequest::Sync { ino },
            Self::SyncServers => DataRequest::SyncAll,
            Self::Remove { ino } => DataRequest::Remove { ino },
        })
    }

    /// Combines the answers. `data_requests`: the result of [`Self::requests`]; `replies`: in the
    /// same order; `local`: the store's answer for a file without a layout.
    ///
    /// # Errors
    /// The first of the servers', and those of `local`.
    pub fn combine(
        &self,
        layouts: &Layouts,
        data_requests: &[(ServerId, DataRequest)],
        replies: Vec<Result<DataReply, Errno>>,
        local: impl Fn(Ino) -> Result<StreamStat, Errno>,
    ) -> Result<StreamDone, Errno> {
        let replies = replies.into_iter().collect::<Result<Vec<_>, _>>()?;
        let inos: Vec<Ino> = match self {
            Self::Stat(inos) | Self::TryStat(inos) => inos.clone(),
            Self::Measure(files) => files.iter().map(|(ino, _)| *ino).collect(),
            _ => return Ok(StreamDone::Done),
        };
        let mut stats_of: BTreeMap<(Ino, ServerId), StreamStat> = BTreeMap::new();
        for ((server, request), reply) in data_requests.iter().zip(replies) {
            let (DataRequest::Stat { inos }, DataReply::Stats(stats)) = (request, reply) else {
                return Err(Errno::EIO);
            };
            if stats.len() != inos.len() {
                return Err(Errno::EIO);
            }
            stats_of.extend(inos.iter().zip(stats).map(|(ino, stat)| ((*ino, *server), stat)));
        }
        let layouts: BTreeMap<Ino, &Layout> = layouts.iter().map(|(ino, layout)| (*ino, &**layout)).collect();
        let stat = |ino: Ino| match layouts.get(&ino) {
            None => local(ino),
            Some(layout) => {
                let of = |server: &ServerId| stats_of.get(&(ino, *server)).copied().ok_or(Errno::EIO);
                Ok(layout.whole(&layout.servers().iter().map(of).collect::<Result<Vec<_>, _>>()?))
            }
        };
        Ok(StreamDone::Stats(inos.into_iter().map(stat).collect::<Result<_, _>>()?))
    }
}

/// One request per server for many files.
fn by_server(layouts: &Layouts, request: impl Fn(Vec<Ino>) -> DataRequest) -> Vec<(ServerId, DataRequest)> {
    let mut inos_by_server: BTreeMap<ServerId, Vec<Ino>> = BTreeMap::new();
    for (ino, layout) in layouts {
        for server in layout.servers() {
            inos_by_server.entry(*server).or_default().push(*ino);
        }
    }
    let chunk = |(server, inos): &(ServerId, Vec<Ino>)| {
        let chunks = inos.chunks(DataRequest::MAX_INODES);
        chunks.map(|inos| (*server, request(inos.to_vec()))).collect::<Vec<_>>()
    };
    inos_by_server.into_iter().collect::<Vec<_>>().iter().flat_map(chunk).collect()
}
