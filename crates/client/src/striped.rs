//! I/O on striped files: splits it into requests to data servers, and combines their replies.
//! It proceeds in rounds; a round begins when all replies of the previous one have arrived.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use bytes::Bytes;
use espalier_proto::{
    Attr, DataReply, DataRequest, Errno, Ino, Layout, RangeOp, Reply, SeekWhat, Segment, ServerId, StreamIo,
    StreamStat, pieces_of,
};

/// An operation on a striped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Stream(StreamIo),
    /// Create the datafiles; with `sync`, durably if the servers' writes are durable.
    Create {
        ino: Ino,
        sync: bool,
    },
    /// Complete these attributes with the size and times of the datafiles.
    Measure(Attr),
    /// Remove the datafiles.
    Remove(Ino),
}

impl From<StreamIo> for Work {
    fn from(io: StreamIo) -> Self {
        Self::Stream(io)
    }
}

/// An operation in progress on a striped file. See the module's documentation.
#[derive(Debug)]
pub struct Striped {
    layout: Arc<Layout>,
    round: StripedRound,
}

/// The requests of the current round.
#[derive(Debug)]
enum StripedRound {
    Read(Read),
    /// The sizes of the datafiles, to distinguish holes from the file's end after a short read.
    Measure(Read),
    /// A second read of the missing parts.
    ReadAgain(Read),
    Write {
        length: usize,
    },
    /// Requests whose replies carry no data.
    Each,
    /// The attributes of each datafile.
    Attr(Attr),
    /// The sizes of the datafiles, and the offset found in each.
    Seek {
        offset: u64,
        what: SeekWhat,
    },
}

/// A read in progress.
#[derive(Debug)]
struct Read {
    ino: Ino,
    offset: u64,
    length: u64,
    /// The requested parts, and the bytes received from the datafile at each place.
    parts: Vec<Segment>,
    bytes: Vec<Bytes>,
}

/// The result of a round.
#[derive(Debug)]
pub enum StripedStep {
    /// Send these requests; [`Striped::advance`] takes all replies in this order.
    Ask(Vec<(ServerId, DataRequest)>),
    Done(Result<Reply, Errno>),
}

impl Striped {
    /// Starts an operation. `data`: the bytes to write.
    pub fn start(layout: Arc<Layout>, work: impl Into<Work>, data: Bytes) -> (Self, StripedStep) {
        let (round, epoch) = match work.into() {
            Work::Stream(io) => begin(&layout, io, data),
            Work::Create { ino, sync } => each(&layout, &DataRequest::Create { ino, sync }),
            Work::Remove(ino) => each(&layout, &DataRequest::Remove { ino }),
            Work::Measure(attr) => (StripedRound::Attr(attr), StripedStep::Ask(measure(&layout, attr.ino))),
        };
        (Self { layout, round }, epoch)
    }

    /// Continues with the replies of the round.
    pub fn advance(&mut self, replies: Vec<Result<DataReply, Errno>>) -> StripedStep {
        match self.proceed(replies) {
            Ok(epoch) => epoch,
            Err(errno) => StripedStep::Done(Err(errno)),
        }
    }

    fn proceed(&mut self, replies: Vec<Result<DataReply, Errno>>) -> Result<StripedStep, Errno> {
        let replies = replies.into_iter().collect::<Result<Vec<_>, _>>()?;
        let layout = Arc::clone(&self.layout);
        let (round, epoch) = match core::mem::replace(&mut self.round, StripedRound::Each) {
            StripedRound::Read(read) => read.received(replies)?.judge(&layout),
            StripedRound::ReadAgain(read) => done(Ok(Reply::Bytes(read.received(replies)?.gather(&layout)))),
            StripedRound::Measure(read) => read.measured(&layout, layout.size(sizes(&replies)?)),
            StripedRound::Write { length } => done(Ok(Reply::Written(length as u32))),
            StripedRound::Each => done(Ok(Reply::Done)),
            StripedRound::Attr(attr) => done(measured(&layout, attr, &replies)),
            StripedRound::Seek { offset, what } => done(found(&layout, offset, what, &replies)),
        };
        self.round = round;
        Ok(epoch)
    }
}

fn done(result: Result<Reply, Errno>) -> (StripedRound, StripedStep) {
    (StripedRound::Each, StripedStep::Done(result))
}

