//! All test cases, one file per subject; `ALL` is the list.

use std::fmt;

use crate::{CaseResult, Dir};

/// A test case: a function of a fresh directory.
pub struct Case {
    pub subject: &'static str,
    pub name: &'static str,
    pub run: fn(&Dir) -> CaseResult,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.subject, self.name)
    }
}

/// Imports of nearly every case.
mod prelude {
    pub(super) use std::fs::{self, File, OpenOptions};
    pub(super) use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
    pub(super) use std::path::{Path, PathBuf};

    pub(super) use rustix::fs::{AtFlags, CWD, Mode, OFlags};

    pub(super) use crate::dir::{
        atime, chmod, chown, ctime, exists, mode, mtime, open, pattern, stat, tick, umask,
    };
    pub(super) use crate::macros::{check, fails, same};
    pub(super) use crate::process::{ALICE, BOB, Bell, Child, Context, STAFF, User, in_child};
    pub(super) use crate::{CaseResult, Dir, Failure};
}

macro_rules! table {
    ($($subject:ident: $($name:ident)+;)+) => {
        $(mod $subject;)+
        /// All cases in execution order.
        pub static ALL: &[Case] = &[$($(
            Case { subject: stringify!($subject), name: stringify!($name), run: $subject::$name },
        )+)+];
    };
}

table! {
    create: exclusive exclusive_race truncating append_processes no_follow path_only directory_only
        sync_flags direct modes_and_umask other_errors;
    tmpfile: unlinked linked_by_fd linked_by_proc exclusive_cannot_be_linked many;
    links: counts max_links shared_data errors across_directories symlink_itself link_of_open_file;
    symlinks: lengths dangling loops relative_and_nested attributes trailing_slash not_followed;
    rename: plain no_replace exchange exchange_kinds whiteout into_own_subtree over_non_empty
        over_kinds same_file over_open_file open_directory sticky times dotdot_follows bad_flags;
    unlinked: file_lives_on grows_and_shrinks space_returns directory_as_cwd metadata_changes replaced_by_rename
        reopened_by_proc;
    xattr: set_get_list create_replace sizes names_and_limits namespaces special_files large_values
        many_names directories permissions ctime_changes;
    acl: minimal_is_mode masked checked_for_users inherited inherited_with_umask chmod_sets_mask removed
        errors symlink_refused;
    setid: cleared_by_write cleared_by_chown cleared_by_truncate chmod_by_outsider directory_group
        directory_group_of_outsider kept_for_root capabilities_cleared_by_write
        cleared_by_every_change_of_bytes cleared_through_older_opening group_bit_lost_by_outsider
        kept_by_what_changes_no_bytes written_program_runs_as_caller
        capabilities_cleared_by_every_change_of_bytes capabilities_cleared_by_chown
        capabilities_removed_by_privileged_only kept_by_copy_up_of_overlayfs;
    permission: sticky_unlink supplementary_groups search_after_cached chmod_seen_at_once write_needs_write
        access_calls owner_only_calls traverse_only group_before_other root_overrides execute;
    flags: immutable append_only directories set_at_once who_may_set no_access_time;
    times: nanoseconds now_and_omit range each_operation parent_directory chmod_and_chown relatime
        relatime_of_open_file read_and_write_order birth monotonic_enough final_after_close
        set_while_map_is_dirty store_through_map_counts order_of_small_and_big;
    sparse: small_holes big_holes terabytes blocks_sane hole_then_write;
    fallocate: extends keep_size punch_hole zero_range allocates makes_holes errors;
    copy_range: small large within_one_file past_end;
    truncate: down_and_up around_the_strip by_path huge errors;
    data: model_small model_strip model_megabyte model_two_handles growing_reader vectored sizes_reopened
        many_small_files many_sizes interleaved_files;
    locks: flock_between_processes flock_upgrade posix_between_processes posix_ranges posix_lost_on_close
        blocking_wait interrupted ofd flock_interrupted released_by_exit;
    mapping: shared_store_read shared_between_processes private_copy growing past_end_zero
        write_seen_by_mapping write_only_seen_by_others executable unlinked_mapping strip_crossing dirty_pages_are_data
        loaded_pages_are_holes;
    sync: files directories filesystem ranges after_unlink;
    statfs: sane counts_change names;
    listing: seek_while_changing rewind remove_while_reading types_and_inodes dots small_buffers
        empty_and_removed stable_cookies;
    names: every_byte lengths deep_chain long_path case_and_normal_forms dot_names;
    special: fifo socket devices device_permissions socket_in_listing;
    many: entries_in_a_directory subdirectories wide_and_deep;
    concurrent: same_names creates_in_one_directory renames_across links_and_unlinks appenders
        readers_during_growth readers_of_the_end mkdir_rmdir;
    handles: outlive_the_cache of_every_kind follow_renames end_with_the_inode of_open_file directories_are_reconnected
        need_privilege;
    lookup: errors inode_numbers directory_links trailing_slashes negative_then_created current_and_parent;
}
