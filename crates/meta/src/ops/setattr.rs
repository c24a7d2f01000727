//! `chmod`, `chown`, `truncate` and `utimensat`; access times.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use espalier_proto::{
    Access, Accesses, Errno, FileType, Ino, InodeFlags, Reply, SetAttr, SetTime, Time, mode,
};

use crate::event::{Change, Event};
use crate::machine::{Cx, Final, Meta};
use crate::permission::check_not;
use crate::progress::Progress;
use crate::record::Inode;
use crate::step::{Step, Stop, StreamCall};
use crate::task::reported_time;
use crate::trash::INTERNAL_CLIENT;

impl Meta {
    /// `chmod`, `chown`, `truncate` and `utimensat`, in any combination.
    pub(crate) fn setattr(&mut self, cx: &mut Cx<'_>, ino: Ino, set: &SetAttr) -> Step<Final<'_>> {
        self.writable()?;
        let inode = self.state.inode(ino)?;
        let mut change = decide(cx, inode, set)?;
        if inode.has_no_metafile() {
            change = inode.no_metafile_change(change)?;
        }
        let streamed = inode.is_streamed();
        let drops = set.uid.or(set.gid).is_some() && !inode.is_dir() && !makes_copy(cx, inode, set);
        if drops {
            self.drop_capability(cx, ino)?;
        }
        let inode = self.state.inode(ino)?;
        if let Some(size) = set.size {
            match inode.kind {
                FileType::Regular => {}
                FileType::Directory => return Err(Errno::EISDIR.into()),
                _ => return Err(Errno::EINVAL.into()),
            }
            if !set.through_handle {
                cx.check(inode, Access::WRITE)?;
            }
            if !is_copied_up(cx, inode) {
                self.drop_capability(cx, ino)?;
            }
            if streamed {
                self.truncate_stream(cx, ino, size)?;
            } else if size <= u64::from(self.config.strip_bytes) {
                self.truncate_stuffed(cx, ino, size)?;
            } else {
                self.state.admit_size(ino, size)?;
                return Err(self.unstuff(cx, ino, None));
            }
        }
        if let (Some(mtime), true) = (change.mtime, self.state.inode(ino)?.is_streamed()) {
            self.block_grants(cx, ino)?;
            // An earlier run may have set the stream to another value of `now`.
            let earlier = cx.streams.iter().find_map(|(call, _)| match call {
                StreamCall::SetMtime { mtime, .. } => Some(*mtime),
                _ => None,
            });
            let mtime = earlier.unwrap_or(mtime);
            cx.stream(StreamCall::SetMtime { ino, mtime })?;
            // The record must equal the stream's time (`Attr::measure`).
            change.mtime = Some(mtime);
        }
        let (mut attr, unmeasured) = self.attr_or_grant(cx, ino)?;
        if change == Change::default() {
            return Ok(Final::of(self.reply_attr(cx, attr, unmeasured)));
        }
        let stat = match unmeasured {
            None => self.stream_stat(cx, self.state.inode(ino)?)?,
            Some(_) => None,
        };
        self.commit_rights(cx, &Event::SetAttr { ino, change }, move |meta, cx| {
            if let Some(cached) = meta.state.inodes.get(&ino) {
                attr = cached.inode.attr(stat.as_ref());
            }
            meta.reply_attr(cx, attr, unmeasured)
        })
    }
}

/// The changes that the caller may make, with the changes that they imply.
fn decide(cx: &Cx<'_>, inode: &Inode, set: &SetAttr) -> Step<Change> {
    let mut change = Change::default();
    let owner = cx.is_owner(inode);
    check_protected(inode, set)?;
    if let Some(flags) = set.flags {
        cx.check_flags(inode, flags)?;
        change.flags = Some(flags);
    }
    if let Some(perm) = set.perm {
        if !owner {
            return Err(Errno::EPERM.into());
        }
        change.perm = Some(cx.without_foreign_sgid(perm & mode::PERMISSIONS, inode.gid)?);
    }
    if set.uid.is_some() || set.gid.is_some() {
        let same_owner = set.uid.is_none_or(|uid| uid == inode.uid);
        let allowed = cx.caller.is_superuser()
            || (owner
                && same_owner
                && (set.gid.is_none_or(|gid| gid == inode.gid) || cx.is_member(set.gid.unwrap_or(0))?));
        if !allowed {
            return Err(Errno::EPERM.into());
        }
        (change.uid, change.gid) = (set.uid, set.gid);
    }
    let removes = change.uid.is_some() || change.gid.is_some() || set.kill_suid_gid;
    if removes && !inode.is_dir() && !makes_copy(cx, inode, set) && may_remove_privileges(cx, inode, set)? {
        let perm = cx.without_privileges(change.perm.unwrap_or(inode.perm), inode.gid)?;
        change.perm = (perm != inode.perm).then_some(perm);
    }
    if set.atime.is_some() || set.mtime.is_some() {
        let now = |time: Option<SetTime>| matches!(time, Some(SetTime::Now));
        let both_now = now(set.atime) && now(set.mtime);
        let by_truncation = set.size.is_some() && set.atime.is_none() && now(set.mtime);
        if !owner {
            if !both_now && !by_truncation {
                return Err(Errno::EPERM.into());
            }
            if both_now {
                cx.check(inode, Access::WRITE)?;
            }
        }
        let resolve = |time: SetTime| match time {
            SetTime::Now => cx.now,
            SetTime::To(time) => time,
        };
        (change.atime, change.mtime) = (set.atime.map(resolve), set.mtime.map(resolve));
    }
    if change != Change::default() || set.size.is_some() || set.ctime.is_some() {
        change.ctime = Some(cx.now);
    }
    Ok(change)
}

/// Checks protection flags: an immutable inode keeps all attributes; an append-only one keeps all
/// but its times, which may be set to the present.
fn check_protected(inode: &Inode, set: &SetAttr) -> Step<()> {
    let SetAttr {
        flags: _,
        through_handle: _,
        ctime: _,
        kill_suid_gid: _,
        time: _,
        perm,
        uid,
        gid,
        size,
        atime,
        mtime,
    } = *set;
    let changes = perm.or(uid).or(gid).is_some() || size.is_some();
    let times = [atime, mtime];
    let sets_times = times.iter().any(Option::is_some);
    let touches = times.iter().all(|time| *time == Some(SetTime::Now));
    if changes || sets_times && !touches {
        check_not(inode, InodeFlags::PROTECTED)
    } else if sets_times {
        check_not(inode, InodeFlags::IMMUTABLE)
    } else {
        Ok(())
    }
}

/// True for a file that overlayfs may be copying up: a file of root's without a name.
///
/// Overlayfs sets capabilities and mode first, then size and owner. Nothing in these requests
/// distinguishes them from `chown(2)` or `truncate(2)`, which would remove privileges; for such
/// calls kernels remove capabilities themselves.
fn is_copied_up(cx: &Cx<'_>, inode: &Inode) -> bool {
    cx.caller.is_superuser() && inode.nlink == 0 && inode.uid == cx.caller.uid
}

/// True if overlayfs may be setting the owner of a copy.
fn makes_copy(cx: &Cx<'_>, inode: &Inode, set: &SetAttr) -> bool {
    is_copied_up(cx, inode) && set.uid.is_some() && set.gid.is_some() && set.size.is_none()
}

/// Checks that the caller may remove privileges by a request that does nothing else: it may come
/// from anybody's `chown(2)` that changes no owner.
fn may_remove_privileges(cx: &Cx<'_>, inode: &Inode, set: &SetAttr) -> Step<bool> {
    let is_exclusive = SetAttr { kill_suid_gid: true, ..SetAttr::default() } == *set;
    Ok(!is_exclusive || cx.is_owner(inode) || cx.may(inode, Access::WRITE)?)
}

impl Meta {
    /// Removes a file's set-id bits and capabilities before a caller without `CAP_FSETID` changes
    /// its bytes.
    pub(crate) fn remove_privileges(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<Final<'_>> {
        self.drop_capability(cx, ino)?;
        let removal = self.removal_of_privileges(cx, ino)?;
        let changed = removal.is_some();
        self.commit_all(cx, removal.as_slice(), |_, _| Reply::PrivilegesRemoved { changed })
    }

