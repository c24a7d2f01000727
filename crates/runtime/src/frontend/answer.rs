//! Replies to the kernel's requests, and notifications of the kernel.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use espalier_client::{Answer, Call, Opening};
use espalier_fuse::{self as fuse, BackingId, DirBuffer, Notifier, OpenedFlags, StatXExtra};
use espalier_proto::{
    Attr, Caller, Capacity, Copied, Dirent, Entry, Errno, FileType, Ino, Lease, Limit, Name, Rank, Recall,
    Request, Time,
};

use super::flags::{self, Shape};
use super::locks::answer_test;
use super::openings::{CacheMode, DIRECT, Use};
use super::{Backing, Form, FuseFrontend, Notifiers, O_ACCMODE, O_CREAT, O_RDWR, O_WRONLY, Revoking, Ticket};
use crate::caller::takes_no_attributes;
use crate::calls::{CallOutcome, Calls, Frontend};
use crate::clock;

/// Validity of a stream's attributes: the kernel does not update them for its writes through memory
/// maps.
const STREAM_ATTR: Duration = Duration::from_secs(1);
/// Time limit for the kernel to expire a name, after which the server is notified.
const PATIENCE: Duration = Duration::from_millis(50);
/// Notifications of the server before all names are invalidated.
const MOST_REPORTS: u32 = 9;
/// Maximum number of inodes in a prune notification.
const PRUNED: usize = 512;
/// The preferred I/O size in `stat`.
const BLOCK_BYTES: u32 = 4096;

impl Frontend for FuseFrontend {
    type Ticket = Ticket;

    fn is_checked(&self) -> bool {
        true
    }

    fn only_checks(&self, caller: &Caller) -> bool {
        takes_no_attributes(caller.pid)
    }

