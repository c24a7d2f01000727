//! The records of the tables: their contents, keys and encodings.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;

use espalier_policy::Policy;
use espalier_proto::{
    Attr, FIRST_HASH, FileType, FragmentMap, Ino, InodeFlags, Layout, Name, ObjectId, Permissions, Rank,
    StreamStat, Time, XattrPresence, mode, name_hash,
};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::acl::Acl;
use crate::counts::InodeCounts;
use crate::decouple::Decoupled;
use crate::fragment::RecordedMoves;
use crate::no_metafile::NoMetafile;
use crate::pool::Batch;
use crate::usage::{Quota, Usage};

/// Everything about a file except its names, bytes and extended attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    pub ino: Ino,
    pub kind: FileType,
    /// Permission bits, set-id and sticky bits included.
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    /// Number of names; for a directory, 2 and one per subdirectory. 0: an orphan.
    pub nlink: u32,
    pub rdev: u32,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub btime: Time,
    pub body: Body,
    /// Present if it says more than the permission bits.
    pub acl: Option<Box<Acl>>,
    /// The ACL that new entries of a directory inherit.
    pub default_acl: Option<Box<Acl>>,
    /// The inode has a record of extended attributes.
    pub has_xattrs: bool,
    pub rare: Rare,
}

/// Attributes that few inodes have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rare {
    /// For an inode in the inode table: the directories of its names, each with the number of
    /// names.
    pub names: Option<Names>,
    /// The policy for files made in a directory; for a file, its directory's when it was made.
    pub policy: Option<Arc<Policy>>,
    /// For an inode in a dentry: a no-metafile file, of which the dentry stores only a name, a
    /// number and a server ([`NoMetafile`]). Never stored in an inode record.
    pub no_metafile: bool,
    /// The flags that `chattr(1)` sets.
    pub flags: InodeFlags,
    /// For a directory: it is decoupled.
    pub decoupled: Option<Box<Decoupled>>,
}

pub type Names = Box<Vec<(Ino, u32)>>;

/// The encoding of [`Rare`]. Without a policy it equals that of only the option `names`, as in
/// stores from before policies.
#[derive(Serialize, Deserialize)]
enum StoredRare<N, P, D> {
    Nothing,
    Names(N),
    Policy(P, Option<N>),
    Flags(InodeFlags, Option<P>, Option<N>),
    Decoupled(D, InodeFlags, Option<P>, Option<N>),
}

impl Serialize for Rare {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let stored = match (&self.policy, &self.names) {
            (policy, names) if let Some(decoupled) = &self.decoupled => {
                StoredRare::Decoupled(decoupled, self.flags, policy.as_ref(), names.as_ref())
            }
            (policy, names) if !self.flags.is_empty() => {
                StoredRare::Flags(self.flags, policy.as_ref(), names.as_ref())
            }
            (None, None) => StoredRare::Nothing,
            (None, Some(names)) => StoredRare::Names(names),
            (Some(policy), names) => StoredRare::Policy(policy, names.as_ref()),
        };
        stored.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Rare {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match StoredRare::<Names, Arc<Policy>, Box<Decoupled>>::deserialize(deserializer)? {
            StoredRare::Nothing => Self::default(),
            StoredRare::Names(names) => Self { names: Some(names), ..Self::default() },
            StoredRare::Policy(policy, names) => Self { names, policy: Some(policy), ..Self::default() },
            StoredRare::Flags(flags, policy, names) => Self { names, policy, flags, ..Self::default() },
            StoredRare::Decoupled(decoupled, flags, policy, names) => {
                Self { names, policy, no_metafile: false, flags, decoupled: Some(decoupled) }
            }
        })
    }
}

/// The part of an inode that depends on its type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// Devices, fifos, sockets.
    Node,
    /// A regular file whose bytes are in a record beside its inode (carns III.B). The record has
    /// `stored` bytes, at most a strip; the rest up to `size` is a hole. Stored bytes beyond `size`
    /// are allocated zeros.
    Stuffed {
        size: u64,
        stored: u32,
    },
    /// A regular file whose bytes are in a stream; [`Attr::measure`] says which attributes are the
    /// stream's. `counted`: the size that the directories above count, which equals the stream's
    /// while nobody writes to it.
    Streamed {
        counted: u64,
    },
    Directory(Box<Directory>),
    Symlink(#[serde(with = "serde_bytes")] Box<[u8]>),
    /// As `Streamed`, with the bytes on data servers.
    Striped {
        counted: u64,
        layout: Arc<Layout>,
    },
}

