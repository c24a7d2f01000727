//! Striped files against a model: a sequence of bytes with holes. Datafiles are modelled likewise.

use std::collections::BTreeSet;
use std::sync::Arc;

use espalier_client::{Striped, StripedStep};
use espalier_proto::{
    AllocateMode, DataReply, DataRequest, Distribution, Errno, Ino, Layout, RangeOp, Reply, SeekWhat,
    ServerId, StreamIo, StreamStat, Strip,
};
use fastrand::Rng;

const INO: Ino = Ino(5);

/// Bytes; `None` was never written.
#[derive(Clone, Debug, Default, PartialEq)]
struct SparseBytes(Vec<Option<u8>>);

impl SparseBytes {
    fn reach(&mut self, end: usize) {
        self.0.resize(self.0.len().max(end), None);
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        self.reach(offset + data.len());
        for (at, byte) in data.iter().enumerate() {
            self.0[offset + at] = Some(*byte);
        }
    }

    fn read(&self, offset: usize, size: usize) -> Vec<u8> {
        self.0.iter().skip(offset).take(size).map(|byte| byte.unwrap_or(0)).collect()
    }

    fn allocate(&mut self, offset: usize, length: usize, mode: AllocateMode) {
        if !mode.contains(AllocateMode::KEEP_SIZE) {
            self.reach(offset + length);
        }
        // Allocated space without bytes counts as a hole.
        if mode.contains(AllocateMode::PUNCH_HOLE) {
            self.0.iter_mut().skip(offset).take(length).for_each(|byte| *byte = None);
        }
    }

    fn seek(&self, offset: usize, what: SeekWhat) -> Option<usize> {
        if offset >= self.0.len() {
            return None;
        }
        let found = self.0[offset..].iter().position(|byte| byte.is_some() == (what == SeekWhat::Data));
        match what {
            SeekWhat::Data => found.map(|at| offset + at),
            SeekWhat::Hole => Some(found.map_or(self.0.len(), |at| offset + at)),
        }
    }

    fn answer(&mut self, request: DataRequest) -> Result<DataReply, Errno> {
        request.check()?;
        Ok(match request {
            DataRequest::Range { op: RangeOp::Read { offset, size }, .. } => {
                DataReply::Bytes(self.read(offset as usize, size as usize).into())
            }
            DataRequest::Range { op: RangeOp::Allocate { offset, length, mode }, .. } => {
                self.allocate(offset as usize, length as usize, mode);
                DataReply::Done
            }
            DataRequest::Range { op: RangeOp::Seek { offset, what }, .. } => {
                DataReply::Found(self.seek(offset as usize, what).map(|found| found as u64))
            }
            DataRequest::Range { op, data, .. } => {
                assert!(op.is_write(), "{op:?} is no client request");
                op.pieces(&data)?.into_iter().for_each(|(offset, piece)| self.write(offset as usize, piece));
                DataReply::Done
            }
            DataRequest::Stat { inos } => {
                let stat = StreamStat { size: self.0.len() as u64, ..StreamStat::default() };
                DataReply::Stats(vec![stat; inos.len()])
            }
            other => panic!("{other:?} is no client request"),
        })
    }
}

/// At least one strip for each server.
fn strips(random: &mut Rng, servers: usize) -> Vec<Strip> {
    let mut places: Vec<_> = (0..servers as u16).collect();
    places.extend((0..random.usize(..4)).map(|_| random.u16(..servers as u16)));
    random.shuffle(&mut places);
    places.into_iter().map(|place| Strip { place, length: random.u64(1..=17) }).collect()
}

struct StripedCluster {
    layout: Arc<Layout>,
    servers: Vec<SparseBytes>,
}

impl StripedCluster {
    fn new(random: &mut Rng, width: u16) -> Self {
        // Server numbers need not be places.
        let servers: Vec<_> = (0..width).map(|place| ServerId(100 - place)).collect();
        let distribution = match random.u8(0..3) {
            0 if servers.len() == 1 => Distribution::Basic,
            1 => Distribution::Varstrip { strips: strips(random, servers.len()) },
            _ => Distribution::SimpleStripe { strip: random.u64(1..=17) },
        };
        let layout = Layout::new(distribution, servers).expect("a layout");
        Self { layout: Arc::new(layout), servers: vec![SparseBytes::default(); usize::from(width)] }
    }

    /// `between`: other clients' operations between two rounds.
    fn act(
        &mut self,
        random: &mut Rng,
        io: StreamIo,
        data: &[u8],
        mut between: impl FnMut(&mut Self),
    ) -> Result<Reply, Errno> {
        let (mut striped, mut epoch) = Striped::start(Arc::clone(&self.layout), io, data.to_vec().into());
        for _ in 0..4 {
            let asks = match epoch {
                StripedStep::Done(result) => return result,
                StripedStep::Ask(asks) => asks,
            };
            let places: BTreeSet<_> = asks.iter().map(|(server, _)| server).collect();
            let is_list = matches!(io.op, RangeOp::WriteList { .. });
            assert!(!is_list || places.len() == asks.len(), "one list for each server: {asks:?}");
            let mut replies: Vec<_> = asks.iter().map(|_| Err(Errno::EIO)).collect();
            let mut order: Vec<_> = asks.into_iter().enumerate().collect();
            random.shuffle(&mut order);
            for (at, (server, request)) in order {
                let place = self.layout.servers().iter().position(|one| *one == server).expect("a server");
                replies[at] = self.servers[place].answer(request);
            }
            between(self);
            epoch = striped.advance(replies);
        }
        panic!("the operation does not end");
    }

