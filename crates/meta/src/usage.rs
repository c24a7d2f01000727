//! Recursive usage of directories (CephFS's recursive statistics) and quotas.
//!
//! A directory's record contains the usage below it. Each event updates the records of all
//! directories above its change, live and in replay alike, so the journal does not mention usage. A
//! file counts once per name, at that name: a directory's usage depends on nothing outside it, and
//! moves with it. Changes of directories at other ranks are sent to these later
//! (`rank/usage_deltas.rs`).

use alloc::vec::Vec;

use espalier_proto::{Errno, Ino, Limit, Rank};
use serde::{Deserialize, Serialize};

use crate::permission::check_interference;
use crate::record::{Body, Directory, Inode, Referent};
use crate::state::{Cached, Location, State};
use crate::step::{Step, Stop};

/// Usage below a directory, or a change of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Everything except directories.
    pub files: u64,
    pub dirs: u64,
    /// Sizes of regular files and lengths of symbolic links, in bytes.
    pub bytes: u64,
}

impl Usage {
    // Sparse files may sum to more than 64 bits: sums wrap, so that what was added can be
    // subtracted.

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            files: self.files.wrapping_add(other.files),
            dirs: self.dirs.wrapping_add(other.dirs),
            bytes: self.bytes.wrapping_add(other.bytes),
        }
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self {
            files: self.files.wrapping_sub(other.files),
            dirs: self.dirs.wrapping_sub(other.dirs),
            bytes: self.bytes.wrapping_sub(other.bytes),
        }
    }

    fn of_bytes(bytes: u64) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// Inodes of any type.
    pub(crate) fn inodes(self) -> u64 {
        self.files.wrapping_add(self.dirs)
    }
}

/// Limits on the usage below a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Files and directories together.
    pub files: Option<u64>,
    pub bytes: Option<u64>,
}

/// The tightest quotas above a place, each with the usage below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaLimits {
    /// Files and directories together.
    pub files: Option<Limit>,
    pub bytes: Option<Limit>,
}

impl QuotaLimits {
    pub(crate) fn is_any(&self) -> bool {
        self.files.is_some() || self.bytes.is_some()
    }

    /// Expressed as a quota on one directory, with the usage below it.
    fn to_quota(self) -> (Quota, Usage) {
        let quota = Quota { files: self.files.map(|it| it.max), bytes: self.bytes.map(|it| it.max) };
        let used = |limit: Option<Limit>| limit.map_or(0, |it| it.used);
        (quota, Usage { files: used(self.files), dirs: 0, bytes: used(self.bytes) })
    }
}

impl Quota {
    const NONE: Self = Self { files: None, bytes: None };

    /// A decrease is always allowed, even above the limit.
    fn allows(self, now: Usage, gain: Usage, loss: Usage) -> bool {
        let fits = |max: Option<u64>, now: u64, gain: u64, loss: u64| {
            gain <= loss || max.is_none_or(|max| now.saturating_add(gain - loss) <= max)
        };
        fits(self.files, now.inodes(), gain.inodes(), loss.inodes())
            && fits(self.bytes, now.bytes, gain.bytes, loss.bytes)
    }
}

impl Inode {
    /// The usage that one name of it adds to the directories above.
    pub(crate) fn weight(&self) -> Usage {
        match &self.body {
            // A fragment is a part of its directory.
            Body::Directory(directory) if self.fragment().is_some() => directory.usage,
            Body::Directory(directory) => directory.usage.plus(Usage { dirs: 1, ..Usage::default() }),
            _ => Usage { files: 1, dirs: 0, bytes: self.counted_bytes() },
        }
    }

    /// The size that is counted.
    pub(crate) fn counted_bytes(&self) -> u64 {
        match &self.body {
            Body::Stuffed { size, .. } => *size,
            Body::Streamed { counted } | Body::Striped { counted, .. } => *counted,
            Body::Symlink(target) => target.len() as u64,
            Body::Node | Body::Directory(_) => 0,
        }
    }
}

impl Cached {
    /// The directories that contain its names, each with the number of names.
    pub(crate) fn parents(&self) -> Vec<(Ino, u32)> {
        match self.location {
            Location::Dentry { dir, .. } => [(dir, 1)].into(),
            Location::Table => self.inode.rare.names.iter().flat_map(|names| names.iter().copied()).collect(),
            Location::Orphan => Vec::new(),
        }
    }
}

impl State {
    /// The rank whose tables these are.
    pub(crate) fn rank(&self) -> Rank {
        Ino(self.numbers.next()).rank()
    }

    /// True if a directory is at this rank.
    pub(crate) fn is_here(&self, dir: Ino) -> bool {
        dir.rank() == self.rank()
    }