impl Body {
    /// An empty regular file.
    pub(crate) const STUFFED: Self = Self::Stuffed { size: 0, stored: 0 };
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directory {
    /// The root's parent is the root.
    pub parent: Ino,
    pub entries: u64,
    /// Everything below it, at any depth.
    pub usage: Usage,
    pub quota: Quota,
    /// Present if it is a fragment of a partitioned directory.
    pub partition: Option<Box<Partition>>,
}

/// The part of a partitioned directory that a directory record holds (wu 3). A fragment at another
/// rank than the directory is a directory record of its own: its parent is the directory, no name
/// refers to it, and it has copies of the directory's permissions and policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Partition {
    /// The first fragment, in the directory itself.
    First {
        map: FragmentMap,
        /// The last transfers of names between fragments, the latest at the end.
        transfers: Vec<PastTransfer>,
    },
    /// The fragment with this number, which has the names with these hashes.
    Fragment {
        number: u16,
        first: u64,
        last: u64,
        /// Why it has split off; absent if it is the first fragment, or recreated by a repair.
        cause: Option<SplitCause>,
    },
}

/// A transfer of names that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastTransfer {
    pub kind: TransferKind,
    pub from: Rank,
    pub to: Rank,
    /// The hashes that the fragment at `to` has since.
    pub first: u64,
    pub last: u64,
    /// When it ended.
    pub at: Time,
}

impl PastTransfer {
    /// Maximum number that a directory records.
    pub(crate) const MOST: usize = 8;
}

/// Why names went to another record of their directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransferKind {
    Split,
    Merge,
    Move,
}

/// Why a fragment has split off from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SplitCause {
    /// The policy setting `dir_servers` had this value.
    Servers(u16),
    /// The other one had more entries than `dir_split`, which was `limit`.
    Entries { entries: u64, limit: u64 },
    /// The other one got more requests per second than `dir_split_rate`, which was `limit`.
    Requests { rate: u64, limit: u64 },
}

impl fmt::Display for SplitCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Servers(servers) => write!(f, "dir_servers {servers}"),
            Self::Entries { entries, limit } => write!(f, "{entries} entries, dir_split {limit}"),
            Self::Requests { rate, limit } => write!(f, "{rate} requests/s, dir_split_rate {limit}"),
        }
    }
}

impl Directory {
    pub fn empty(parent: Ino) -> Box<Self> {
        let (usage, quota) = (Usage::default(), Quota::default());
        Box::new(Self { parent, entries: 0, usage, quota, partition: None })
    }
}

impl Inode {
    pub fn permissions(&self) -> Permissions {
        Permissions { perm: self.perm, uid: self.uid, gid: self.gid }
    }

    pub fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// The policy for files made in a directory; for a file, its directory's when it was made.
    pub fn policy(&self) -> &Policy {
        static NONE: Policy = Policy::NONE;
        self.rare.policy.as_deref().unwrap_or(&NONE)
    }

    /// The state of a decoupled directory.
    pub fn decoupled(&self) -> Option<&Decoupled> {
        self.rare.decoupled.as_deref()
    }

    /// True for a decoupled directory whose entries nobody finds until the merge is complete.
    pub(crate) fn hides_entries(&self) -> bool {
        self.decoupled().is_some_and(|decoupled| !decoupled.is_seen())
    }

    /// True for a decoupled directory without interference: only a merge changes it, and what is
    /// below it.
    pub(crate) fn blocks_changes(&self) -> bool {
        self.decoupled().is_some_and(|decoupled| !decoupled.allows_interference())
    }

    /// True if it is immutable, append-only or decoupled.
    pub(crate) fn is_protected(&self) -> bool {
        self.rare.flags.intersects(InodeFlags::PROTECTED) || self.rare.decoupled.is_some()
    }

    pub(crate) fn partition(&self) -> Option<&Partition> {
        if let Body::Directory(directory) = &self.body { directory.partition.as_deref() } else { None }
    }

