//! Changes of mutants to fragments of directories.

use espalier_meta::{Body, Inode, Partition, SplitCause};
use espalier_proto::FragmentMap;

/// A new fragment states more requests than there were.
pub(super) fn overstate_rate(inode: &mut Inode) {
    if let Body::Directory(directory) = &mut inode.body
        && let Some(Partition::Fragment { cause: Some(SplitCause::Requests { rate, .. }), .. }) =
            directory.partition.as_deref_mut()
    {
        *rate *= 1000;
    }
}

/// The map of a directory as if all its servers had been there from the start.
pub(super) fn renumbered(map: &FragmentMap) -> FragmentMap {
    let ranks = map.servers() as u16;
    let list = FragmentMap::new(map.dir(), ranks);
    if (0..ranks.into()).all(|at| list.rank(at) == map.rank(at)) {
        return map.clone();
    }
    let number_of = |rank| (0..ranks.into()).find(|at| list.rank(*at) == rank);
    let fragments = map.fragments().filter_map(|(number, ino)| Some((number_of(map.rank(number))?, ino)));
    FragmentMap::with_fragments(map.dir(), ranks, &fragments.collect())
}