    fn answer(
        &self,
        calls: &impl Calls<Self>,
        ticket: Ticket,
        outcome: Result<CallOutcome<'_>, Errno>,
        lease: Duration,
    ) {
        let Some(ticket) = self.complete_overlaps(calls, ticket) else { return };
        let Some(ticket) = self.complete_mapped(ticket, &outcome) else { return };
        let Ticket { reply, form, begun } = ticket;
        if let (Some(begun), Some(recorder)) = (begun, self.recorder.get()) {
            recorder.end(*begun, &outcome);
        }
        let lease = self.ttl.unwrap_or(lease);
        let answer = match outcome {
            Err(errno) => {
                return match form {
                    Form::LockAttempt(attempt) if errno == Errno::EAGAIN => {
                        self.failed_attempt(calls, reply, attempt);
                    }
                    // The create has found an existing file of another type. The kernel accepts
                    // only a regular file here; this error makes it resolve the path again.
                    Form::Opening { flags, .. }
                        if flags & O_CREAT != 0
                            && matches!(errno, Errno::EISDIR | Errno::ELOOP | Errno::ENXIO) =>
                    {
                        reply.error(Errno::ESTALE.raw());
                    }
                    _ => reply.error(errno.raw()),
                };
            }
            Ok(CallOutcome::Data(data)) => {
                let taken_back = match &form {
                    Form::Read(read) => Some(read.ino),
                    Form::Pages(ino) => Some(*ino),
                    _ => None,
                };
                answer_data(reply, form, data);
                return self.invalidate_unless_leased(lease, taken_back);
            }
            Ok(CallOutcome::Answer(answer)) => answer,
        };
        match (answer, form) {
            (Answer::Attr(_), Form::Flush) => reply.ok(),
            (Answer::Attr(attr), Form::StatX) => {
                let extra = StatXExtra { btime: Some(time(attr.btime)), ..StatXExtra::default() };
                reply.statx(&attr_out(&attr), &extra, self.attr_valid(&attr, lease));
            }
            (Answer::Attr(attr), Form::Flags(ino, shape)) => {
                if let (Shape::Nothing, Some(notifiers)) = (&shape, self.notifiers.get()) {
                    // The kernel does not know that the ctime has changed.
                    notifiers.inodes.inval_attributes(ino.0);
                }
                flags::answer(reply, attr.flags, &shape);
            }
            (Answer::Attr(attr), _) => reply.attr(&attr_out(&attr), self.attr_valid(&attr, lease)),
            (Answer::Entry(entry), _) => reply.entry(&self.entry_out(&entry, lease)),
            // The kernel requests the attributes when it needs them.
            (Answer::Unmeasured(entry), _) => {
                let lease = if self.ttl.is_some() { Duration::ZERO } else { lease };
                reply.entry(&self.entry_out(&entry, lease));
            }
            (Answer::Absent { .. }, _) => reply.entry(&fuse::Entry::absent(lease)),
            (Answer::Written(written), Form::Write { ino, unique, sync: true, .. }) => {
                let ticket = Ticket { reply, form: Form::Written(written), begun: None };
                calls.call(unique, Caller::SERVER, Call::Request(Request::Fsync { ino }), ticket);
            }
            (Answer::Done, Form::Written(written)) => reply.written(written),
            (Answer::Done, Form::Moving(names)) => {
                // Queued before the reply: it waits for the lock that the kernel releases with the
                // reply.
                if lease.is_zero() && self.ttl.is_none() {
                    self.notify(
                        names
                            .into_iter()
                            .map(|(dir, name)| KernelNotification::Expired(dir, name, None))
                            .collect(),
                    );
                }
                reply.ok();
            }
            (Answer::Done, Form::SyncFs { unique, rank, xattr }) => {
                let rank = Rank(rank.0 + 1);
                if usize::from(rank.0) < calls.ranks() {
                    let form = Form::SyncFs { unique, rank, xattr };
                    let ticket = Ticket { reply, form, begun: None };
                    calls.call(unique, Caller::SERVER, Call::Request(Request::SyncFs { rank }), ticket);
                } else if let Some(room) = xattr {
                    answer_data(reply, Form::Xattr(room), &[]);
                } else {
                    reply.ok();
                }
            }
            (Answer::Done, _) => reply.ok(),
            (Answer::Written(written), Form::Copy) => reply.copied(u64::from(written)),
            (Answer::Written(written), Form::Write { ino, cached, .. }) => {
                reply.written(written);
                self.invalidate_unless_leased(lease, cached.then_some(ino));
            }
            (Answer::Written(written), _) => reply.written(written),
            (Answer::Offset(offset), _) => reply.lseek(offset),
            (Answer::Opened(opening), form) => {
                let opened = self.opened(calls, &reply, opening, form);
                reply.open(&opened);
            }
            (Answer::Created(entry, opening), form) => {
                let opened = self.opened(calls, &reply, opening, form);
                reply.create(&self.entry_out(&entry, lease), &opened);
            }
            (Answer::Listing { entries, parent, .. }, form @ Form::Listing { .. }) => {
                answer_listing(calls, reply, &form, &entries, parent, lease);
            }
            (Answer::Removed { dir, name }, Form::Removing(ino)) => {
                self.notify(
                    [
                        KernelNotification::Entry(dir, name),
                        KernelNotification::Attributes(dir),
                        KernelNotification::Attributes(ino),
                    ]
                    .into(),
                );
                reply.ok();
            }
            (Answer::Copied(mut copied), Form::Copying(key)) => {
                self.copies.made(key, &mut copied);
                let Copied { made, changed, .. } = *copied;
                let entries = made.into_iter().map(|(dir, name)| KernelNotification::Entry(dir, name));
                self.notify(entries.chain(changed.into_iter().map(KernelNotification::Attributes)).collect());
                reply.ok();
            }
            (Answer::StatFs(capacity), _) => answer_statfs(reply, &capacity),
            (Answer::InTheWay(lock), _) => answer_test(reply, lock),
            (Answer::Bytes(_) | Answer::Listing { .. } | Answer::Removed { .. } | Answer::Copied(_), _) => {
                reply.error(Errno::EIO.raw())
            }
        }
    }