    /// The map of a partitioned directory.
    pub fn fragment_map(&self) -> Option<&FragmentMap> {
        if let Some(Partition::First { map, .. }) = self.partition() { Some(map) } else { None }
    }

    /// The last transfers of names between the fragments of a directory, the latest at the end.
    pub fn past_transfers(&self) -> &[PastTransfer] {
        if let Some(Partition::First { transfers, .. }) = self.partition() { transfers } else { &[] }
    }

    /// The number of a fragment that is not the directory itself.
    pub fn fragment(&self) -> Option<u16> {
        match self.partition() {
            Some(Partition::Fragment { number, .. }) => Some(*number),
            _ => None,
        }
    }

    /// Why it has split off, if it is a fragment that has.
    pub fn split_cause(&self) -> Option<SplitCause> {
        match self.partition() {
            Some(Partition::Fragment { cause, .. }) => *cause,
            _ => None,
        }
    }

    /// The hashes of the names that are in this directory record.
    pub fn hashes(&self) -> RangeInclusive<u64> {
        match self.partition() {
            None => 0..=u64::MAX,
            Some(Partition::First { map, .. }) => map.hashes(self.ino),
            Some(Partition::Fragment { first, last, .. }) => *first..=*last,
        }
    }

    /// True if it was a record of a directory and has ceded all names to another one; it is removed
    /// when nobody uses it.
    pub(crate) fn is_retired(&self) -> bool {
        self.nlink == 0 && self.fragment().is_some() && self.hashes().is_empty()
    }

    pub(crate) fn has_entries(&self) -> bool {
        self.entries() > 0
    }

    /// Number of entries of a directory record; 0 of a file.
    pub(crate) fn entries(&self) -> u64 {
        if let Body::Directory(directory) = &self.body { directory.entries } else { 0 }
    }

    /// Bytes that a stuffed file stores; `None` for all other inodes.
    pub fn stored_bytes(&self) -> Option<u32> {
        if let Body::Stuffed { stored, .. } = &self.body { Some(*stored) } else { None }
    }

    /// True if it is a directory that limits the usage below it.
    pub fn has_quota(&self) -> bool {
        matches!(&self.body, Body::Directory(directory) if directory.quota != Quota::default())
    }

    /// True if the type and the body match.
    pub(crate) fn fits(&self) -> bool {
        match self.body {
            Body::Stuffed { .. } | Body::Streamed { .. } | Body::Striped { .. } => {
                self.kind == FileType::Regular
            }
            Body::Directory(_) => self.kind == FileType::Directory,
            Body::Symlink(_) => self.kind == FileType::Symlink,
            Body::Node => !matches!(self.kind, FileType::Regular | FileType::Directory | FileType::Symlink),
        }
    }

    pub fn is_streamed(&self) -> bool {
        matches!(self.body, Body::Streamed { .. } | Body::Striped { .. })
    }

    /// The distribution of the file's bytes over data servers, if they are there.
    pub fn layout(&self) -> Option<&Arc<Layout>> {
        if let Body::Striped { layout, .. } = &self.body { Some(layout) } else { None }
    }

    /// The attributes as `stat` shows them. `stream`: the state of its stream, if it has one.
    pub fn attr(&self, stream: Option<&StreamStat>) -> Attr {
        let (size, blocks) = match &self.body {
            Body::Node | Body::Streamed { .. } | Body::Striped { .. } => (0, 0),
            Body::Stuffed { size, stored } => (*size, u64::from(*stored).div_ceil(512)),
            Body::Directory(directory) => (directory.entries, 0),
            Body::Symlink(target) => (target.len() as u64, 0),
        };
        let mut attr = Attr {
            ino: self.ino,
            kind: self.kind,
            perm: self.perm,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size,
            blocks,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            streamed: self.is_streamed(),
            xattrs: match (self.has_xattrs, self.acl.is_some() || self.default_acl.is_some()) {
                (_, true) => XattrPresence::Acl,
                (true, false) => XattrPresence::NoAcl,
                (false, false) => XattrPresence::None,
            },
            flags: self.rare.flags,
            map_version: match self.partition() {
                None => 0,
                Some(Partition::First { map, .. }) => map.version(),
                Some(Partition::Fragment { .. }) => Attr::FRAGMENT,
            },
            contents_leased: true,
        };
        if let Some(decoupled) = &self.rare.decoupled
            && self.hides_entries()
        {
            // Merged entries are hidden until all are there.
            (attr.size, attr.nlink) = (0, 2);
            (attr.mtime, attr.ctime) = (decoupled.mtime, decoupled.ctime);
        }
        if self.has_no_metafile() {
            // A no-metafile file stores neither.
            (attr.atime, attr.btime) = (self.mtime, self.mtime);
        }
        if self.is_streamed() {
            attr.measure(&stream.copied().unwrap_or_default());
        }
        attr
    }

