use alloc::borrow::Cow;
use alloc::sync::Arc;
use core::fmt;
use core::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use smallvec::SmallVec;

/// An inode number. Never reused within a file system, so no generation is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory. The FUSE protocol fixes its number.
    pub const ROOT: Self = Self(1);
    const RANK_SHIFT: u32 = 48;

    /// The rank that owns the inode.
    pub fn rank(self) -> Rank {
        Rank((self.0 >> Self::RANK_SHIFT) as u16)
    }

    /// The number before the first inode number of a rank; no inode has it.
    pub fn none_of(rank: Rank) -> Self {
        Self(u64::from(rank.0) << Self::RANK_SHIFT)
    }
}

/// Rank of a metadata server. Rank 0 has the root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rank(pub u16);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A client of a metadata server: a mount, or a program that uses the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientId(pub u64);

/// Number of a request, assigned by its client; unique among the client's unanswered requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId(pub u64);

impl RequestId {
    /// Set in the numbers of forwarded requests, which are those of the client's session with the
    /// rank that has forwarded them first.
    const FORWARDED: u64 = 1 << 63;
    const NUMBER_BITS: u32 = 47;

    /// The number under which another rank executes a request that `rank` forwards. A request
    /// that is forwarded again does not change its number.
    #[must_use]
    pub fn forwarded_by(self, rank: Rank) -> Self {
        match self.origin() {
            Some(_) => self,
            None => Self(self.number() | Self::first_forwarded(rank).0),
        }
    }

    /// The rank that has forwarded the request first; `None`: it comes from the client.
    pub fn origin(self) -> Option<Rank> {
        let rank = (self.0 & !Self::FORWARDED) >> Self::NUMBER_BITS;
        (self.0 & Self::FORWARDED != 0).then(|| Rank(u16::try_from(rank).unwrap_or(u16::MAX)))
    }

    /// The request's number in the client's session with its first server.
    pub fn number(self) -> u64 {
        self.0 & ((1 << Self::NUMBER_BITS) - 1)
    }

    /// The smallest number with the same origin.
    #[must_use]
    pub fn first_of_origin(self) -> Self {
        self.origin().map_or(Self(0), Self::first_forwarded)
    }

    fn first_forwarded(rank: Rank) -> Self {
        Self(Self::FORWARDED | u64::from(rank.0) << Self::NUMBER_BITS)
    }
}

/// Number of a revocation, assigned by the metadata server; unique since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RevocationId(pub u64);

/// A position in a journal: the number of bytes appended before it since mkfs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position(pub u64);

/// Credentials of the process on whose behalf an operation runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
    /// Supplementary groups. `None` until an operation depends on them, since the kernel does not
    /// send them.
    pub groups: Option<Arc<[u32]>>,
}

impl Caller {
    /// The server itself.
    pub const SERVER: Self = Self { uid: 0, gid: 0, pid: 0, groups: None };

    /// True for the superuser, who passes all permission checks.
    pub fn is_superuser(&self) -> bool {
        self.uid == 0
    }
}

/// A path component: 1 to 255 bytes without `/` and NUL; neither `.` nor `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(SmallVec<[u8; Name::INLINE_BYTES]>);

impl Name {
    pub const MAX_BYTES: usize = 255;
    /// Longest name stored without allocation. Most names fit, and the inline form is as large as
    /// the pointer that longer ones need.
    const INLINE_BYTES: usize = 16;

    pub fn new(bytes: &[u8]) -> Result<Self, NameError> {
        check(bytes)?;
        Ok(Self(SmallVec::from_slice(bytes)))
    }

    /// Lower bound of all names; not a valid name.
    pub fn lowest() -> Self {
        Self(SmallVec::new())
    }
}

fn check(bytes: &[u8]) -> Result<(), NameError> {
    if bytes.len() > Name::MAX_BYTES {
        return Err(NameError::TooLong);
    }
    if matches!(bytes, b"" | b"." | b"..") || bytes.iter().any(|&b| b == b'/' || b == 0) {
        return Err(NameError::Invalid);
    }
    Ok(())
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_bytes::serialize(&**self, serializer)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes: Cow<'de, [u8]> = serde_bytes::deserialize(deserializer)?;
        Self::new(&bytes).map_err(de::Error::custom)
    }
}

impl Deref for Name {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// Why bytes are not a valid name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameError {
    TooLong,
    Invalid,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "a name has at most 255 bytes",
            Self::Invalid => "a name is not empty, not `.` or `..`, and has no `/` and no NUL",
        })
    }
}

impl core::error::Error for NameError {}