    fn revoke(
        &self,
        lease: &Lease,
        is_own: bool,
        blocked: impl Fn() + Send + Sync + 'static,
        done: impl FnOnce() + Send + 'static,
    ) {
        match lease {
            // Until this call is answered the kernel holds the lock that it needs to expire the
            // name, and the answer waits for the revocation.
            Lease::Name { dir, name } if is_own => {
                self.notify([KernelNotification::Expired(*dir, name.clone(), None)].into());
                done();
            }
            Lease::Name { dir, name } => {
                let done = Once::new(done);
                let mut revoking = self.revoking.lock().unwrap_or_else(PoisonError::into_inner);
                let (since, reports) = (Instant::now(), 0);
                revoking.push(Revoking { since, reports, blocked: Arc::new(blocked), done: done.clone() });
                drop(revoking);
                self.notify([KernelNotification::Expired(*dir, name.clone(), Some(done))].into());
            }
            // The kernel caches nothing under these leases.
            Lease::Exclusive { .. } | Lease::Unannounced { .. } => done(),
            // The kernel invalidates the permissions of a directory together with its contents.
            Lease::Inode { ino } | Lease::Contents { dir: ino } | Lease::Data { ino } => {
                self.notify(
                    [KernelNotification::Attributes(*ino), KernelNotification::AllInodes(Once::new(done))]
                        .into(),
                );
            }
        }
    }

    fn distrust_names(&self) {
        if let (true, Some(notifiers)) = (self.has_epochs, self.notifiers.get()) {
            notifiers.names.inc_epoch();
        }
    }

    /// Names that are not in `names`, such as evicted ones, end with their leases; pruning drops
    /// those of unused inodes.
    fn distrust(&self, names: Vec<(Ino, Name)>, inos: &[Ino]) {
        self.notify(
            names.into_iter().map(|(dir, name)| KernelNotification::Expired(dir, name, None)).collect(),
        );
        self.notify(inos.iter().copied().map(KernelNotification::Attributes).collect());
        self.notify(inos.chunks(PRUNED).filter_map(|inos| self.unused(inos)).collect());
    }

    fn changed(&self, inos: &[Ino]) {
        // No later reply may reach a caller while the kernel has old attributes.
        inos.iter().for_each(|ino| self.privileges_removed(*ino));
        self.notify(inos.iter().copied().map(KernelNotification::Attributes).collect());
    }

    /// A second, queued notification would do harm: if the kernel processes it between the next
    /// request for attributes and the reply, it discards the reply and runs the program with the
    /// old mode.
    fn privileges_removed(&self, ino: Ino) {
        if let Some(Notifiers { inodes, .. }) = self.notifiers.get() {
            inodes.inval_attributes(ino.0);
        }
    }

    /// The kernel reports the inodes that it forgets. If the queue is busy, or the inode has
    /// several names, it is not asked, and forgets the inode when its memory is short.
    fn recall(&self, recalls: &[Recall], removed: &[(Ino, Name)]) {
        let notifier = self.notifiers.get().map(|notifiers| &notifiers.names);
        let Some(notifier) = notifier.filter(|notifier| !notifier.is_busy()) else { return };
        // The kernel keeps a directory while names in it are cached, even negative ones.
        for (dir, name) in removed {
            notifier.inval_entry(dir.0, name);
        }
        if self.can_prune {
            let inos: Vec<u64> = recalls.iter().map(|recall| recall.ino.0).collect();
            notifier.prune(&inos);
            return;
        }
        for recall in recalls {
            if let (Some(dir), Some(name)) = (recall.dir, &recall.name) {
                notifier.inval_entry(dir.0, name);
            }
        }
    }

    /// With passthrough, later readers use the store's cached pages.
    fn flushed_behind(&self, ino: Ino, bytes: Range<u64>) {
        let notifier = self.notifiers.get().map(|notifiers| &notifiers.inodes);
        let Some(notifier) = notifier.filter(|notifier| !notifier.is_busy()) else { return };
        if self.passthrough.load(Ordering::Relaxed)
            && let (Ok(offset), Ok(length)) = (bytes.start.try_into(), (bytes.end - bytes.start).try_into())
        {
            notifier.inval_inode(ino.0, offset, length);
        }
    }
}