    /// True if everybody who can reach this directory may search it: its names may be cached for
    /// every caller.
    pub fn searchable_by_all(&self) -> bool {
        self.acl.is_none() && self.perm & mode::ANY_EXEC == mode::ANY_EXEC
    }
}

/// Position of an entry in its directory. Entries are ordered by the hash of their names: a
/// position in a listing survives changes, and fragments (wu 2.2) are ranges of hashes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    pub hash: u64,
    pub name: Name,
}

impl Slot {
    pub const FIRST: u64 = FIRST_HASH;

    /// `key`: see [`espalier_proto::name_key`].
    pub fn new(key: &[u8; 16], name: Name) -> Self {
        Self { hash: name_hash(key, &name), name }
    }

    /// The key of the dentry in the fragment's object.
    pub fn key(&self) -> Vec<u8> {
        let mut key = Vec::with_capacity(8 + self.name.len());
        key.extend_from_slice(&self.hash.to_be_bytes());
        key.extend_from_slice(&self.name);
        key
    }

    pub fn from_key(key: &[u8]) -> Option<Self> {
        let (hash, name) = key.split_first_chunk::<8>()?;
        Some(Self { hash: u64::from_be_bytes(*hash), name: Name::new(name).ok()? })
    }
}

/// The inode that a name refers to, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Referent {
    pub ino: Ino,
    pub kind: FileType,
    /// The rank that has the inode.
    pub at: Rank,
}

impl Referent {
    /// A directory, which is always at the rank of its number.
    pub(crate) fn dir(ino: Ino) -> Self {
        Self { ino, kind: FileType::Directory, at: ino.rank() }
    }

    pub(crate) fn is_dir(self) -> bool {
        self.kind == FileType::Directory
    }
}

/// The value of a dentry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dentry {
    /// The dentry of the inode's only name contains the inode, or all that there is of it
    /// ([`NoMetafile`]).
    Primary(Inode),
    /// The inode has, or had, several names or a name at another rank, and is in an inode table.
    Remote(Referent),
}

/// The encoding of a [`Dentry`].
#[derive(Serialize, Deserialize)]
enum StoredDentry<I> {
    Primary(I),
    Remote(Referent),
    NoMetafile(NoMetafile),
}

impl<'a> StoredDentry<&'a Inode> {
    fn primary(inode: &'a Inode) -> Self {
        NoMetafile::of(inode).map_or(Self::Primary(inode), Self::NoMetafile)
    }
}

impl Serialize for Dentry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let stored = match self {
            Self::Primary(inode) => StoredDentry::primary(inode),
            Self::Remote(referent) => StoredDentry::Remote(*referent),
        };
        stored.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Dentry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match StoredDentry::<Inode>::deserialize(deserializer)? {
            StoredDentry::Primary(inode) => Self::Primary(inode),
            StoredDentry::Remote(referent) => Self::Remote(referent),
            StoredDentry::NoMetafile(no_metafile) => {
                Self::Primary(no_metafile.inode().map_err(D::Error::custom)?)
            }
        })
    }
}

/// The encoding of an inode in its only name's dentry.
pub(crate) fn encode_primary(inode: &Inode) -> Vec<u8> {
    encode(&StoredDentry::primary(inode))
}

/// Extended attributes of an inode, sorted by name.
pub(crate) type Xattrs = Vec<(Box<[u8]>, Box<[u8]>)>;

