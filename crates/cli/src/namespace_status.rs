//! The state of a decoupled namespace in `espalier status`: what a crash would lose, and what runs
//! out.

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;
use espalier_policy::{Durability, Policy};
use espalier_proto::Ino;
use espalier_runtime::{Error, NamespaceOrigin, Status};
use rustix::fs::statvfs;
use serde::Serialize;

use crate::policy;

/// Part of a bound, in percent, from which on it is near.
const NEAR: u64 = 90;

/// A mounted namespace.
#[derive(Debug, Serialize)]
pub(crate) struct NamespaceStatus {
    directory: u64,
    consistency: String,
    durability: String,
    /// Inode numbers that were used, and those of the namespace.
    inodes_used: u64,
    inodes: u64,
    /// Changes that a crash of the client's machine would lose.
    changes_at_risk: u64,
    /// The sentence of the level.
    client_crash: &'static str,
    warnings: Vec<String>,
}

impl NamespaceStatus {
    /// `None`: the store is not that of a mounted namespace.
    pub(crate) fn of(store: &Path, status: &Status) -> Result<Option<Self>> {
        let origin = match NamespaceOrigin::read(store) {
            Err(Error::NoNamespace(_)) => return Ok(None),
            origin => origin?,
        };
        let (Some(mountpoint), Some(figures)) = (&status.mountpoint, &status.figures) else {
            return Ok(None);
        };
        let level = policy::effective(mountpoint)?.or(&Policy::DEFAULT).level();
        let first = origin.decoupled.first;
        let first = first.0 - Ino::none_of(first.rank()).0;
        // The upper half is for inodes that cannot keep their number.
        let inodes = origin.decoupled.inodes / 2;
        let inodes_used = figures.journal.next_inode.saturating_sub(first).min(inodes);
        let is_in_memory = level.durability == Durability::None;
        let changes_at_risk = if is_in_memory { figures.journal.changes } else { figures.journal.unsynced };
        let mut warnings = Vec::new();
        if inodes_used * 100 >= inodes * NEAR {
            warnings.push(format!(
                "{} of {inodes} inode numbers are left; creations fail without one: merge, and decouple with more \
                 (allocated_inodes)",
                inodes - inodes_used
            ));
        }
        let space = statvfs(store)?;
        if space.f_bavail * 100 < space.f_blocks * (100 - NEAR) {
            let whose = if is_in_memory { "the memory file system" } else { "the disk" };
            let mib = (space.f_bavail * space.f_frsize) >> 20;
            warnings.push(format!(
                "{mib} MiB are left on {whose} of {}: merge, or choose another --store",
                store.display()
            ));
        }
        Ok(Some(Self {
            directory: origin.directory.0,
            consistency: level.consistency.to_string(),
            durability: level.durability.to_string(),
            inodes_used,
            inodes,
            changes_at_risk,
            client_crash: level.guarantee().client,
            warnings,
        }))
    }

    pub(crate) fn text(&self) -> String {
        let Self { directory, consistency, durability, inodes_used, inodes, changes_at_risk, .. } = self;
        let mut text = format!(
            "namespace   of directory {directory}, {consistency} and {durability}; {inodes_used} of {inodes} inode numbers used\n"
        );
        let _ = writeln!(text, "at risk     {changes_at_risk} changes: a client crash {}", self.client_crash);
        for warning in &self.warnings {
            let _ = writeln!(text, "WARNING     {warning}");
        }
        text
    }
}
