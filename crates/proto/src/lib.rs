//! Types shared by all crates: ids, names, attributes, errors, messages.
//!
//! The crate is `no_std`, so the compiler rejects files, sockets, clocks and threads in it.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod attr;
mod capability;
mod check;
mod data;
mod errno;
mod fragment;
mod held;
mod ids;
mod kind;
mod layout;
mod list;
mod lock;
mod message;
mod names;
mod object;
mod permission;
mod range;
mod request;
mod stream;
mod time;
mod wire;

pub use attr::{Attr, FileType, InodeFlags, SetAttr, SetTime, XattrPresence, mode};
pub use capability::{Capability, Delegation};
pub use data::{DataReply, DataRequest, FromData, ToData};
pub use errno::Errno;
pub use fragment::{
    Cession, CessionKind, FIRST_HASH, FragmentMap, Fragments, LAST_CURSOR, common_prefix, is_split_off,
    is_unsplit, name_hash, name_key, next_number,
};
pub use held::{Held, Location, Recall};
pub use ids::{Caller, ClientId, Ino, Name, NameError, Position, Rank, RequestId, RevocationId};
pub use kind::Kind;
pub use layout::{Distribution, Layout, LayoutError, Segment, ServerId, Strip};
pub use list::{Pieces, pieces_of, range_of, write_list};
pub use lock::{Lock, LockKind, LockOwner, LockRange, LockRanges};
pub use message::*;
pub use object::{ObjectId, ObjectKind, TableWrite};
pub use permission::{ModeClass, Permissions};
pub use range::{RangeOp, StreamIo};
pub use stream::{Space, StreamStat};
pub use time::Time;
pub use wire::{
    Accesses, ClusterId, DataPool, FromClient, FromServer, Hello, Lease, ServerMap, Service, Touched, Welcome,
};