    /// The event that removes a file's set-id bits; `None` if it has none that the caller must not
    /// keep.
    pub(crate) fn removal_of_privileges(&self, cx: &Cx<'_>, ino: Ino) -> Step<Option<Event>> {
        let inode = self.state.inode(ino)?;
        let perm = cx.without_privileges(inode.perm, inode.gid)?;
        if perm == inode.perm || inode.kind != FileType::Regular || inode.has_no_metafile() {
            return Ok(None);
        }
        self.writable()?;
        let change = Change { perm: Some(perm), ctime: Some(cx.now), ..Change::default() };
        Ok(Some(Event::SetAttr { ino, change }))
    }

    /// Truncates or extends a stuffed file, once in an operation.
    pub(crate) fn truncate_stuffed(&mut self, cx: &mut Cx<'_>, ino: Ino, size: u64) -> Step<()> {
        if cx.truncated() == Some(ino) {
            return Ok(());
        }
        self.state.strip(ino)?;
        self.state.admit_size(ino, size)?;
        let event = Event::Resize { ino, size, time: cx.now };
        Err(self.stage_all(cx, &[event], |_, cx| *cx.progress = Progress::Truncated(ino)))
    }

    /// Truncates or extends a stream. Growth is counted first, so that no other operation takes the
    /// space.
    pub(crate) fn truncate_stream(&mut self, cx: &mut Cx<'_>, ino: Ino, size: u64) -> Step<()> {
        if matches!(cx.progress, Progress::Truncated(truncated) if *truncated == ino) {
            // The file was still stuffed, and has been unstuffed since.
            return Ok(());
        }
        self.lock_end(cx, ino)?;
        self.mark_size_dirty(cx, ino)?;
        let by = Some((cx.client, cx.id)).filter(|(client, _)| *client != INTERNAL_CLIENT);
        let call = StreamCall::Truncate { ino, size, by };
        let made = cx.streams.iter().position(|(made, _)| *made == call);
        if made.is_some_and(|at| cx.streams[at].1.is_ok() && at + 1 < cx.streams.len()) {
            // An earlier run has counted the size, and other writes may have been counted since.
            return Ok(());
        }
        if made.is_none() && size > self.state.inode(ino)?.counted_bytes() {
            self.state.admit_size(ino, size)?;
            self.count_size(cx, ino, size)?;
        }
        match cx.stream(call) {
            Ok(_) => self.count_size(cx, ino, size),
            // An interrupted operation does not wait for the size either.
            Err(Stop::Fail(Errno::EINTR)) => {
                self.state.size_dirty.must_measure(ino);
                Err(Errno::EINTR.into())
            }
            Err(Stop::Fail(errno)) => {
                let size = self.measure(cx, ino)?;
                self.count_size(cx, ino, size)?;
                Err(errno.into())
            }
            Err(wait) => Err(wait),
        }
    }