fn begin(layout: &Layout, io: StreamIo, data: Bytes) -> (StripedRound, StripedStep) {
    let StreamIo { ino, op, .. } = io;
    match op {
        RangeOp::Read { offset, size } => Read::begin(layout, ino, offset, size),
        RangeOp::Write { offset, .. } => write(layout, ino, offset, data),
        RangeOp::WriteList { .. } => write_pieces(layout, ino, &data),
        RangeOp::Allocate { offset, length, .. } if is_too_far(offset, length) => done(Err(Errno::EFBIG)),
        RangeOp::Allocate { offset, length, mode } => {
            let ask = |Segment { place, local: offset, length }| {
                let op = RangeOp::Allocate { offset, length, mode };
                (layout.servers()[place], DataRequest::range(ino, op))
            };
            (
                StripedRound::Each,
                StripedStep::Ask(layout.parts(offset, length).into_iter().map(ask).collect()),
            )
        }
        RangeOp::Seek { offset, what } => {
            let mut asks = measure(layout, ino);
            asks.extend(layout.servers().iter().enumerate().map(|(place, server)| {
                let offset = layout.local_size(place, offset);
                (*server, DataRequest::range(ino, RangeOp::Seek { offset, what }))
            }));
            (StripedRound::Seek { offset, what }, StripedStep::Ask(asks))
        }
        // The caller falls back to reading and writing.
        RangeOp::Copy { .. } => done(Err(Errno::EXDEV)),
    }
}

/// Offsets in system calls are signed.
fn is_too_far(offset: u64, length: u64) -> bool {
    offset.checked_add(length).is_none_or(|end| i64::try_from(end).is_err())
}

/// Requests the sizes of all datafiles.
fn measure(layout: &Layout, ino: Ino) -> Vec<(ServerId, DataRequest)> {
    layout.servers().iter().map(|server| (*server, DataRequest::Stat { inos: vec![ino] })).collect()
}

fn each(layout: &Layout, request: &DataRequest) -> (StripedRound, StripedStep) {
    (
        StripedRound::Each,
        StripedStep::Ask(layout.servers().iter().map(|server| (*server, request.clone())).collect()),
    )
}

fn stats(replies: &[DataReply]) -> Result<Vec<StreamStat>, Errno> {
    let stat = |reply: &DataReply| match reply {
        DataReply::Stats(stats) => stats.first().copied().ok_or(Errno::EIO),
        _ => Err(Errno::EIO),
    };
    replies.iter().map(stat).collect()
}

fn sizes(replies: &[DataReply]) -> Result<Vec<u64>, Errno> {
    Ok(stats(replies)?.iter().map(|stat| stat.size).collect())
}

fn measured(layout: &Layout, mut attr: Attr, replies: &[DataReply]) -> Result<Reply, Errno> {
    attr.measure(&layout.whole(&stats(replies)?));
    Ok(Reply::Attr(attr))
}

fn write(layout: &Layout, ino: Ino, offset: u64, data: Bytes) -> (StripedRound, StripedStep) {
    if is_too_far(offset, data.len() as u64) {
        return done(Err(Errno::EFBIG));
    }
    if data.is_empty() {
        return done(Ok(Reply::Written(0)));
    }
    let (length, mut scattered) = (data.len(), layout.scatter(offset, data));
    let ask = |Segment { place, local: offset, .. }| {
        let data = core::mem::take(&mut scattered[place]);
        (layout.servers()[place], DataRequest::write(ino, offset, data))
    };
    let asks = layout.parts(offset, length as u64).into_iter().map(ask).collect();
    (StripedRound::Write { length }, StripedStep::Ask(asks))
}

/// Sends each server the list of the pieces that it stores.
fn write_pieces(layout: &Layout, ino: Ino, list: &Bytes) -> (StripedRound, StripedStep) {
    let pieces = match pieces_of(list) {
        Ok(pieces) => pieces,
        Err(errno) => return done(Err(errno)),
    };
    let (mut lists, mut length) = (vec![Vec::new(); layout.servers().len()], 0);
    for (offset, piece) in pieces {
        length += piece.len();
        let mut scattered = layout.scatter(offset, list.slice_ref(piece));
        for Segment { place, local, .. } in layout.parts(offset, piece.len() as u64) {
            lists[place].push((local, core::mem::take(&mut scattered[place])));
        }
    }
    let ask = |(server, list): (&ServerId, Vec<_>)| {
        RangeOp::list(&list).map(|(op, data)| (*server, DataRequest::Range { ino, op, data }))
    };
    let asks = layout.servers().iter().zip(lists).filter_map(ask).collect();
    (StripedRound::Write { length }, StripedStep::Ask(asks))
}

