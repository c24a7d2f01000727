//! The stores of all metadata servers that share a tree, opened by one process.

use std::collections::VecDeque;
use std::path::PathBuf;

use espalier_meta::{Input, Now, Outbox};
use espalier_proto::Rank;

use crate::clock;
use crate::error::Error;
use crate::volume::{OpenOptions, Volume};

/// Each brings all transactions that can end a step further.
const ROUNDS: u32 = 10;

/// Opens the stores. Returns them by rank.
///
/// # Errors
/// Those of opening each; and they are not all that there are of one tree.
pub(crate) fn open_ranks(dirs: &[PathBuf], options: &OpenOptions) -> Result<Vec<Volume>, Error> {
    let options = OpenOptions { with_ranks: true, ..options.clone() };
    let open = |dir| Volume::open(dir, options.clone());
    let mut volumes = dirs.iter().map(|dir| open(dir)).collect::<Result<Vec<_>, _>>()?;
    volumes.sort_by_key(|volume| volume.superblock.rank);
    let of_one = |(at, volume): (usize, &Volume)| {
        let (own, first) = (&volume.superblock, &volumes[0].superblock);
        own.rank == rank_of(at) && usize::from(own.ranks) == dirs.len() && own.uuid == first.uuid
    };
    if volumes.iter().enumerate().all(of_one) { Ok(volumes) } else { Err(Error::OtherRanks) }
}

/// Brings what ranks have begun together to its end, as they do when they run and are connected. What remains open then is a
/// fault.
pub(crate) fn settle_ranks(volumes: &mut [Volume]) {
    let all = 0..volumes.len();
    let others = |own| all.clone().filter(move |rank| *rank != own);
    let connect = |own| others(own).map(move |rank| (own, Input::PeerConnected { rank: rank_of(rank) }));
    run(volumes, all.clone().flat_map(connect).collect());
    for _ in 0..ROUNDS {
        if volumes.iter().all(|volume| volume.meta.open_transactions() == 0) {
            break;
        }
        // What nobody waits for is made durable now.
        run(volumes, all.clone().map(|rank| (rank, Input::Drain)).collect());
    }
}

/// Gives machines these inputs, and all that follow from them.
fn run(volumes: &mut [Volume], mut inputs: VecDeque<(usize, Input)>) {
    while let Some((rank, input)) = inputs.pop_front() {
        let Some(Volume { meta, disk, .. }) = volumes.get_mut(rank) else { continue };
        let mut out = Outbox::default();
        meta.on(Now { time: clock::now(), uptime_ms: clock::uptime_ms(), queued: 0 }, input, &mut out);
        for (id, io) in out.io {
            inputs.push_back((rank, Input::Done { id, result: disk.execute(io) }));
        }
        let from = rank_of(rank);
        inputs
            .extend(out.peers.into_iter().map(|(to, message)| (to.0.into(), Input::Peer { from, message })));
    }
}

fn rank_of(index: usize) -> Rank {
    Rank(u16::try_from(index).unwrap_or(u16::MAX))
}
