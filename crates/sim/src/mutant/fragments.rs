//! Changes of mutants to fragments of directories.

use espalier_meta::{Body, Edit, Inode, Partition, PeerMessage, Question, SplitCause};
use espalier_proto::{Attr, Errno, FragmentMap, FromServer, Reply};

use super::Mutation;
use crate::message::Message;

/// Breaks a split, or another change of a partitioned directory, on its way to a participant.
pub(super) fn with_wrong_edits(mutation: Mutation, mut message: Message) -> Message {
    if let Message::Peer(PeerMessage::Ask { question: Question::Prepare { edits, .. }, .. }) = &mut message {
        edits.retain_mut(|edit| match (mutation, edit) {
            (Mutation::KeptRights, Edit::SetRights { .. }) | (Mutation::UnsetMap, Edit::SetMap { .. }) => {
                false
            }
            // A directory with version 0 is whole.
            (Mutation::ReusedVersion, Edit::SetMap { map, after, .. }) if *after > 0 => {
                *map = with_version(map, *after);
                true
            }
            (Mutation::RenumberedFragments, Edit::SetMap { map, .. }) => {
                *map = renumbered(map);
                true
            }
            (Mutation::LostName, Edit::AcceptNames { names, .. }) => {
                names.pop();
                true
            }
            (Mutation::OverstatedRate, Edit::Make { inode }) => {
                overstate_rate(inode);
                true
            }
            (Mutation::UnmovedName, Edit::MoveNames { inodes, .. }) => {
                inodes.pop();
                !inodes.is_empty()
            }
            _ => true,
        });
    }
    message
}

/// Breaks the reply to a request that concerns fragments of a directory.
pub(super) fn with_wrong_fragment(mutation: Mutation, mut message: Message) -> Message {
    if let Message::FromServer(FromServer::Reply { result, .. }) = &mut message {
        match (mutation, &mut *result) {
            (Mutation::ShortListing, Ok(Reply::Listing { until, .. })) => *until = u64::MAX,
            (Mutation::DoubledFragment, Ok(Reply::Attr(attr))) if attr.map_version == Attr::FRAGMENT => {
                attr.size *= 2;
            }
            (Mutation::UnroutedName, Ok(Reply::Fragments(_))) => *result = Err(Errno::ENOENT),
            _ => {}
        }
    }
    message
}

/// A new fragment states more requests than there were.
fn overstate_rate(inode: &mut Inode) {
    if let Body::Directory(directory) = &mut inode.body
        && let Some(Partition::Fragment { cause: Some(SplitCause::Requests { rate, .. }), .. }) =
            directory.partition.as_deref_mut()
    {
        *rate *= 1000;
    }
}

/// The map of a directory as if all its servers had been there from the start.
fn renumbered(map: &FragmentMap) -> FragmentMap {
    let ranks = map.servers() as u16;
    let list = FragmentMap::new(map.dir(), ranks);
    if (0..ranks.into()).all(|at| list.rank(at) == map.rank(at)) {
        return map.clone();
    }
    let number_of = |rank| (0..ranks.into()).find(|at| list.rank(*at) == rank);
    let fragments = map.fragments().filter_map(|(number, ino)| Some((number_of(map.rank(number))?, ino)));
    FragmentMap::with_fragments(map.dir(), ranks, &fragments.collect())
}

/// The map with another version, which comes first in its encoding.
fn with_version(map: &FragmentMap, version: u32) -> FragmentMap {
    let changed = || {
        let encoded = postcard::to_allocvec(map)?;
        let (_, rest) = postcard::take_from_bytes::<u32>(&encoded)?;
        postcard::from_bytes(&[&postcard::to_allocvec(&version)?, rest].concat())
    };
    changed().unwrap_or_else(|_: postcard::Error| map.clone())
}