    fn truncate(&mut self, size: usize) {
        for (place, server) in self.servers.iter_mut().enumerate() {
            server.0.resize(self.layout.local_size(place, size as u64) as usize, None);
        }
    }
}

#[test]
fn striped_files_are_as_whole_ones() {
    for seed in 0..400 {
        let random = &mut Rng::with_seed(seed);
        let width = random.u16(1..=5);
        let (mut cluster, mut model) = (StripedCluster::new(random, width), SparseBytes::default());
        for step in 0..60 {
            let (offset, length) = (random.usize(0..200), random.usize(1..120));
            let (ino, at) = (INO, offset as u64);
            let data: Vec<u8> = (0..length).map(|_| random.u8(1..)).collect();
            let what = format!("seed {seed} step {step} at {offset} length {length}");
            match random.u8(0..9) {
                0 | 1 => {
                    let written = cluster.act(random, StreamIo::write(ino, at, length as u32), &data, |_| ());
                    assert_eq!(written, Ok(Reply::Written(length as u32)), "{what}");
                    model.write(offset, &data);
                }
                2 => {
                    let later = (offset + length + random.usize(0..40), data.as_slice());
                    let pieces = [(offset, data.as_slice()), later];
                    let list = pieces.map(|(offset, piece)| (offset as u64, piece.to_vec().into()));
                    let (op, list) = RangeOp::list(&list).expect("two pieces");
                    let written = cluster.act(random, StreamIo::new(ino, op), &list, |_| ());
                    assert_eq!(written, Ok(Reply::Written(2 * length as u32)), "{what}");
                    pieces.into_iter().for_each(|(offset, piece)| model.write(offset, piece));
                }
                3 => {
                    let mode = [
                        AllocateMode::empty(),
                        AllocateMode::KEEP_SIZE,
                        AllocateMode::KEEP_SIZE | AllocateMode::PUNCH_HOLE,
                    ][random.usize(0..3)];
                    let op = RangeOp::Allocate { offset: at, length: length as u64, mode };
                    assert_eq!(
                        cluster.act(random, StreamIo::new(ino, op), b"", |_| ()),
                        Ok(Reply::Done),
                        "{what}"
                    );
                    model.allocate(offset, length, mode);
                }
                4 => {
                    cluster.truncate(offset);
                    model.0.resize(offset, None);
                }
                5 | 6 => {
                    for seek in [SeekWhat::Data, SeekWhat::Hole] {
                        let io = StreamIo::new(ino, RangeOp::Seek { offset: at, what: seek });
                        let wanted = model.seek(offset, seek);
                        let wanted = wanted.map(|found| Reply::Offset(found as u64)).ok_or(Errno::ENXIO);
                        assert_eq!(cluster.act(random, io, b"", |_| ()), wanted, "{what} {seek:?}");
                    }
                }
                _ => {
                    let io = StreamIo::read(ino, at, length as u32);
                    let wanted = Ok(Reply::Bytes(model.read(offset, length).into()));
                    assert_eq!(cluster.act(random, io, b"", |_| ()), wanted, "{what}");
                }
            }
            let sizes = cluster.servers.iter().map(|server| server.0.len() as u64);
            assert_eq!(cluster.layout.size(sizes), model.0.len() as u64, "{what}");
        }
    }
}

/// A log grows while it is read: a read never returns zeros that were not written.
#[test]
fn concurrent_append_leaves_no_hole() {
    for seed in 0..200 {
        let random = &mut Rng::with_seed(seed);
        let mut cluster = StripedCluster::new(random, 3);
        let mut length = random.usize(0..60);
        let grow = |cluster: &mut StripedCluster, length: &mut usize, by: usize| {
            for _ in 0..by {
                let at = cluster.layout.parts(*length as u64, 1)[0];
                cluster.servers[at.place].write(at.local as usize, b"x");
                *length += 1;
            }
        };
        let initial = std::mem::take(&mut length);
        grow(&mut cluster, &mut length, initial);
        let (steps, io) = (random.usize(0..40), StreamIo::read(INO, 0, 200));
        let read = cluster.act(random, io, b"", |cluster| grow(cluster, &mut length, steps));
        let Ok(Reply::Bytes(bytes)) = read else { panic!("{read:?}") };
        assert!(bytes.len() >= initial && bytes.iter().all(|byte| *byte == b'x'), "seed {seed}: {bytes:?}");
    }
}

#[test]
fn failure_of_one_server_fails_the_operation() {
    let layout = Layout::new(Distribution::SimpleStripe { strip: 4 }, vec![ServerId(1), ServerId(2)]);
    let layout = Arc::new(layout.expect("a layout"));
    let io = StreamIo::write(INO, 0, 1);
    let (mut striped, epoch) = Striped::start(Arc::clone(&layout), io, vec![1; 8].into());
    assert!(matches!(epoch, StripedStep::Ask(asks) if asks.len() == 2));
    let epoch = striped.advance(vec![Ok(DataReply::Done), Err(Errno::ENOSPC)]);
    assert!(matches!(epoch, StripedStep::Done(Err(Errno::ENOSPC))));
    let far = StreamIo::write(INO, i64::MAX as u64, 1);
    assert!(matches!(Striped::start(layout, far, vec![1].into()).1, StripedStep::Done(Err(Errno::EFBIG))));
}