/// The super record: the state of the whole file system as of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Super {
    /// The next inode number to allocate.
    pub next_ino: u64,
    /// Inode numbers from here on are not this store's to allocate.
    pub end_ino: u64,
    pub counts: InodeCounts,
    pub moves: RecordedMoves,
    /// The last event that the tables contain, with all before it.
    pub sequence: u64,
    /// Position in the journal at which to search for later events; frames there may repeat older
    /// ones.
    pub journal: u64,
    /// Files whose streams the store may still list as provisional.
    pub provisional: Vec<Ino>,
    /// Size-dirty files, each with its location if that is a dentry.
    pub size_dirty: Vec<(Ino, Option<(Ino, u64)>)>,
    /// Files whose datafiles may still be provisional; `None`: no file was ever on data servers.
    /// Follows the rest of the record, and only if present, so that other stores keep their format.
    #[serde(skip)]
    pub striped: Option<Vec<Ino>>,
    /// Batches of precreated files. Follows `striped`, if there are any.
    #[serde(skip)]
    pub pool: Vec<Batch>,
}

impl Super {
    /// Decodes the record; `None` if it is damaged. A journal position above `i64::MAX` shows
    /// damage.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (mut record, rest): (Self, _) = postcard::take_from_bytes(bytes).ok()?;
        if !rest.is_empty() {
            let (striped, rest) = postcard::take_from_bytes(rest).ok()?;
            record.striped = Some(striped);
            if !rest.is_empty() {
                record.pool = decode(rest).ok()?;
            }
        }
        Some(record).filter(|record| i64::try_from(record.journal).is_ok())
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = encode(self);
        if let Some(striped) = &self.striped {
            bytes.extend(encode(striped));
            if !self.pool.is_empty() {
                bytes.extend(encode(&self.pool));
            }
        }
        bytes
    }
}

/// The keys of records by inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum InoRecord {
    Inode = b'i',
    Strip = b's',
    Xattrs = b'x',
    /// The location of a named inode: the directory of its only name and the hash of that name.
    /// Finds inodes by number.
    Place = b'd',
    /// The rank at which an inode is whose number was drawn at this rank.
    Relocation = b'r',
}

impl InoRecord {
    pub fn place(self, ino: Ino) -> (ObjectId, Vec<u8>) {
        let mut key = Vec::with_capacity(9);
        key.push(self as u8);
        key.extend_from_slice(&ino.0.to_be_bytes());
        (ObjectId::inodes(ino), key)
    }

    pub fn from_key(key: &[u8]) -> Option<(Self, Ino)> {
        let (tag, ino) = key.split_first()?;
        let ino = Ino(u64::from_be_bytes(ino.try_into().ok()?));
        match tag {
            b'i' => Some((Self::Inode, ino)),
            b's' => Some((Self::Strip, ino)),
            b'x' => Some((Self::Xattrs, ino)),
            b'd' => Some((Self::Place, ino)),
            b'r' => Some((Self::Relocation, ino)),
            _ => None,
        }
    }
}

/// A stored record that is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

pub fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    // Fails only for types whose length serde cannot determine; no record has one.
    postcard::to_allocvec(record).unwrap_or_default()
}

pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Corrupt> {
    match postcard::take_from_bytes(bytes) {
        Ok((record, [])) => Ok(record),
        _ => Err(Corrupt),
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use espalier_policy::Key;

    use super::*;

    #[test]
    fn inodes_without_policies_are_stored_as_before_there_were_any() {
        let names: Option<Names> = Some(Box::new(vec![(Ino(7), 2), (Ino(300), 1)]));
        let mut rare = Rare { names: names.clone(), ..Rare::default() };
        assert_eq!(encode(&rare), encode(&names));
        assert_eq!(encode(&Rare::default()), encode(&None::<Names>));
        let mut policy = Policy::NONE;
        policy.set(Key::NumDfiles, "2").expect("a policy");
        for names in [None, names] {
            rare = Rare { names, ..Rare::default() };
            assert_eq!(decode(&encode(&rare)), Ok(rare.clone()));
            rare.policy = Some(Arc::new(policy.clone()));
            assert_eq!(decode(&encode(&rare)), Ok(rare.clone()));
            rare.flags = InodeFlags::IMMUTABLE | InodeFlags::NODUMP;
            assert_eq!(decode(&encode(&rare)), Ok(rare.clone()));
        }
    }
}
