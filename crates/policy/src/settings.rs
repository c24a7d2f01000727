//! The table of settings.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::num::{NonZeroU16, NonZeroU32};

use serde::{Deserialize, Serialize};

use crate::distribution::DistParams;
use crate::level::{Consistency, Durability, Interference};
use crate::relax::{Bound, Relax};
use crate::value::{Creator, DistName, Interval, Pin, Value, Values};

/// Defines everything that depends on the set of settings. The last column of a row is the
/// `default` or, if that is no value, the meaning of an `unset` setting.
macro_rules! settings {
    ($($(#[doc = $meaning:literal])+ $key:ident $name:ident: $type:ty, $column:ident = $default:expr;)+) => {
        /// The name of a setting.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Key { $($key),+ }

        /// A setting with its value.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Setting { $($key($type)),+ }

        /// The settings of a directory. The encoding is the list of those that are set, so that a
        /// new last row leaves encoded policies valid.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(try_from = "Vec<Setting>", into = "Vec<Setting>")]
        pub struct Policy { $(pub(crate) $name: Option<$type>),+ }

        impl Key {
            /// In the order of the table.
            pub const ALL: [Self; [$(Self::$key),+].len()] = [$(Self::$key),+];

            pub fn name(self) -> &'static str {
                match self { $(Self::$key => stringify!($name)),+ }
            }

            pub fn meaning(self) -> &'static str {
                match self { $(Self::$key => concat!($($meaning),+).trim_start()),+ }
            }

            pub fn values(self) -> Values {
                match self { $(Self::$key => <$type as Value>::VALUES),+ }
            }

            /// The default as a text, or the meaning of an unset setting.
            pub fn default_text(self) -> String {
                match self { $(Self::$key => settings!(@text $column $default)),+ }
            }
        }

        impl Setting {
            pub(crate) fn parse(key: Key, text: &str) -> Option<Self> {
                match key { $(Key::$key => Value::parse(text).map(Self::$key)),+ }
            }

            pub(crate) fn text(&self) -> String {
                match self { $(Self::$key(value) => value.to_string()),+ }
            }
        }

        impl Policy {
            /// Nothing is set.
            pub const NONE: Self = Self { $($name: None),+ };
            /// The values in force where neither the directory nor the server sets any.
            pub const DEFAULT: Self = Self { $($name: settings!(@value $column $default)),+ };

            pub(crate) fn setting(&self, key: Key) -> Option<Setting> {
                match key { $(Key::$key => self.$name.clone().map(Setting::$key)),+ }
            }

            /// Without a check against the other settings.
            pub(crate) fn assign(&mut self, setting: Setting) {
                match setting { $(Setting::$key(value) => self.$name = Some(value)),+ }
            }

            pub fn unset(&mut self, key: Key) {
                match key { $(Key::$key => self.$name = None),+ }
            }

            $($(#[doc = $meaning])+ pub fn $name(&self) -> Option<$type> { self.$name.clone() })+
        }
    };
    (@value default $value:expr) => { Some($value) };
    (@value unset $meaning:expr) => { None };
    (@text default $value:expr) => { $value.to_string() };
    (@text unset $meaning:expr) => { $meaning.to_string() };
}

/// 16 Mi. A number costs nothing until it is used.
pub(crate) const DEFAULT_INODES: NonZeroU32 = NonZeroU32::MIN.saturating_add((16 << 20) - 1);

/// The names of one step of a split are a fiftieth of it, and most directories are smaller.
const DEFAULT_SPLIT: NonZeroU32 = NonZeroU32::MIN.saturating_add(100_000 - 1);

settings! {
    /// A large file is spread over at most this many data servers. A number larger than theirs
    /// means all of them.
    NumDfiles num_dfiles: NonZeroU16, unset = "the server's `stripe_width`";
    /// The rule by which the bytes of a large file are distributed to data servers.
    DistName dist_name: DistName, unset = "that of `dist_params`, or the server's `simple_stripe`";
    /// The parameters of the distribution.
    DistParams dist_params: DistParams, unset = "the server's `stripe_strip`, or equal shares";
    /// The bytes of a small file are stored with its metadata (carns III.B).
    Stuffing stuffing: bool, default = true;
    /// Data servers create the datafiles of files that are not stuffed in advance, in batches
    /// (carns III.A).
    Precreation precreation: bool, default = false;
    /// A file is a name and a datafile, without a metafile (kuhn 4.2).
    NoMetafile no_metafile: bool, default = false;
    /// The side that creates inode, datafiles, layout and name of a file, message by message: a
    /// metadata server, or the client as in PVFS (carns III.A).
    Create create: Creator, default = Creator::Server;
    /// With `sync`, changes of the directory's names and of its files share commits with others
    /// that wait for one (carns III.C).
    Coalescing coalescing: bool, unset = "by the server's watermarks";
    /// Short payloads of reads and writes ride in requests and replies, up to the server's
    /// `eager_bytes` (carns III.D). Otherwise every payload is announced first.
    Eager eager: bool, default = true;
    /// A fragment of a directory that has more entries than this gives half of them to another
    /// metadata server (wu 3.4).
    DirSplit dir_split: NonZeroU32, default = DEFAULT_SPLIT;
    /// A directory is spread over this many metadata servers from the start (wu 3.4). A number
    /// larger than theirs means all of them.
    DirServers dir_servers: NonZeroU16, default = NonZeroU16::MIN;
    /// A fragment of a directory that has fewer entries than this returns them to the fragment that
    /// it has split off from, if that has room.
    DirMerge dir_merge: NonZeroU32, unset = "a quarter of `dir_split`";
    /// A fragment of a directory that gets more requests per second than this, for 5 seconds,
    /// splits as with `dir_split`, whatever its size (sevilla 2.1).
    DirSplitRate dir_split_rate: NonZeroU32, unset = "no directory splits because of requests";
    /// A fragment of a directory merges as with `dir_merge` only if it gets fewer requests per
    /// second than this.
    DirMergeRate dir_merge_rate: NonZeroU32, unset = "a quarter of `dir_split_rate`; without that, requests do not matter";
    /// A server that does not have a name forwards requests for it to the server that has it (wu
    /// 3.3); otherwise clients repeat them there.
    DirForward dir_forward: bool, default = false;
    /// The metadata server that has the names of the directory, instead of the one that made it
    /// (sevilla 2.4.2): one rank, or `distributed` for one that its inode number determines. With
    /// `parent` a new directory begins at its parent's, and it may move.
    Pin pin: Pin, default = Pin::Off;
    /// When others see the changes that `espalier decouple` makes in the directory (sevilla 6.2.2).
    /// With strong, its command works in the directory itself.
    Consistency consistency: Consistency, unset = "weak";
    /// Where a decoupled namespace is until it is merged: in the client's memory, on its disk, or
    /// at the servers (sevilla 6.2.2).
    Durability durability: Durability, unset = "local, or global with consistency strong";
    /// A decoupled namespace gets this many inode numbers; those of removed files count (sevilla
    /// 6.2.3).
    AllocatedInodes allocated_inodes: NonZeroU32, default = DEFAULT_INODES;
    /// Others may change the directory while it is decoupled, and the namespace takes priority when
    /// it is merged; or their changes fail with `EBUSY` (sevilla 6.2.3).
    Interfere interfere: Interference, default = Interference::Block;
    /// A decoupled namespace is synced this often: others see what is done so far (sevilla 6.4.2).
    SyncInterval sync_interval: Interval, unset = "others see nothing before the merge";
    /// The settings of levels, consistency to interfere, that directories made in the directory may
    /// weaken. The others are bounds of these.
    Relax relax: Relax, default = Relax::ALL;
    /// The weakest level that the directory may have, since the directory in which it was made
    /// allows no weaker one. Only root can change it. It is not listed, and copies do not get it.
    Bound bound: Bound, unset = "none";
}
