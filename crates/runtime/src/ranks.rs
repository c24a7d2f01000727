//! All ranks of a stopped cluster in one process: opens their stores, and runs their machines until
//! the transactions between them are finished. Used by `fsck`, dumps, drains, nonvolatile apply,
//! and `cluster resolve`.

use std::collections::VecDeque;
use std::path::PathBuf;

use espalier_meta::{Answered, Input, Now, Outbox};
use espalier_proto::Rank;
use espalier_store::Superblock;

use crate::clock;
use crate::error::Error;
use crate::fsck::checkpoint;
use crate::tracer::Steps;
use crate::volume::{OpenOptions, Volume};

/// Maximum number of rounds; each advances all transactions that can finish.
const ROUNDS: u32 = 10;

/// Opens the stores and returns them by rank.
///
/// # Errors
/// Errors of opening a store; the stores are not those of one complete tree.
pub(crate) fn open_ranks(dirs: &[PathBuf], options: &OpenOptions) -> Result<Vec<Volume>, Error> {
    let mut volumes = open_all(dirs, options)?;
    if !are_one_tree(volumes.iter().map(|volume| &volume.superblock)) {
        return Err(Error::OtherRanks);
    }
    let ranks = volumes.len() as u16;
    volumes.iter_mut().for_each(|volume| volume.superblock.ranks = ranks);
    Ok(volumes)
}

/// True if these are the superblocks of all ranks of one tree, by rank. A server that has not run
/// since others joined does not know of them yet.
pub(crate) fn are_one_tree<'a>(superblocks: impl ExactSizeIterator<Item = &'a Superblock>) -> bool {
    let (count, mut first) = (superblocks.len(), None);
    superblocks.enumerate().all(|(at, own)| {
        let uuid = *first.get_or_insert(own.uuid);
        own.rank == rank_of(at) && usize::from(own.ranks) <= count && own.uuid == uuid
    })
}

/// Opens the stores of some ranks, in the given order.
fn open_all(dirs: &[PathBuf], options: &OpenOptions) -> Result<Vec<Volume>, Error> {
    let options = OpenOptions { with_ranks: true, ..options.clone() };
    let open = |dir| Volume::open(dir, options.clone());
    let mut volumes = dirs.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    volumes.sort_by_key(|volume| volume.superblock.rank);
    Ok(volumes)
}

/// A transaction that a lost rank has left prepared at another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecided {
    /// The rank where it is prepared.
    pub rank: Rank,
    /// The prepared changes.
    pub changes: Vec<String>,
}

/// Aborts the transactions that a permanently lost rank has left undecided at the other ranks,
/// whose stores these are. Transactions among these ranks are finished first. `confirm` gets the
/// changes to abort and decides; its result is returned.
///
/// # Errors
/// Errors of opening a store; the stores are not all others of one tree.
pub fn resolve_lost(
    dirs: &[PathBuf],
    lost: Rank,
    confirm: impl FnOnce(&[Undecided]) -> bool,
) -> Result<bool, Error> {
    let mut volumes = open_all(dirs, &OpenOptions::read_once())?;
    let ranks: Vec<Rank> = volumes.iter().map(|volume| volume.superblock.rank).collect();
    let known = volumes.iter().map(|volume| usize::from(volume.superblock.ranks)).max();
    let are_one = volumes.iter().all(|volume| volume.superblock.uuid == volumes[0].superblock.uuid);
    let others = (0..=dirs.len()).map(rank_of).filter(|rank| *rank != lost);
    if !are_one || known != Some(dirs.len() + 1) || !others.eq(ranks.iter().copied()) {
        return Err(Error::OtherRanks);
    }
    finish_transactions(&mut volumes);
    let mut undecided = Vec::new();
    for Volume { meta, superblock, .. } in &volumes {
        for (_, edits) in meta.prepared_for(lost) {
            let changes = edits.iter().map(ToString::to_string).collect();
            undecided.push(Undecided { rank: superblock.rank, changes });
        }
    }
    let is_confirmed = confirm(&undecided);
    if is_confirmed {
        run(&mut volumes, ranks.into_iter().map(|rank| (rank, Input::PeerLost { rank: lost })).collect());
    }
    for volume in volumes {
        checkpoint(volume)?;
    }
    Ok(is_confirmed)
}

