//! Fragments of a directory (wu 3.1 to 3.4, after GIGA+): the parts into which a large directory is
//! split, each at a metadata server of its own.
//!
//! Fragment `i` is made at server `i` of the directory's server list; the home server, which has
//! the directory's inode, is server 0. A fragment can then move to any other server. It is a range
//! of name hashes: its number, with the bits reversed, is the prefix that the hashes of its names
//! share. So a listing in hash order visits one fragment after the other, and its cursors stay
//! valid when fragments split, merge and move.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::hash::Hasher;
use core::ops::RangeInclusive;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use siphasher::sip::{SipHasher13, SipHasher24};

use crate::{Ino, Name, Rank};

/// Number of bits of a name's hash. A hash is a cursor of listings, which the kernel takes for a
/// non-negative number.
const HASH_BITS: u32 = 63;
/// Smaller cursors stand for `.` and `..`, and the kernel takes the largest for the end.
pub const FIRST_HASH: u64 = 3;
const LAST_HASH: u64 = LAST_CURSOR - 1;
/// The end of all listings.
pub const LAST_CURSOR: u64 = i64::MAX as u64;

/// The key of name hashes, from the file system's secret. Clients of partitioned directories know
/// the key; the secret does not follow from it.
pub fn name_key(secret: &[u8; 16]) -> [u8; 16] {
    let half = |number: u8| {
        let mut hasher = SipHasher24::new_with_key(secret);
        hasher.write(b"\0name key");
        hasher.write(&[number]);
        hasher.finish().to_be_bytes()
    };
    let mut key = [0; 16];
    let (first, second) = key.split_at_mut(8);
    first.copy_from_slice(&half(0));
    second.copy_from_slice(&half(1));
    key
}

/// The hash of a name: its position in listings, and what assigns it to a fragment. `key`: from
/// [`name_key`]; programs do not know it, so they cannot construct names that collide.
pub fn name_hash(key: &[u8; 16], name: &Name) -> u64 {
    let mut hasher = SipHasher13::new_with_key(key);
    hasher.write(name);
    (hasher.finish() >> 1).clamp(FIRST_HASH, LAST_HASH)
}

/// A server of a directory's server list (wu 3.1), with its fragment if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FragmentServer {
    rank: Rank,
    fragment: Option<Ino>,
    /// The lowest hash that the fragment has. While a fragment splits, it cedes its hashes to the
    /// new one from the highest down; while the new one merges back, it returns them from the
    /// lowest up.
    first: u64,
    /// The fragment merges back into the one that it has split off from.
    merges: bool,
    /// The fragment moves to another directory record, which has the hashes from this one on.
    moves: Option<(Ino, u64)>,
}

/// The hashes that a directory record has yet to cede to another one, from one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cession {
    /// The number of the fragment whose hashes these are.
    pub number: usize,
    pub kind: CessionKind,
    pub hashes: RangeInclusive<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CessionKind {
    /// To the fragment with this number, which has a record already.
    Split(usize),
    /// To the fragment that this one has split off from.
    Merge,
    /// To another record of the same fragment.
    Move(Ino),
}

/// A directory's fragment map: its server list, and which of the servers have a fragment (the P2S
/// map of wu 3.2). A client's map may be outdated; the map of the home server never is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FragmentMap {
    version: u32,
    dir: Ino,
    servers: Vec<FragmentServer>,
}

impl FragmentMap {
    /// Maximum number of servers of a directory.
    const MAX_SERVERS: usize = 1 << 15;

    /// The map of a directory with one fragment, the directory itself, in a cluster of `ranks`. The
    /// server list goes clockwise from the home server.
    pub fn new(dir: Ino, ranks: u16) -> Self {
        let home = dir.rank().0;
        let clockwise = (home..ranks).chain(0..home.min(ranks));
        let server = |rank: u16| FragmentServer {
            rank: Rank(rank),
            fragment: Some(dir).filter(|_| rank == home),
            first: 0,
            merges: false,
            moves: None,
        };
        Self { version: 0, dir, servers: clockwise.map(server).collect() }
    }

    /// The map of a directory with these fragments besides the first, by number, as far as each
    /// could split off from the others.
    pub fn with_fragments(dir: Ino, ranks: u16, fragments: &BTreeMap<usize, Ino>) -> Self {
        let mut map = Self::new(dir, ranks);
        for (number, ino) in fragments.range(1..) {
            let parent = number & !(1 << number.ilog2());
            let splits_off = map.ino(parent).is_some() && map.next_split(parent) == Some(*number);
            if splits_off && ino.rank().0 < ranks {
                let first = *map.to_cede(*number).start();
                map.cede(*number, *ino, first);
            }
        }
        map
    }