    /// An inode of this rank, as its names refer to it.
    pub(crate) fn referent_here(&self, ino: Ino) -> Step<Referent> {
        Ok(Referent { ino, kind: self.inode(ino)?.kind, at: self.rank() })
    }

    /// Visits the directories from `dir` upwards. Returns the last one: the root; a removed
    /// directory, `dir` itself or one above; or the first directory at another rank, which is not
    /// visited.
    fn each_above(&self, dir: Ino, mut look: impl FnMut(Ino, &Directory) -> Step<()>) -> Step<Ino> {
        let mut dir = dir;
        // More steps than inodes mean a cycle, in a damaged store.
        for _ in 0..=self.counts.files {
            if !self.is_here(dir) {
                return Ok(dir);
            }
            let inode = self.dir_even_if_locked(dir)?;
            let Body::Directory(directory) = &inode.body else { break };
            look(dir, directory)?;
            if dir == Ino::ROOT || inode.nlink == 0 {
                return Ok(dir);
            }
            dir = directory.parent;
        }
        Err(Errno::EIO.into())
    }

    /// Ensures that the directory and all above it are in memory.
    pub(crate) fn load_above(&self, dir: Ino) -> Step<()> {
        self.each_above(dir, |_, _| Ok(())).map(drop)
    }

    /// True if a directory was removed, or one above it.
    pub(crate) fn is_removed(&self, dir: Ino) -> Step<bool> {
        if self.trash.is_empty() {
            return Ok(self.dir(dir)?.nlink == 0);
        }
        let top = self.each_above(dir, |_, _| Ok(()))?;
        Ok(top != Ino::ROOT && self.is_here(top))
    }

    /// True if `dir` is `top` or lies below it.
    pub(crate) fn is_below(&self, dir: Ino, top: Ino) -> Step<bool> {
        let mut is_below = false;
        self.each_above(dir, |above, _| {
            is_below |= above == top;
            Ok(())
        })?;
        Ok(is_below)
    }

    /// Fails with `EBUSY` for an inode below a decoupled directory without interference.
    pub(crate) fn check_blocked(&self, ino: Ino) -> Step<()> {
        if self.counts.protected == 0 {
            return Ok(());
        }
        self.cached(ino)?.parents().into_iter().try_for_each(|(dir, _)| self.check_blocked_dir(dir))
    }

    /// Fails with `EBUSY` for a decoupled directory without interference and for those below it,
    /// also while they are locked.
    pub(crate) fn check_blocked_dir(&self, dir: Ino) -> Step<()> {
        if self.counts.protected == 0 {
            return Ok(());
        }
        self.each_above(dir, |above, _| check_interference(self.dir_even_if_locked(above)?)).map(drop)
    }

    /// True if [`Self::check_blocked_dir`] fails with `EBUSY`, as far as directories are in memory.
    pub(crate) fn is_known_blocked(&self, dir: Ino) -> bool {
        matches!(self.check_blocked_dir(dir), Err(Stop::Fail(Errno::EBUSY)))
    }

    /// True if a file has names only in removed directories.
    pub(crate) fn is_unreachable(&self, ino: Ino) -> Step<bool> {
        let cached = self.cached(ino)?;
        if self.trash.is_empty() {
            return Ok(cached.inode.nlink == 0);
        }
        for (dir, _) in cached.parents() {
            if !self.is_removed(dir)? {
                return Ok(false);
            }
        }
        Ok(!cached.inode.is_dir())
    }

    /// The directories of an inode's names, after loading all directories above them.
    pub(crate) fn load_parents(&self, ino: Ino) -> Step<Vec<(Ino, u32)>> {
        let parents = self.cached(ino)?.parents();
        for (dir, _) in &parents {
            self.load_above(*dir)?;
        }
        Ok(parents)
    }

    /// Adds a gain and a loss to the usage of a directory and all above it, which must be in
    /// memory.
    pub(crate) fn count(&mut self, dir: Ino, gain: Usage, loss: Usage) {
        let mut dir = dir;
        while self.is_here(dir) {
            let Some(cached) = self.touch_inode(dir) else { return };
            let Body::Directory(directory) = &mut cached.inode.body else { return };
            directory.usage = directory.usage.plus(gain).minus(loss);
            if dir == Ino::ROOT || cached.inode.nlink == 0 {
                return;
            }
            dir = directory.parent;
        }
        self.owe(dir, gain, loss);
    }

    /// Changes the counted size of a file with names in these directories.
    pub(crate) fn count_size(&mut self, parents: &[(Ino, u32)], old: u64, new: u64) {
        for (dir, names) in parents.iter().filter(|_| old != new) {
            let times = |size: u64| Usage::of_bytes(size.wrapping_mul(u64::from(*names)));
            self.count(*dir, times(new), times(old));
        }
    }