    /// Updates the access time of a file, link or directory that is read. Returns true if it was
    /// due.
    pub(crate) fn accessed(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<bool> {
        match self.atime_update(cx, ino)? {
            Some(access) => Err(self.stage(cx, &access)),
            None => {
                let inode = self.state.inode(ino)?;
                Ok(inode.atime == cx.now && self.atime_is_due(cx, inode, inode.atime, cx.now))
            }
        }
    }

    /// The event that updates the access time of an inode that is read; `None` if it is not due, or
    /// done.
    pub(crate) fn atime_update(&self, cx: &Cx<'_>, ino: Ino) -> Step<Option<Event>> {
        let inode = self.state.inode(ino)?;
        let is_due = inode.atime != cx.now && self.atime_is_due(cx, inode, inode.atime, cx.now);
        Ok((is_due && self.writable().is_ok()).then(|| atime_update(ino, cx.now)))
    }

    /// Updates the access times of files that a client has accessed without a message
    /// ([`Request::Accessed`]).
    pub(crate) fn accessed_before(&mut self, cx: &mut Cx<'_>, files: &[(Ino, Time)]) -> Step<Final<'_>> {
        let mut accesses = BTreeMap::new();
        for (ino, time) in files.iter().filter(|_| self.writable().is_ok()) {
            let is_known = self.sessions.is_known_to(cx.client, *ino);
            let inode = match self.state.inode(*ino) {
                _ if !is_known => continue,
                Ok(inode) => inode,
                Err(stop @ Stop::Wait(_)) => return Err(stop),
                Err(_) => continue,
            };
            let time = reported_time(*time, cx.now);
            // A change since the access overrides it.
            let atime = accesses.get(ino).copied().unwrap_or(inode.atime);
            if inode.ctime < time && atime != time && self.atime_is_due(cx, inode, atime, time) {
                accesses.insert(*ino, time);
            }
        }
        let updates: Vec<_> = accesses.into_iter().map(|(ino, time)| atime_update(ino, time)).collect();
        self.commit_all(cx, &updates, |_, cx| {
            // The client knows these attributes.
            cx.read_set.touched.clear();
            Reply::Done
        })
    }

    /// True if an access of the client at `time` updates the access time `atime`, also if it has
    /// done so.
    fn atime_is_due(&self, cx: &Cx<'_>, inode: &Inode, atime: Time, time: Time) -> bool {
        use crate::config::Atime;
        let counts = match self.sessions.accesses(cx.client) {
            Accesses::All => true,
            Accesses::NoListings => !inode.is_dir(),
            Accesses::None => false,
        };
        match self.config.atime {
            _ if !counts => false,
            _ if inode.has_no_metafile() || inode.is_dir() && self.config.nodiratime => false,
            _ if inode.rare.flags.contains(InodeFlags::NOATIME) => false,
            Atime::Never => false,
            Atime::Always => true,
            Atime::Relative => atime == time || atime.is_old_access(inode.mtime.max(inode.ctime), time),
        }
    }
}

/// The event that sets the access time of an inode.
fn atime_update(ino: Ino, time: Time) -> Event {
    Event::SetAttr { ino, change: Change { atime: Some(time), ..Change::default() } }
}