    /// Appends the ranks that the cluster has got since the map was made (wu 3.4). No hash changes
    /// its fragment, so the version stays.
    pub fn grow(&mut self, ranks: u16) {
        let known = self.servers.len().min(ranks.into()) as u16;
        let server =
            |rank| FragmentServer { rank: Rank(rank), fragment: None, first: 0, merges: false, moves: None };
        self.servers.extend((known..ranks).map(server));
    }

    /// True if this can be the map of a directory in a cluster of `ranks`, of which some may have
    /// joined later: its records differ, and each hash is in one fragment.
    pub fn is_sound(&self, dir: Ino, ranks: u16) -> bool {
        let is_list = |at_first: u16| {
            let mut expected = Self::new(dir, at_first);
            expected.grow(self.servers.len() as u16);
            expected
                .servers
                .iter()
                .map(|server| server.rank)
                .eq(self.servers.iter().map(|server| server.rank))
        };
        let mut records: Vec<Ino> = self.fragments().map(|(_, ino)| ino).collect();
        records.sort_unstable();
        self.servers.len() <= usize::from(ranks)
            && (dir.rank().0 + 1..=self.servers.len() as u16).any(is_list)
            && self.dir == dir
            && records.iter().all(|ino| ino.rank().0 < ranks)
            && records.is_sorted_by(|one, next| one < next)
            && self.covers_all_hashes()
    }

    fn covers_all_hashes(&self) -> bool {
        let mut ranges: Vec<_> = self.fragments().map(|(_, ino)| (self.hashes(ino), ino)).collect();
        ranges.sort_unstable_by_key(|(range, _)| *range.start());
        let mut next = 0;
        for (range, ino) in ranges {
            let is_found = |hash: &u64| self.fragment(*hash) == ino;
            if *range.start() != next || !is_found(range.start()) || !is_found(range.end()) {
                return false;
            }
            next = range.end().saturating_add(1);
        }
        next == LAST_CURSOR + 1
    }

    /// Number of changes since the directory was whole.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The directory, which is its first fragment unless that has moved.
    pub fn dir(&self) -> Ino {
        self.dir
    }

    /// Number of servers in the server list.
    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    /// The rank of a server of the list; `None` if there is no such server.
    pub fn rank(&self, server: usize) -> Option<Rank> {
        self.servers.get(server).map(|server| server.rank)
    }

    /// The inode number of the fragment with this number.
    pub fn ino(&self, number: usize) -> Option<Ino> {
        self.servers.get(number).and_then(|server| server.fragment)
    }

    /// The directory records that have names, with the numbers of their fragments: two for a
    /// fragment that moves.
    pub fn fragments(&self) -> impl Iterator<Item = (usize, Ino)> {
        let records =
            |server: &FragmentServer| [server.fragment, server.moves.map(|(to, _)| to)].into_iter().flatten();
        self.servers
            .iter()
            .enumerate()
            .flat_map(move |(number, server)| records(server).map(move |ino| (number, ino)))
    }

    /// The directory records other than the directory itself.
    pub fn others(&self) -> impl Iterator<Item = Ino> {
        self.fragments().map(|(_, fragment)| fragment).filter(|fragment| *fragment != self.dir)
    }

    /// The number of bits of a virtual server id: n = ceil(log2 N) for N servers.
    fn id_bits(&self) -> u32 {
        self.servers.len().next_power_of_two().trailing_zeros()
    }

    /// The virtual server id of a hash (Eq. 3.1).
    fn virtual_id(&self, hash: u64) -> usize {
        let prefix = hash >> (HASH_BITS - self.id_bits());
        reverse(prefix, self.id_bits()) as usize
    }

    /// The lowest hash of a fragment; `None` if there is no such fragment.
    fn first(&self, number: usize) -> Option<u64> {
        self.servers.get(number).filter(|server| server.fragment.is_some()).map(|server| server.first)
    }

    /// True while the fragment that this one splits off from cedes hashes to it.
    fn is_partial(&self, number: usize) -> bool {
        self.first(number).is_some_and(|first| first != *hashes(number, id_length(number)).start())
    }

    /// The number of the fragment that contains a hash: clears the highest set bit of the virtual
    /// server id until there is a fragment of that number (wu 3.3, Table 3.3); at most ceil(log2 N)
    /// rounds.
    pub fn number(&self, hash: u64) -> usize {
        let mut id = self.virtual_id(hash);
        while id > 0 && self.first(id).is_none_or(|first| hash < first) {
            id &= !(1 << id.ilog2());
        }
        id
    }