impl FuseFrontend {
    /// Sends notifications. If the queue is full, a thread waits for space: the caller cannot,
    /// since the kernel may hold a lock for it that a queued notification needs.
    fn notify(&self, mut news: VecDeque<KernelNotification>) {
        const TRIES: u32 = 60_000;
        let Some(notifiers) = self.notifiers.get() else { return };
        if !notify_some(notifiers, &mut news) {
            let notifiers = notifiers.clone();
            std::thread::spawn(move || {
                let is_notified = (0..TRIES).any(|_| {
                    std::thread::sleep(Duration::from_millis(1));
                    notify_some(&notifiers, &mut news)
                });
                if !is_notified {
                    tracing::warn!(
                        "the kernel could not be notified of changes: the mount may show old data"
                    );
                }
            });
        }
    }

    /// Calls `done` when the kernel has written back changes of these bytes through memory maps.
    pub(super) fn after_written_back(
        &self,
        ino: Ino,
        bytes: Range<u64>,
        done: impl FnOnce() + Send + 'static,
    ) {
        self.notify(
            [KernelNotification::Pages(ino, bytes), KernelNotification::AllInodes(Once::new(done))].into(),
        );
    }

    /// Invalidates the pages of a read or write that no lease covers, unless the mount uses a ttl.
    fn invalidate_unless_leased(&self, lease: Duration, ino: Option<Ino>) {
        if lease.is_zero() && self.ttl.is_none() {
            self.notify(ino.map(KernelNotification::Attributes).into_iter().collect());
        }
    }

    /// Calls `done` when the kernel has processed all earlier notifications.
    pub(super) fn after_notified(&self, done: impl FnOnce() + Send + 'static) {
        let inodes = self.notifiers.get().map(|notifiers| notifiers.inodes.clone());
        let done = Once::new(done);
        let then = Once::new(move || after(inodes.as_ref(), done));
        after(self.notifiers.get().map(|notifiers| &notifiers.names), then);
    }

    /// Called many times per second: handles delayed lock attempts and revocations of names.
    ///
    /// The kernel expires a name under its directory's lock. A caller may hold that lock and wait
    /// for a server that waits for this mount and another to give up leases. So the server is
    /// notified, and refuses one of the calls if the other mount reports the same. Where that does
    /// not help, all names are invalidated, which takes no lock but detaches mounts below.
    pub(crate) fn tick(&self) {
        self.give_up_attempts();
        if let Some(notifiers) = self.notifiers.get() {
            notifiers.names.relieve(PATIENCE);
        }
        let (mut late, mut blocked) = (Vec::new(), Vec::new());
        let mut revoking = self.revoking.lock().unwrap_or_else(PoisonError::into_inner);
        revoking.retain_mut(|it| {
            if it.done.is_called() {
                return false;
            }
            if it.since.elapsed() > PATIENCE * (it.reports + 1) {
                it.reports += 1;
                blocked.push(Arc::clone(&it.blocked));
            }
            let is_late = it.reports > MOST_REPORTS;
            late.extend(is_late.then(|| it.done.clone()));
            !is_late
        });
        drop(revoking);
        blocked.into_iter().for_each(|report| report());
        if !late.is_empty() {
            self.distrust_names();
        }
        late.into_iter().for_each(|done| done.call());
    }

    fn unused(&self, inos: &[Ino]) -> Option<KernelNotification> {
        self.can_prune.then(|| KernelNotification::Unused(inos.iter().map(|ino| ino.0).collect()))
    }

