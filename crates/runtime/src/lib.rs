//! The production driver: opens a store, recovers the state machines, and runs them for kernel and
//! network requests.

mod addresses;
mod attach;
mod background_work;
mod bulk;
mod caller;
mod calls;
mod capability;
mod clock;
mod control;
mod data;
mod disk;
mod drain;
mod dump;
mod error;
mod flush_behind;
mod framed;
mod frontend;
mod fsck;
mod journal_events;
mod limit;
mod location;
mod migrate;
mod migrate_mounted;
mod mount;
mod namespace;
mod node;
mod ranks;
mod record;
mod remote;
mod repair;
mod resources;
mod serve;
mod servers;
mod shared;
mod tracer;
mod volume;
mod watch;

pub use attach::{WAITING_MAX, mount_servers};
pub use bulk::{CopyHow, CopyKey, CopyReport, NOTIFIED, REMOVE_TREE, SYNC};
pub use calls::{CallOutcome, Calls, Frontend};
pub use capability::Holder;
pub use control::{
    MountStatus, RanksStatus, Status, load_of, status_of, status_of_mount, top_of, trace_of, trace_of_mount,
    trace_of_rank,
};
pub use data::{DataStore, mkfs_data};
pub use drain::{Drained, drain};
pub use dump::{
    ClusterStores, Dumped, LoadOptions, dump, dump_cluster, dump_shared, load, load_cluster, load_shared,
    resume_dump, verify_dump,
};
pub use error::Error;
pub use espalier_meta::Striping;
pub use frontend::FOREVER;
pub use fsck::{FsckReport, fsck, fsck_cluster, fsck_shared};
pub use journal_events::{JournalDamage, JournalEvent, JournalSummary, erase_events, read_events};
pub use limit::may_open;
pub use location::{RadosAccess, StoreLocation, is_in_cluster};
pub use migrate::{MigrationDestination, MigrationRun, MigrationStatus, migrate_stopped};
pub use migrate_mounted::{MigrationRequest, migration_of, request_migration, stop_migration};
pub use mount::{MountOptions, mount, wanted};
pub use namespace::{
    BigFile, ClientJournal, JournalFile, Merged, Namespace, NamespaceOrigin, NamespaceRest, NamespaceSync,
    OfflineStores, OutgoingBatch, RootAttributes, SyncPoint, WriteBytes, Xattrs, apply_nonvolatile,
    export_journal, import_journal, mkfs_namespace, next_batch, open_client_journal,
};
pub use ranks::{Undecided, resolve_lost};
pub use remote::{Called, Messages, Remote, SessionState};
pub use repair::{RepairReport, repair, repair_cluster, repair_shared};
pub use serve::{
    Access, ClusterStatus, DataRole, FollowStatus, MetaRole, OwnStore, RankSource, RankStores, ReadSettings,
    ServeOptions, Settings, SharedRanks, add_to_cluster_map, create_cluster_map, read_cluster_map, serve,
    status_of_server,
};
pub use servers::{Conversation, Servers, UrlError, keep_connected, rank_count};
pub use shared::{ServedStores, SharedStore, add_shared_rank, mkfs_shared};
pub use tracer::Traced;
pub use volume::{MkfsOptions, OpenOptions, Volume, mkfs, mkfs_joining, mkfs_ranks};
pub use watch::{
    CacheFigures, CheckpointFigures, ClientFigures, DataFigures, DirectoryFigures, Figures, FragmentFigures,
    IoFigures, JournalFigures, MetricsAddress, OperationFigures, ProcessFigures, RankFigures, Split, Top,
    TrashFigures,
};
