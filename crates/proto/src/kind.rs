//! Names of operations, for metrics, traces, logs and the simulator.

use crate::{DataRequest, Ino, RangeOp};

/// Declares an enum with a name for each variant.
#[macro_export]
macro_rules! named {
    ($(#[$outer:meta])* $vis:vis enum $type:ident { $($(#[$inner:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$outer])*
        $vis enum $type { $($(#[$inner])* $variant),+ }

        impl $type {
            /// In the order of the variants.
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            $vis fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}

named! {
    /// An operation, named after its system call.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Kind {
        Lookup = "lookup",
        Forget = "forget",
        GetAttr = "getattr",
        SetAttr = "setattr",
        ReadLink = "readlink",
        Create = "create",
        MkDir = "mkdir",
        Symlink = "symlink",
        MkNod = "mknod",
        TmpFile = "tmpfile",
        Link = "link",
        Unlink = "unlink",
        RmDir = "rmdir",
        Rename = "rename",
        Open = "open",
        Release = "release",
        Read = "read",
        Write = "write",
        Allocate = "fallocate",
        Seek = "lseek",
        Copy = "copy_file_range",
        Fsync = "fsync",
        SyncFs = "syncfs",
        ReadDir = "readdir",
        ReadDirPlus = "readdirplus",
        Access = "access",
        SetXattr = "setxattr",
        GetXattr = "getxattr",
        ListXattr = "listxattr",
        RemoveXattr = "removexattr",
        StatFs = "statfs",
        RemoveTree = "remove_tree",
        CopyTree = "copy_tree",
        Lock = "lock",
        TakeNumbers = "take_numbers",
        Accessed = "accessed",
        Renew = "renew",
        LeaseData = "lease_data",
        Announce = "announce",
    }
}

impl RangeOp {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Read { .. } => Kind::Read,
            Self::Write { .. } | Self::WriteList { .. } => Kind::Write,
            Self::Allocate { .. } => Kind::Allocate,
            Self::Seek { .. } => Kind::Seek,
            Self::Copy { .. } => Kind::Copy,
        }
    }
}

/// Declares the data servers' requests: the datafile's inode, the kind of the most similar system
/// call, and the name in traces.
macro_rules! data_requests {
    (@inode) => { Ino::ROOT };
    (@inode $field:tt $ino:ident) => { *$ino };
    ($($variant:ident$(($field:tt))?: $kind:ident = $name:literal;)+) => {
        impl DataRequest {
            /// The kind of the most similar system call.
            pub fn kind(&self) -> Kind {
                match self {
                    Self::Range { op, .. } => op.kind(),
                    $(Self::$variant { .. } => Kind::$kind),+
                }
            }

            /// Name of the operation in traces.
            pub fn name(&self) -> &'static str {
                match self {
                    Self::Range { op, .. } => op.kind().name(),
                    $(Self::$variant { .. } => $name),+
                }
            }

            /// The inode of the datafile; the root if there are several, or none.
            pub fn ino(&self) -> Ino {
                match self {
                    Self::Range { ino, .. } => *ino,
                    $(Self::$variant { $($field: ino,)? .. } => data_requests!(@inode $($field ino)?)),+
                }
            }
        }
    };
}

data_requests! {
    Stat: GetAttr = "stat";
    Fill(ino): Create = "fill";
    Finalise(ino): SetAttr = "finalise";
    Truncate(ino): SetAttr = "truncate";
    SetMtime(ino): SetAttr = "set times";
    Sync(ino): Fsync = "sync";
    SyncAll: SyncFs = "sync all";
    Remove(ino): Unlink = "remove";
    New: ReadDir = "list new";
    Space: StatFs = "space";
    Admit: Access = "admit sessions";
    Precreate: Create = "precreate";
    Discard: Unlink = "discard";
    Create(ino): Create = "create";
}