    fn entry_out(&self, entry: &Entry, lease: Duration) -> fuse::Entry {
        let is_timed = self.ttl.is_some();
        let entry_valid = if entry.name_leased || is_timed { lease } else { Duration::ZERO };
        let attr = &entry.attr;
        // Fragments of a partitioned directory at other servers may have the rest of its
        // attributes.
        let is_timed = is_timed && attr.map_version == 0;
        let attr_lease = if entry.attr_leased || is_timed { lease } else { Duration::ZERO };
        fuse::Entry {
            node: attr.ino.0,
            generation: self.generation(attr),
            attr: attr_out(attr),
            entry_valid,
            attr_valid: self.attr_valid(attr, attr_lease),
        }
    }

    /// The generation in file handles, which distinguishes inodes with the same number. Servers
    /// never reuse a number; an embedded file system may, if a power failure has undone the first
    /// creation. The kernel expects 0 for the root.
    fn generation(&self, attr: &Attr) -> u64 {
        let is_unique = self.shares_locks || attr.ino == Ino::ROOT;
        if is_unique { 0 } else { u64::from(attr.btime.secs as u32 ^ attr.btime.nanos) }
    }

    fn opened(
        &self,
        calls: &impl Calls<Self>,
        reply: &fuse::Reply,
        opening: Opening,
        form: Form,
    ) -> fuse::Opened {
        let access = if let Form::Opening { flags, .. } = &form { flags & O_ACCMODE } else { 0 };
        let backing = match opening.passthrough {
            true => self.open_backing(calls, reply, opening.ino, access),
            false => None,
        };
        // A close releases the process's locks.
        let mut flags = if self.shares_locks { OpenedFlags::empty() } else { OpenedFlags::NOFLUSH };
        flags.set(OpenedFlags::KEEP_CACHE, opening.keep_cache && backing.is_none() && self.ttl.is_none());
        if opening.accessed
            && let Some(Notifiers { inodes, .. }) = self.notifiers.get()
        {
            inodes.inval_attributes(opening.ino.0);
        }
        let way = match form {
            Form::Opening { uncached, .. } if backing.is_none() => {
                let way = match () {
                    () if uncached || self.ttl.is_some() => CacheMode::Direct,
                    () if !self.writes_directly => CacheMode::Cached,
                    // The kernel's pages may be stale.
                    () if opening.shared => CacheMode::Direct,
                    () if access == O_WRONLY => CacheMode::Sparing,
                    () => CacheMode::Cached,
                };
                let used = Use { writes: self.writes_directly && access != 0, maps: access == O_RDWR };
                self.openings.open(opening.ino, way, used)
            }
            _ => 0,
        };
        flags.set(OpenedFlags::DIRECT_IO, way == DIRECT);
        let number = if self.shares_locks { self.next_handle.fetch_add(1, Ordering::Relaxed) } else { 0 };
        fuse::Opened { handle: number << 2 | way, flags, backing }
    }

    fn open_backing(
        &self,
        calls: &impl Calls<Self>,
        reply: &fuse::Reply,
        ino: Ino,
        access: u32,
    ) -> Option<BackingId> {
        let mut all = self.backing.lock().unwrap_or_else(PoisonError::into_inner);
        let id = match all.get_mut(&ino) {
            Some(backing) => {
                backing.opens += 1;
                backing.id
            }
            None => {
                let file = calls.stream_file(ino);
                let Some(id) = file.and_then(|file| reply.channel().backing_open(file.as_fd()).ok()) else {
                    calls.without_passthrough(ino);
                    return None;
                };
                all.insert(ino, Backing { id, opens: 1 });
                id
            }
        };
        drop(all);
        if access != 0 {
            clock::kernel_writes();
        }
        if access == O_RDWR
            && self.mapped_through().insert(ino)
            && let Some(Notifiers { inodes, .. }) = self.notifiers.get()
        {
            inodes.inval_attributes(ino.0);
        }
        Some(id)
    }