    /// The directory record that contains a hash.
    pub fn fragment(&self, hash: u64) -> Ino {
        let server = &self.servers[self.number(hash)];
        match server.moves {
            Some((to, from)) if hash >= from => to,
            _ => server.fragment.unwrap_or(self.dir),
        }
    }

    /// The number of low bits that the virtual server ids of a fragment's hashes have in common:
    /// its depth in the splitting tree.
    fn depth(&self, number: usize) -> u32 {
        let own = id_length(number);
        let is_split = |depth: &u32| self.first(number | 1 << depth).is_some();
        own + (own..self.id_bits()).take_while(is_split).count() as u32
    }

    /// The fragment to which another is ceding hashes.
    fn unfinished_split(&self, number: usize) -> Option<usize> {
        let depth = self.depth(number);
        let last = (depth > id_length(number)).then(|| number | 1 << (depth - 1));
        last.filter(|child| self.is_partial(*child))
    }

    /// The hashes of the fragment with this number, at one record or two.
    fn hashes_of(&self, number: usize) -> RangeInclusive<u64> {
        let unfinished = self.unfinished_split(number).and_then(|child| self.first(child));
        let last = match unfinished {
            Some(ceded) => ceded.saturating_sub(1),
            None => *hashes(number, self.depth(number)).end(),
        };
        self.first(number).unwrap_or_default()..=last
    }

    /// The number of a directory record's fragment; `None` if the record has no names.
    pub fn number_of(&self, record: Ino) -> Option<usize> {
        self.fragments().find(|(_, ino)| *ino == record).map(|(number, _)| number)
    }

    /// The hashes of the names in a directory record; an empty range if it has none.
    pub fn hashes(&self, record: Ino) -> RangeInclusive<u64> {
        let Some(number) = self.number_of(record) else { return NO_HASHES };
        let all = self.hashes_of(number);
        match self.servers[number].moves {
            Some((to, from)) if to == record => from..=*all.end(),
            Some((_, from)) => *all.start()..=from.saturating_sub(1),
            None => all,
        }
    }

    /// The number of the fragment that splits off next from a fragment. `None`: it is inseparable,
    /// since no server has that number (wu 3.4), or it is about to change otherwise.
    pub fn next_split(&self, number: usize) -> Option<usize> {
        let child = number | 1 << self.depth(number);
        (self.is_at_rest(number) && child < self.servers.len()).then_some(child)
    }

    /// The number of the fragment into which another can merge: the one that it has split off from
    /// last. `None` for the first fragment, for one that others have split off from since, and
    /// while one of the two changes otherwise.
    pub fn merge_target(&self, number: usize) -> Option<usize> {
        let parent = (number > 0).then(|| number & !(1 << number.ilog2()))?;
        let is_last = self.depth(number) == id_length(number) && self.depth(parent) == id_length(number);
        (is_last && self.is_at_rest(number) && self.is_at_rest(parent)).then_some(parent)
    }

    /// True if no hashes of a fragment are being ceded, by it or to it.
    pub fn is_at_rest(&self, number: usize) -> bool {
        let is_settled = |server: &FragmentServer| server.moves.is_none() && !server.merges;
        self.servers.get(number).is_some_and(is_settled)
            && !self.is_partial(number)
            && self.unfinished_split(number).is_none()
    }

    /// The hashes that a directory record has begun to cede.
    pub fn cession(&self, record: Ino) -> Option<Cession> {
        let number = self.number_of(record)?;
        let server = &self.servers[number];
        let cession = |kind, hashes| Some(Cession { number, kind, hashes });
        match server.moves {
            Some((to, _)) if to != record => return cession(CessionKind::Move(to), self.hashes(record)),
            Some(_) => return None,
            None => {}
        }
        if server.merges {
            return cession(CessionKind::Merge, self.hashes(record));
        }
        let child = self.unfinished_split(number).filter(|child| !self.servers[*child].merges)?;
        cession(CessionKind::Split(child), self.to_cede(child))
    }

    /// The hashes that a fragment has yet to cede to the one that splits off next.
    pub fn to_cede(&self, child: usize) -> RangeInclusive<u64> {
        let range = hashes(child, id_length(child));
        let last = self.first(child).map_or(*range.end(), |first| first.saturating_sub(1));
        *range.start()..=last
    }

