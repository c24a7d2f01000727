//! Operations and their random generation.

/// A path below the root, such as `/a/b`.
pub(super) type Name = String;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum ModelOp {
    Create {
        path: Name,
        exclusive: bool,
    },
    Mkdir {
        path: Name,
        mode: u32,
    },
    Unlink {
        path: Name,
    },
    Rmdir {
        path: Name,
    },
    Rename {
        from: Name,
        to: Name,
        how: How,
    },
    Link {
        from: Name,
        to: Name,
    },
    Symlink {
        path: Name,
        target: String,
    },
    Write {
        path: Name,
        at: u64,
        len: usize,
        fill: u8,
        by: By,
    },
    Truncate {
        path: Name,
        len: u64,
        by: By,
    },
    /// Store through a shared mapping, within the size; the result is a copy of all data, made
    /// while the mapping is dirty.
    Map {
        path: Name,
        at: u64,
        len: usize,
        fill: u8,
    },
    Allocate {
        path: Name,
        at: u64,
        len: u64,
        how: Space,
    },
    Read {
        path: Name,
    },
    Stat {
        path: Name,
    },
    List {
        path: Name,
    },
    Chmod {
        path: Name,
        mode: u32,
    },
    SetXattr {
        path: Name,
        name: String,
        len: usize,
        fill: u8,
    },
    RemoveXattr {
        path: Name,
        name: String,
    },
    SetTime {
        path: Name,
        secs: i64,
    },
    KeepHandle {
        path: Name,
        place: usize,
    },
    StatHandle {
        place: usize,
        evict: bool,
    },
    SetCapability {
        path: Name,
    },
}

/// Number of file handles held at a time.
pub(super) const HANDLES: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum How {
    Plain,
    NoReplace,
    Exchange,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Space {
    Plain,
    KeepSize,
    Punch,
}

/// The caller: with or without `CAP_FSETID`, which preserves set-id bits when data changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum By {
    Privileged,
    Unprivileged,
}

impl By {
    fn random(rng: &mut fastrand::Rng) -> Self {
        if rng.bool() { Self::Privileged } else { Self::Unprivileged }
    }
}

/// Name and value of a file's capabilities: version 2, CAP_NET_RAW permitted.
pub(super) const CAPABILITY: &str = "security.capability";
pub(super) const NET_RAW: [u8; 20] = *b"\0\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Result of an operation; an error is its number.
pub(super) type OpResult = Result<Out, i32>;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Out {
    Done,
    Bytes(Vec<u8>),
    Names(Vec<String>),
    Attr(ModelAttr),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ModelAttr {
    pub(super) kind: char,
    pub(super) mode: u32,
    pub(super) nlink: u64,
    /// Size of files and symbolic links; the size of directories is not defined.
    pub(super) size: u64,
}

/// A node in the comparison of whole trees.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) attr: ModelAttr,
    pub(super) content: Vec<u8>,
    pub(super) xattrs: Vec<(String, Vec<u8>)>,
}

/// A path of few names, so that operations conflict.
fn path(rng: &mut fastrand::Rng) -> Name {
    let depth = [1, 1, 2, 2, 2, 3, 3, 4][rng.usize(..8)];
    (0..depth)
        .map(|_| format!("/{}", ["a", "b", "c", "d", "long-name-number-five"][rng.usize(..5)]))
        .collect()
}

/// A length or offset near the sizes at which a file's representation changes.
fn place(rng: &mut fastrand::Rng) -> u64 {
    const EDGES: [u64; 8] = [0, 0, 100, 4096, 65_536, 65_536, 131_072, 1 << 20];
    (EDGES[rng.usize(..EDGES.len())] + rng.u64(..40)).saturating_sub(20)
}

impl ModelOp {
    pub(super) fn random(rng: &mut fastrand::Rng) -> Self {
        let (path, to) = (path(rng), path(rng));
        match rng.u8(..51) {
            0..5 => Self::Create { path, exclusive: rng.bool() },
            5..9 => Self::Mkdir { path, mode: [0o755, 0o700, 0o1777][rng.usize(..3)] },
            9..12 => Self::Unlink { path },
            12..14 => Self::Rmdir { path },
            14..20 => {
                let how = [How::Plain, How::Plain, How::NoReplace, How::Exchange][rng.usize(..4)];
                Self::Rename { from: path, to, how }
            }
            20..22 => Self::Link { from: path, to },
            22 => Self::Symlink { path, target: format!("dangling{}", "x".repeat(rng.usize(..200))) },
            23..28 => {
                let len = if rng.u8(..4) == 0 { rng.usize(..70_000) } else { rng.usize(..300) };
                Self::Write { path, at: place(rng), len, fill: rng.u8(1..), by: By::random(rng) }
            }
            28..30 => Self::Truncate { path, len: place(rng), by: By::random(rng) },
            30..32 => Self::Read { path },
            32..34 => Self::Stat { path },
            34..36 => Self::List { path },
            36 => Self::Chmod { path, mode: [0o644, 0o600, 0o4755, 0o6775, 0o2745, 0o000][rng.usize(..6)] },
            37..39 => {
                let len = [0, 1, 30, 500][rng.usize(..4)];
                Self::SetXattr { path, name: format!("user.x{}", rng.u8(..3)), len, fill: rng.u8(1..) }
            }
            39..41 => Self::SetTime { path, secs: [0, 1, 1_000_000_000, 10_000_000_000][rng.usize(..4)] },
            41 => Self::RemoveXattr { path, name: format!("user.x{}", rng.u8(..3)) },
            42..44 => Self::KeepHandle { path, place: rng.usize(..HANDLES) },
            44..46 => Self::StatHandle { place: rng.usize(..HANDLES), evict: rng.u8(..32) == 0 },
            46..49 => Self::Map { path, at: place(rng), len: rng.usize(1..300), fill: rng.u8(1..) },
            49 => {
                let how = [Space::Plain, Space::KeepSize, Space::Punch][rng.usize(..3)];
                Self::Allocate { path, at: place(rng), len: rng.u64(1..20_000), how }
            }
            _ => Self::SetCapability { path },
        }
    }
}

/// Data of a write; depends on the offset, so that shifted data is detected.
pub(super) fn bytes(fill: u8, len: usize) -> Vec<u8> {
    (0..len).map(|n| fill.wrapping_add((n / 509) as u8) | 1).collect()
}