    /// True if the kernel reads and writes an open file itself.
    pub(super) fn is_passed_through(&self, ino: Ino) -> bool {
        self.backing.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&ino)
    }

    /// Files that the kernel reads and writes itself, or that may be mapped so until it forgets
    /// them, which it is asked to do.
    pub(crate) fn passed_through(&self) -> Vec<Ino> {
        // Read first: a file that is closed between both reads is mapped since before.
        let mut inos: HashSet<Ino> =
            self.backing.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect();
        let mapped: Vec<Ino> = self.mapped_through().iter().copied().collect();
        let recall = |ino: &Ino| Recall { ino: *ino, dir: None, name: None };
        self.recall(&mapped.iter().map(recall).collect::<Vec<_>>(), &[]);
        inos.extend(mapped);
        inos.into_iter().collect()
    }

    pub(super) fn close_backing(&self, reply: &fuse::Reply, ino: Ino, access: u32) {
        let mut all = self.backing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(backing) = all.get_mut(&ino) {
            backing.opens -= 1;
            if backing.opens == 0 {
                let _ = reply.channel().backing_close(backing.id);
                all.remove(&ino);
            }
            if access != 0 {
                clock::kernel_stops_writing();
            }
        }
    }

    fn mapped_through(&self) -> MutexGuard<'_, HashSet<Ino>> {
        self.mapped_through.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel has forgotten these inodes, so they are not mapped.
    pub(super) fn forgotten(&self, inos: impl IntoIterator<Item = Ino>) {
        let mut mapped = self.mapped_through();
        if !mapped.is_empty() {
            for ino in inos {
                mapped.remove(&ino);
            }
        }
    }

    /// The time for which the kernel may cache attributes.
    fn attr_valid(&self, attr: &Attr, lease: Duration) -> Duration {
        match attr.streamed {
            // The kernel does not report a store through a memory map that allocates the first
            // blocks of such a file.
            _ if attr.is_hole() => Duration::ZERO,
            _ if !attr.contents_leased && self.ttl.is_none() => Duration::ZERO,
            false => lease,
            // The kernel does not update the attributes for stores through a map of such a stream.
            true if self.mapped_through().contains(&attr.ino) => Duration::ZERO,
            true => lease.min(STREAM_ATTR),
        }
    }
}

type OnceAction = Box<dyn FnOnce() + Send>;

/// An action that is called once, by the first of several callers.
#[derive(Clone)]
pub(super) struct Once(Arc<Mutex<Option<OnceAction>>>);