    /// Gives a fragment the hashes from `first` on that [`Self::to_cede`] returns.
    pub fn cede(&mut self, child: usize, fragment: Ino, first: u64) {
        if let Some(server) = self.servers.get_mut(child).filter(|_| child > 0) {
            (server.fragment, server.first) = (Some(fragment), first);
            self.version += 1;
        }
    }

    /// Returns a fragment's hashes up to `last` to the one that it has split off from. Without
    /// hashes the fragment is removed.
    pub fn give_back(&mut self, child: usize, last: u64) {
        let is_all = last >= *self.hashes_of(child).end();
        if let Some(server) = self.servers.get_mut(child).filter(|_| child > 0) {
            server.merges = !is_all;
            server.first = if is_all { 0 } else { last + 1 };
            if is_all {
                server.fragment = None;
            }
            self.version += 1;
        }
    }

    /// Names another inode as a directory record.
    pub fn replace(&mut self, record: Ino, other: Ino) {
        let change = |ino: &mut Ino| *ino = if *ino == record { other } else { *ino };
        for server in &mut self.servers {
            server.fragment.iter_mut().for_each(change);
            server.moves.iter_mut().for_each(|(to, _)| change(to));
        }
        self.version += 1;
    }

    /// Gives another directory record a fragment's hashes from `first` on.
    pub fn move_to(&mut self, number: usize, to: Ino, first: u64) {
        if let Some(server) = self.servers.get_mut(number) {
            server.moves = (first > server.first).then_some((to, first));
            if server.moves.is_none() {
                server.fragment = Some(to);
            }
            self.version += 1;
        }
    }
}

/// The hashes of a directory record without names.
#[expect(clippy::reversed_empty_ranges, reason = "an empty range")]
const NO_HASHES: RangeInclusive<u64> = 1..=0;

/// The prefix that hashes in a range share, and its number of bits.
pub fn common_prefix(range: &RangeInclusive<u64>) -> (u64, u32) {
    let (first, last) = (range.start() & LAST_CURSOR, range.end() & LAST_CURSOR);
    let rest = u64::BITS - (first ^ last).leading_zeros();
    (first >> rest, HASH_BITS - rest)
}

/// The number of the fragment that splits off next from one with these hashes, as far as it is
/// known without the map; `None` while the fragment cedes hashes or is being split off itself.
pub fn next_number(number: usize, range: &RangeInclusive<u64>) -> Option<usize> {
    let width = range.end().saturating_sub(*range.start()).saturating_add(1);
    let depth = HASH_BITS.checked_sub(width.ilog2())?;
    (hashes(number, depth) == *range).then_some(number | 1 << depth)
}

/// True if a fragment with these hashes is not being split off from another.
pub fn is_split_off(number: usize, range: &RangeInclusive<u64>) -> bool {
    range.start() == hashes(number, id_length(number)).start()
}

/// True if a fragment with these hashes is whole, and none has split off from it.
pub fn is_unsplit(number: usize, range: &RangeInclusive<u64>) -> bool {
    *range == hashes(number, id_length(number))
}

/// The number of bits of a fragment number: the depth at which the fragment splits off.
fn id_length(number: usize) -> u32 {
    usize::BITS - number.leading_zeros()
}

/// The hashes of the fragment with this number and depth.
fn hashes(number: usize, depth: u32) -> RangeInclusive<u64> {
    let rest = HASH_BITS - depth.min(HASH_BITS);
    let first = reverse(number as u64, depth) << rest;
    first..=first | ((1 << rest) - 1)
}

fn reverse(id: u64, bits: u32) -> u64 {
    if bits == 0 { 0 } else { id.reverse_bits() >> (u64::BITS - bits) }
}

impl<'de> Deserialize<'de> for FragmentMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (version, dir, servers) = <(u32, Ino, Vec<FragmentServer>)>::deserialize(deserializer)?;
        let has_home = servers.first().is_some_and(|home| home.fragment.is_some());
        if !has_home || servers.len() > Self::MAX_SERVERS {
            return Err(D::Error::custom("a fragment map without a home server, or with too many servers"));
        }
        Ok(Self { version, dir, servers })
    }
}

/// A directory's fragment map, with the key of the hashes, for a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fragments {
    pub map: FragmentMap,
    /// See [`name_key`].
    #[serde(with = "serde_bytes")]
    pub name_key: [u8; 16],
}

impl Fragments {
    /// The fragment that contains a name.
    pub fn of(&self, name: &Name) -> Ino {
        self.map.fragment(name_hash(&self.name_key, name))
    }
}

#[cfg(test)]
mod tests;