impl Read {
    fn begin(layout: &Layout, ino: Ino, offset: u64, size: u32) -> (StripedRound, StripedStep) {
        let length = u64::from(size);
        if length == 0 || is_too_far(offset, length) {
            return done(Ok(Reply::Bytes(Bytes::new())));
        }
        let bytes = vec![Bytes::new(); layout.servers().len()];
        let read = Self { ino, offset, length, parts: layout.parts(offset, length), bytes };
        let asks = read.asks(layout);
        (StripedRound::Read(read), StripedStep::Ask(asks))
    }

    fn asks(&self, layout: &Layout) -> Vec<(ServerId, DataRequest)> {
        let ask = |part: &Segment| {
            let request = DataRequest::read(self.ino, part.local, part.length as u32);
            (layout.servers()[part.place], request)
        };
        self.parts.iter().map(ask).collect()
    }

    fn received(mut self, replies: Vec<DataReply>) -> Result<Self, Errno> {
        for (part, reply) in self.parts.iter().zip(replies) {
            let DataReply::Bytes(bytes) = reply else { return Err(Errno::EIO) };
            self.bytes[part.place] = bytes;
        }
        Ok(self)
    }

    fn judge(mut self, layout: &Layout) -> (StripedRound, StripedStep) {
        let is_short = |part: &Segment| (self.bytes[part.place].len() as u64) < part.length;
        if let [only] = &self.bytes[..] {
            self.length = only.len() as u64;
        } else if self.parts.iter().any(is_short) {
            let asks = measure(layout, self.ino);
            return (StripedRound::Measure(self), StripedStep::Ask(asks));
        }
        done(Ok(Reply::Bytes(self.gather(layout))))
    }

    /// Bytes missing before the end of the file are a hole only if a second read does not find them
    /// either: they may have been written after the first read and before the write that determined
    /// the size.
    fn measured(mut self, layout: &Layout, size: u64) -> (StripedRound, StripedStep) {
        self.length = self.length.min(size.saturating_sub(self.offset));
        self.parts = layout.parts(self.offset, self.length);
        self.parts.retain(|part| (self.bytes[part.place].len() as u64) < part.length);
        if self.parts.is_empty() {
            return done(Ok(Reply::Bytes(self.gather(layout))));
        }
        let asks = self.asks(layout);
        (StripedRound::ReadAgain(self), StripedStep::Ask(asks))
    }

    fn gather(&self, layout: &Layout) -> Bytes {
        if let [only] = &self.parts[..]
            && self.bytes[only.place].len() as u64 == self.length
        {
            return self.bytes[only.place].clone();
        }
        let mut gathered = Vec::with_capacity(self.length as usize);
        let mut taken = vec![0; self.bytes.len()];
        for Segment { place, length, .. } in layout.segments(self.offset, self.length) {
            let (from, length) = (taken[place], length as usize);
            let there = self.bytes[place].get(from..).unwrap_or_default();
            let there = &there[..there.len().min(length)];
            gathered.extend_from_slice(there);
            gathered.resize(gathered.len() + length - there.len(), 0);
            taken[place] += length;
        }
        gathered.into()
    }
}

/// `replies`: the sizes of all datafiles, then the offset found in each.
fn found(layout: &Layout, offset: u64, what: SeekWhat, replies: &[DataReply]) -> Result<Reply, Errno> {
    let (stats, places) = replies.split_at_checked(layout.servers().len()).ok_or(Errno::EIO)?;
    let size = layout.size(sizes(stats)?);
    if offset >= size {
        return Err(Errno::ENXIO);
    }
    let mut nearest = match what {
        SeekWhat::Data => None,
        SeekWhat::Hole => Some(size),
    };
    for (place, reply) in places.iter().enumerate() {
        let DataReply::Found(found) = reply else { return Err(Errno::EIO) };
        let local = match what {
            SeekWhat::Data => *found,
            // A datafile is a hole beyond its end.
            SeekWhat::Hole => Some(found.unwrap_or(layout.local_size(place, offset))),
        };
        let candidate = local.map(|local| layout.logical(place, local));
        nearest = [nearest, candidate].into_iter().flatten().min();
    }
    nearest.map(Reply::Offset).ok_or(Errno::ENXIO)
}