/// Finishes the transactions between ranks, as connected servers do. A transaction that remains
/// unfinished is a fault.
pub(crate) fn finish_transactions(volumes: &mut [Volume]) {
    let all: Vec<Rank> = volumes.iter().map(|volume| volume.superblock.rank).collect();
    let others = |own| all.iter().copied().filter(move |rank| *rank != own);
    let connect = |own| others(own).map(move |rank| (own, Input::PeerConnected { rank }));
    run(volumes, all.iter().copied().flat_map(connect).collect());
    for _ in 0..ROUNDS {
        if volumes.iter().all(|volume| volume.meta.open_transactions() == 0) {
            break;
        }
        // Background events are made durable, too.
        run(volumes, all.iter().map(|rank| (*rank, Input::Drain)).collect());
    }
}

/// Runs the machines on these inputs and their results, and returns the replies to clients.
/// Messages to absent ranks are dropped.
pub(crate) fn run(volumes: &mut [Volume], mut inputs: VecDeque<(Rank, Input)>) -> Vec<Answered> {
    let mut replies = Vec::new();
    while let Some((rank, input)) = inputs.pop_front() {
        let volume = volumes.iter_mut().find(|volume| volume.superblock.rank == rank);
        let Some(Volume { meta, disk, .. }) = volume else { continue };
        let mut out = Outbox::default();
        meta.on(Now { time: clock::now(), uptime_ms: clock::uptime_ms(), queued: 0 }, input, &mut out);
        for (id, io) in out.io {
            inputs.push_back((rank, Input::Done { id, result: disk.execute(io, Steps::NONE) }));
        }
        inputs.extend(out.peers.into_iter().map(|(to, message)| (to, Input::Peer { from: rank, message })));
        out.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        replies.append(&mut out.replies);
    }
    replies
}

fn rank_of(index: usize) -> Rank {
    Rank(u16::try_from(index).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use espalier_meta::{Edit, PeerMessage, Question, Referent, TransactionId};
    use espalier_proto::{Caller, FileType, Ino, Name, Time};

    use super::*;
    use crate::volume::{MkfsOptions, mkfs_ranks};

    #[test]
    fn undecided_transactions_of_lost_rank_are_aborted_on_confirmation() {
        let dir = tempfile::tempdir().expect("a directory");
        let stores = [0, 1, 2].map(|rank| dir.path().join(format!("store-{rank}")));
        let options = MkfsOptions { journal_bytes: Some(4 << 20), ..MkfsOptions::default() };
        mkfs_ranks(&stores, &options).expect("stores");
        let (lost, left) = (Rank(1), [stores[2].clone(), stores[0].clone()]);
        let mut first = open_all(&stores[..1], &OpenOptions::read_once()).expect("a store");
        let id = TransactionId { began: 1, number: 1, rank: lost };
        let ino = Ino::none_of(lost);
        let referent = Referent { ino, kind: FileType::Directory, at: lost };
        let name = Name::new(b"new").expect("a name");
        let edits = vec![Edit::PutName { dir: Ino::ROOT, name, referent }];
        let question = Question::Prepare { edits, time: Time::new(1, 0), since: Time::new(1, 0) };
        let message = PeerMessage::Ask { id, caller: Caller::SERVER, question };
        run(&mut first, [(Rank(0), Input::Peer { from: lost, message })].into());
        assert_eq!(first[0].meta.open_transactions(), 1);
        drop(first);

        let resolve = |confirmed| {
            let mut seen = Vec::new();
            let done = resolve_lost(&left, lost, |undecided| {
                seen = undecided.to_vec();
                confirmed
            });
            assert_eq!(done.expect("stores"), confirmed);
            seen
        };
        let undecided = resolve(false);
        let [Undecided { rank: Rank(0), changes }] = &undecided[..] else { panic!("{undecided:?}") };
        assert_eq!(*changes, [format!("the name \"new\" of inode {ino} comes to directory 1")]);
        assert_eq!(resolve(true), undecided);
        assert_eq!(resolve(true), []);
        for (stores, lost) in [(&left[..], Rank(0)), (&left[..1], lost), (&stores[..], lost)] {
            assert!(matches!(resolve_lost(stores, lost, |_| true), Err(Error::OtherRanks)));
        }
    }
}