    /// Fails with `EDQUOT` unless all quotas allow these gains and losses of directories.
    pub(crate) fn admit(&self, gains: &[(Ino, Usage)], losses: &[(Ino, Usage)]) -> Step<()> {
        for (dir, _) in gains {
            let top = self.each_above(*dir, |above, directory| {
                if directory.quota == Quota::NONE {
                    return Ok(());
                }
                let (gain, loss) = (self.total_below(above, gains)?, self.total_below(above, losses)?);
                if directory.quota.allows(directory.usage, gain, loss) {
                    Ok(())
                } else {
                    Err(Errno::EDQUOT.into())
                }
            })?;
            if let Some((quota, now)) = self.remote_limits(top).map(QuotaLimits::to_quota) {
                let (gain, loss) = (self.total_below(top, gains)?, self.total_below(top, losses)?);
                if !quota.allows(now, gain, loss) {
                    return Err(Errno::EDQUOT.into());
                }
            }
        }
        Ok(())
    }

    fn total_below(&self, above: Ino, changes: &[(Ino, Usage)]) -> Step<Usage> {
        let mut total = Usage::default();
        for (dir, usage) in changes {
            let mut is_below = false;
            let top = self.each_above(*dir, |ino, _| {
                is_below |= ino == above;
                Ok(())
            })?;
            if is_below || top == above {
                total = total.plus(*usage);
            }
        }
        Ok(total)
    }

    /// Fails with `EDQUOT` unless all quotas allow a file of this size.
    pub(crate) fn admit_size(&self, ino: Ino, size: u64) -> Step<()> {
        let Some(growth) = size.checked_sub(self.inode(ino)?.counted_bytes()) else { return Ok(()) };
        let gain = |(dir, names): (Ino, u32)| (dir, Usage::of_bytes(growth.saturating_mul(names.into())));
        let gains: Vec<_> = self.load_parents(ino)?.into_iter().map(gain).collect();
        self.admit(&gains, &[])
    }

    /// The tightest limits on bytes and on files above an inode; for a file, above its first name.
    pub(crate) fn limits(&self, ino: Ino) -> Step<QuotaLimits> {
        let cached = self.cached(ino)?;
        let first =
            if cached.inode.is_dir() { Some(ino) } else { cached.parents().first().map(|(dir, _)| *dir) };
        // No limit applies to a removed directory.
        match first.filter(|_| cached.inode.nlink > 0) {
            Some(dir) => self.limits_below(dir),
            None => Ok(QuotaLimits::default()),
        }
    }

    /// As [`Self::limits`], for what is in a directory.
    pub(crate) fn limits_below(&self, dir: Ino) -> Step<QuotaLimits> {
        let mut limits = QuotaLimits::default();
        let top = self.each_above(dir, |_, directory| {
            let max = |max: Option<u64>, used| max.map(|max| Limit { max, used });
            tighten(&mut limits.bytes, max(directory.quota.bytes, directory.usage.bytes));
            tighten(&mut limits.files, max(directory.quota.files, directory.usage.inodes()));
            Ok(())
        })?;
        let remote = self.remote_limits(top).unwrap_or_default();
        tighten(&mut limits.bytes, remote.bytes);
        tighten(&mut limits.files, remote.files);
        Ok(limits)
    }

    /// True if a quota on bytes applies to one of the file's names.
    pub(crate) fn is_limited(&self, ino: Ino) -> Step<bool> {
        let mut limited = false;
        for (dir, _) in self.cached(ino)?.parents() {
            limited |= self.limits_below(dir)?.bytes.is_some();
        }
        Ok(limited)
    }
}

fn tighten(limit: &mut Option<Limit>, new: Option<Limit>) {
    if let Some(new) = new
        && limit.is_none_or(|limit| new.free() < limit.free())
    {
        *limit = Some(new);
    }
}

impl State {
    /// The size-dirty files for a checkpoint, with their locations.
    pub(crate) fn size_dirty_places(&self) -> Vec<(Ino, Option<(Ino, u64)>)> {
        let place = |ino: Ino| match self.inodes.get(&ino).map(|cached| cached.location) {
            Some(Location::Dentry { dir, hash }) => (ino, Some((dir, hash))),
            _ => (ino, None),
        };
        self.size_dirty.inos().map(place).collect()
    }
}

/// Adds a name in `dir` to a file's list.
pub(crate) fn add_name(names: &mut Vec<(Ino, u32)>, dir: Ino) {
    match names.iter_mut().find(|(there, _)| *there == dir) {
        Some((_, count)) => *count += 1,
        None => names.push((dir, 1)),
    }
}

/// Removes a name in `dir` from a file's list.
pub(crate) fn remove_name(names: &mut Vec<(Ino, u32)>, dir: Ino) {
    if let Some(at) = names.iter().position(|(there, _)| *there == dir) {
        names[at].1 -= 1;
        if names[at].1 == 0 {
            names.remove(at);
        }
    }
}