impl Once {
    fn new(call: impl FnOnce() + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Some(Box::new(call)))))
    }

    fn call(&self) {
        let call = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(call) = call {
            call();
        }
    }

    fn is_called(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

/// Calls `done` when the kernel has processed everything that was queued.
fn after(notifier: Option<&Notifier>, done: Once) {
    let queued = notifier.is_some_and(|notifier| {
        let done = done.clone();
        notifier.fence(move || done.call())
    });
    if !queued {
        done.call();
    }
}

/// A notification for the kernel.
enum KernelNotification {
    /// A name was created, changed or removed.
    Entry(Ino, Name),
    /// A name may be bound to another inode; the kernel looks it up again. The action runs when the
    /// kernel has expired the name.
    Expired(Ino, Name, Option<Once>),
    Attributes(Ino),
    /// Inodes that the kernel may forget with their names, if they are unused.
    Unused(Box<[u64]>),
    /// A range whose pages are written back and dropped.
    Pages(Ino, Range<u64>),
    /// An action that runs when the kernel has processed all earlier notifications of inodes.
    AllInodes(Once),
}

/// Sends notifications; returns true if all could be queued.
fn notify_some(notifiers: &Notifiers, news: &mut VecDeque<KernelNotification>) -> bool {
    while let Some(next) = news.front() {
        let queued = match next {
            KernelNotification::Entry(dir, name) => notifiers.names.inval_entry(dir.0, name),
            KernelNotification::Expired(dir, name, done) => {
                let done = done.clone().map(|done| Box::new(move || done.call()) as OnceAction);
                notifiers.names.expire_entry(dir.0, name, done)
            }
            KernelNotification::Unused(inos) => notifiers.inodes.prune(inos),
            // For a directory, also the listing.
            KernelNotification::Attributes(ino) => notifiers.inodes.inval_inode(ino.0, 0, 0),
            KernelNotification::Pages(ino, bytes) => {
                let offset = i64::try_from(bytes.start).unwrap_or(i64::MAX);
                // 0: up to the end.
                let length = i64::try_from(bytes.end - bytes.start).unwrap_or(0);
                notifiers.inodes.inval_inode(ino.0, offset, length)
            }
            KernelNotification::AllInodes(done) => {
                let done = done.clone();
                notifiers.inodes.fence(move || done.call())
            }
        };
        if !queued {
            return false;
        }
        news.pop_front();
    }
    true
}

pub(super) fn answer_data(reply: fuse::Reply, form: Form, data: &[u8]) {
    match form {
        Form::Xattr(0) => reply.xattr_size(data.len() as u32),
        Form::Xattr(room) if data.len() > room as usize => reply.error(Errno::ERANGE.raw()),
        _ => reply.data(data),
    }
}

fn answer_listing(
    calls: &impl Calls<FuseFrontend>,
    reply: fuse::Reply,
    form: &Form,
    entries: &[Dirent],
    parent: Ino,
    lease: Duration,
) {
    let Form::Listing { dir, offset, size, plus } = *form else { return reply.error(Errno::EIO.raw()) };
    let mut bytes = Vec::new();
    let mut buffer = DirBuffer::new(&mut bytes, size);
    let mut push = |ino: Ino, next: u64, kind: FileType, name: &[u8], entry: Option<&Entry>| {
        if !plus {
            return buffer.push(ino.0, next, kind.bits(), name);
        }
        let entry = entry.map_or(fuse::Entry::default(), |entry| calls.frontend().entry_out(entry, lease));
        buffer.push_plus(&entry, ino.0, next, kind.bits(), name)
    };
    let dots: [(&[u8], Ino, u64); 2] = [(b".", dir, 1), (b"..", parent, 2)];
    for (name, ino, next) in dots.into_iter().filter(|(_, _, next)| *next > offset) {
        push(ino, next, FileType::Directory, name, None);
    }
    let fits = |entry: &&Dirent| push(entry.ino, entry.cursor, entry.kind, &entry.name, entry.entry.as_ref());
    let left = entries.iter().skip_while(fits);
    // The kernel receives only the entries before, so the lookups of the others are cancelled.
    let unknown: Vec<Request> = left
        .filter(|entry| entry.entry.is_some())
        .map(|entry| Request::Forget { ino: entry.ino, lookups: 1 })
        .collect();
    reply.data(&bytes);
    if !unknown.is_empty() {
        calls.forget(unknown);
    }
}

fn answer_statfs(reply: fuse::Reply, capacity: &Capacity) {
    let space = capacity.space;
    let blocks = |bytes: u64| bytes / u64::from(BLOCK_BYTES);
    // A quota may leave more space than there is.
    let room = capacity.byte_limit.map_or(u64::MAX, Limit::free);
    // Inodes need only space, so the free space limits their number.
    let by_space = space.available / 256;
    let files_free = capacity.file_limit.map_or(by_space, |limit| limit.free().min(by_space));
    reply.statfs(&fuse::StatFs {
        blocks: blocks(capacity.byte_limit.map_or(space.total, |limit| limit.max)),
        blocks_free: blocks(space.free.min(room)),
        blocks_available: blocks(space.available.min(room)),
        files: capacity.file_limit.map_or(capacity.files + by_space, |limit| limit.max),
        files_free,
        block_size: BLOCK_BYTES,
        fragment_size: BLOCK_BYTES,
        name_max: Name::MAX_BYTES as u32,
    });
}

fn time(time: Time) -> (i64, u32) {
    (time.secs, time.nanos)
}

fn attr_out(attr: &Attr) -> fuse::Attr {
    fuse::Attr {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        mode: attr.kind.bits() | attr.perm,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK_BYTES,
    }
}
