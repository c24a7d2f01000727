//! Shows the fragments of a directory (`espalier subtree show`).

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use espalier_proto::{Errno, FragmentMap, Ino};

use crate::machine::{Cx, Meta};
use crate::metrics::Popularity;
use crate::rank::{PeerAnswer, Question};
use crate::record::{PastTransfer, SplitCause, TransferKind};
use crate::step::{Step, Stop, Wait};

/// Maximum size in bytes of an extended attribute's value, as on Linux.
const MAX_VALUE: usize = 65536;

/// A fragment as its rank describes it.
pub(super) struct FragmentState {
    ino: Ino,
    pub(super) entries: u64,
    pub(super) popularity: Popularity,
    cause: Option<SplitCause>,
}

impl Meta {
    /// The fragments of a directory in the order of their hashes, as TOML. Numbers of entries at
    /// different ranks may be from different times.
    ///
    /// # Errors
    /// `ENODATA`: it is not a directory. `E2BIG`: it has more than about 400 fragments.
    pub(crate) fn show_fragments(&mut self, cx: &mut Cx<'_>, dir: Ino) -> Step<String> {
        let inode = self.state.inode(dir)?;
        if !inode.is_dir() || inode.fragment().is_some() {
            return Err(Errno::ENODATA.into());
        }
        let transfers = inode.past_transfers().to_vec();
        let map = self.map_of(dir)?;
        let mut text = format!("version = {}\nservers = {}\nfragments = [\n", map.version(), map.servers());
        for FragmentState { ino, entries, popularity, cause } in self.fragment_states(cx, &map)? {
            let (rank, hashes) = (ino.rank().0, map.hashes(ino));
            let (first, last) = hashes.into_inner();
            text += &format!(
                "{{ rank = {rank}, inode = {ino}, first = {first}, last = {last}, entries = {entries}, \
                 popularity = {:.1?}",
                popularity.counts()
            );
            if let Some(cause) = cause {
                text += &format!(", split_by = \"{cause}\"");
            }
            text.push_str(" },\n");
        }
        text.push_str("]\ntransfers = [\n");
        for PastTransfer { kind, from, to, first, last, at } in transfers {
            let kind = match kind {
                TransferKind::Split => "split",
                TransferKind::Merge => "merge",
                TransferKind::Move => "move",
            };
            text += &format!(
                "{{ kind = \"{kind}\", from = {from}, to = {to}, first = {first}, last = {last}, at = {} }},\n",
                at.secs
            );
        }
        text.push_str("]\n");
        if text.len() > MAX_VALUE { Err(Errno::E2BIG.into()) } else { Ok(text) }
    }

    /// The fragments of a map, in the order of their hashes.
    fn fragment_states(&mut self, cx: &mut Cx<'_>, map: &FragmentMap) -> Step<Vec<FragmentState>> {
        let (mut found, mut waits) = (Vec::new(), false);
        for (_, ino) in map.fragments() {
            match self.query_fragment(cx, ino) {
                Ok(state) => found.push(state),
                // The other ranks count meanwhile.
                Err(Stop::Wait(Wait::Peers)) => waits = true,
                Err(stop) => return Err(stop),
            }
        }
        found.sort_unstable_by_key(|state| *map.hashes(state.ino).start());
        if waits { Err(Stop::Wait(Wait::Peers)) } else { Ok(found) }
    }

    /// The state of a fragment, once no prepared transaction changes the fragment.
    pub(super) fn query_fragment(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<FragmentState> {
        let answer = match ino.rank() {
            rank if rank == self.config.rank => self.answer_entries(ino)?,
            rank => self.query_rank(cx, rank, Question::Entries { dir: ino })?,
        };
        let PeerAnswer::Entries { entries, popularity, cause } = answer else {
            return Err(Errno::EIO.into());
        };
        Ok(FragmentState { ino, entries, popularity, cause })
    }

    /// Answers another rank that asks about a fragment.
    pub(crate) fn answer_entries(&self, dir: Ino) -> Step<PeerAnswer> {
        let inode = self.state.dir(dir)?;
        let (entries, cause) = (inode.entries(), inode.split_cause());
        Ok(PeerAnswer::Entries { entries, popularity: self.popularity_of(dir), cause })
    }
}
