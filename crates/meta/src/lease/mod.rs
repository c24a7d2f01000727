//! Leases: what clients may cache until it changes (docs/leases.md).
//!
//! A running operation records what its reply exposes; when the reply leaves, its client has leases
//! on that. Before an event is applied, the leases of other clients on what it changes are revoked,
//! and the operation waits until they have been acknowledged or have expired. Without leases
//! ([`Config::lease_ms`](crate::Config)) none of this costs anything.

mod blocked;
mod contention;
mod data;
mod dependents;
mod exclusive;
mod table;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use espalier_proto::{Attr, ClientId, Entry, Errno, FileType, Ino, Name, Reply, RevocationId, Touched};
use smallvec::SmallVec;

use crate::event::{Change, Event};
use crate::machine::{Cx, Meta};
use crate::outbox::{Now, Outbox};
use crate::record::Slot;
use crate::session::TokenKind;
use crate::state::{Location, State};
use crate::step::{Step, Stop, Wait};
use crate::task::Task;
use crate::trash::INTERNAL_CLIENT;

use exclusive::named_dir;
use table::Epoch;
pub(crate) use table::{LeaseKey, Leases};

/// Most replies expose one name and one inode.
type Keys = SmallVec<[LeaseKey; 2]>;

/// The state that a reply exposes to its client.
#[derive(Debug, Default)]
pub(crate) struct ReadSet {
    keys: Keys,
    /// No-metafile files in the reply, with the directories that their attributes derive from.
    dependents: Vec<(Ino, Ino)>,
    /// The reply must not be cached.
    refused: bool,
    /// Number of the last event that changed any of it. 0: all of it is durable. `None`: unknown.
    pub last_change: Option<u64>,
    /// Inodes that the operation has changed.
    pub touched: Vec<Ino>,
}

impl ReadSet {
    /// Nothing but the inodes that earlier runs of the operation have changed.
    pub fn after(touched: Vec<Ino>) -> Self {
        Self { touched, ..Self::default() }
    }

    /// Marks the reply as not cacheable.
    pub fn refuse(&mut self) {
        self.refused = true;
    }
}

/// The leases of a reply that is held back until the journal is written.
#[derive(Debug, Default)]
pub(crate) struct PreparedGrant(Option<Box<GrantTerms>>);

impl PreparedGrant {
    /// Withdraws the leases of a reply that will fail. What it was to report may be visible to
    /// others, so the changed inodes are still listed.
    pub(crate) fn voided(self) -> Self {
        let broken = self.0.map(|durable_bound| {
            let Touched { attrs, mut others, .. } = durable_bound.touched;
            others.extend(attrs.iter().map(|attr| attr.ino));
            let touched = Touched { others, ..Touched::default() };
            Box::new(GrantTerms { keys: Keys::new(), refused: false, touched, dir: None, ..*durable_bound })
        });
        Self(broken)
    }
}

#[derive(Debug)]
struct GrantTerms {
    keys: Keys,
    epoch: Epoch,
    refused: bool,
    /// Each attribute in it has a lease of its own.
    touched: Touched,
    /// The directory in which the request names an entry.
    dir: Option<Ino>,
}

impl Meta {
    // ---- What replies expose

    /// Records that the reply exposes an inode: a file's data, or what [`LeaseKey::Inode`] covers
    /// of a directory.
    pub(crate) fn note_inode(&self, cx: &mut Cx<'_>, ino: Ino) {
        if !self.note_read(cx, LeaseKey::Inode(ino)) {
            cx.read_set.refused = true;
        }
    }

    /// Records that the reply exposes all attributes of an inode, and notes in them whether the
    /// contents of a directory may be cached. Returns whether the rest may.
    pub(crate) fn note_attr(&self, cx: &mut Cx<'_>, attr: &mut Attr) -> bool {
        let may_cache = self.note_read(cx, LeaseKey::Inode(attr.ino));
        if attr.kind == FileType::Directory {
            attr.contents_leased = self.note_read(cx, LeaseKey::Contents(attr.ino));
        }
        may_cache
    }

    /// Records that the reply exposes the listing of a directory.
    pub(crate) fn note_listing(&self, cx: &mut Cx<'_>, dir: Ino) {
        if !LeaseKey::of_attributes(dir, FileType::Directory).into_iter().all(|key| self.note_read(cx, key)) {
            cx.read_set.refused = true;
        }
    }

    /// Records that the reply exposes that a name does not exist.
    pub(crate) fn note_absent(&mut self, cx: &mut Cx<'_>, dir: Ino, slot: &Slot) {
        if !self.note_read(cx, LeaseKey::Name { dir, hash: slot.hash }) {
            cx.read_set.refused = true;
        } else if let Some(leases) = &mut self.leases {
            leases.note_absent(dir, slot.hash, &slot.name);
        }
    }

    /// Records a lease on the name that a `rename` has made. The client's kernel caches that name
    /// whatever the reply says, so the lease is granted on contended names too. If none can be
    /// granted, the reply carries no lease, and the frontend has the kernel look the name up again.
    pub(crate) fn note_moved(&self, cx: &mut Cx<'_>, dir: Ino, name: &Name) {
        let Some(leases) = &self.leases else { return };
        let key = LeaseKey::Name { dir, hash: self.state.slot(name).hash };
        // Only the rank of the directory grants leases on its names.
        let is_own = dir.rank() == self.config.rank;
        let may_give = is_own && !self.is_ceding(dir) && leases.are_for(cx.client);
        if may_give && leases.is_free(key, cx.barriers) {
            cx.read_set.keys.push(key);
        } else {
            cx.read_set.refused = true;
        }
    }

    /// The reply's entry for an inode, and for the name `(dir, hash)` if it was found by one.
    /// Counts a lookup: the client knows the inode until it forgets it. `cacheable`: the name may
    /// be cached for every caller.
    pub(crate) fn entry(
        &mut self,
        cx: &mut Cx<'_>,
        name: Option<(Ino, u64)>,
        cacheable: bool,
        mut attr: Attr,
    ) -> Entry {
        let mut location = Location::Table;
        let sole_holder = self.is_sole_holder(cx.client, attr.ino);
        if let Some(cached) = self.state.inodes.untracked(&attr.ino) {
            cached.lookups += 1;
            location = cached.reported_location();
        }
        if let Some((dir, hash)) = name
            && let Some(leases) = &mut self.leases
        {
            leases.note_present(dir, hash);
        }
        let name_leased = name.is_some_and(|(dir, hash)| self.note_read(cx, LeaseKey::Name { dir, hash }));
        let reclaim_token = self.reclaim_token(cx.client, attr.ino, TokenKind::LookedUp);
        let attr_leased = self.note_attr(cx, &mut attr);
        Entry { attr, cacheable, name_leased, attr_leased, sole_holder, location, reclaim_token }
    }

    /// Records that the reply exposes an inode or a name. Returns whether it may be cached.
    pub(crate) fn note_read(&self, cx: &mut Cx<'_>, key: LeaseKey) -> bool {
        let now = cx.uptime_ms;
        self.note_if(cx, key, |leases, key, own| leases.may_give(key, own, now))
    }

    /// Records that the reply exposes a file's bytes.
    pub(crate) fn note_bytes(&self, cx: &mut Cx<'_>, ino: Ino) {
        if !self.note_held(cx, ino, FileType::Regular) {
            cx.read_set.refused = true;
        }
    }

    /// Records a lease for a client that keeps using an inode's contents. Its kernel rereads its
    /// cache without a message, so the lease is granted also under contention. `kind`: its type.
    pub(crate) fn note_held(&self, cx: &mut Cx<'_>, ino: Ino, kind: FileType) -> bool {
        let mut keys = LeaseKey::of_attributes(ino, kind).into_iter();
        keys.all(|key| self.note_if(cx, key, Leases::is_free))
    }

    fn note_if(
        &self,
        cx: &mut Cx<'_>,
        key: LeaseKey,
        may_give: impl Fn(&Leases, LeaseKey, &[LeaseKey]) -> bool,
    ) -> bool {
        cx.read_set.last_change = cx.read_set.last_change.max(Some(self.uncommitted.last_change(key)));
        let Some(leases) = &self.leases else { return true };
        if cx.read_set.refused {
            return false;
        }
        let ino = key.as_inode();
        // A stream may have changed since it was queried.
        let is_fixed = ino.is_none_or(|ino| !cx.streams_have_changed && !self.is_written(cx.client, ino));
        let dependent = ino.and_then(|file| Some((file, self.state.inherits_from(file)?)));
        let is_kept = !matches!(key, LeaseKey::Name { dir, .. } if self.is_ceding(dir));
        let may_cache = is_fixed
            && is_kept
            && leases.are_for(cx.client)
            && may_give(leases, key, cx.barriers)
            && dependent.is_none_or(|(_, dir)| leases.is_free(LeaseKey::Inode(dir), cx.barriers));
        if may_cache {
            cx.read_set.keys.push(key);
            cx.read_set.dependents.extend(dependent);
        }
        may_cache
    }

    /// True if other clients may write to the file's stream, which the machine does not see.
    pub(crate) fn is_written(&self, client: ClientId, ino: Ino) -> bool {
        self.state.size_dirty.is_written(ino)
            && (self.sessions.in_grace() || self.is_open_by_others(client, ino))
    }

    pub(crate) fn is_open_by_others(&self, client: ClientId, ino: Ino) -> bool {
        self.state.inodes.get(&ino).is_some_and(|cached| cached.opens > self.opens_of(client, ino))
    }

    /// Prepares the grants of a reply that leaves later. They begin in [`Self::finish_grant`].
    pub(crate) fn prepare_grant(
        &mut self,
        task: &Task,
        mut read_set: ReadSet,
        result: &Result<Reply, Errno>,
        now: u64,
    ) -> PreparedGrant {
        if self.leases.is_none() {
            return PreparedGrant::default();
        }
        let client = task.from;
        read_set.touched.sort_unstable();
        read_set.touched.dedup();
        let touched = self.attributes(client, &read_set.touched, result, now);
        let keys = if read_set.refused { Keys::new() } else { read_set.keys };
        let mut epoch = Epoch::default();
        if let Some(leases) = &mut self.leases
            && !(keys.is_empty() && touched.attrs.is_empty())
        {
            epoch = leases.prepare_grant(client, &keys, now);
            read_set.dependents.into_iter().for_each(|(file, dir)| leases.inherits(file, dir));
            for attr in &touched.attrs {
                leases.prepare_grant(client, &leased_keys(attr), now);
            }
        }
        let dir = named_dir(&task.request);
        PreparedGrant(Some(Box::new(GrantTerms { keys, epoch, refused: read_set.refused, touched, dir })))
    }

    /// The attributes or numbers of changed inodes that accompany the reply.
    fn attributes(&self, client: ClientId, inos: &[Ino], result: &Result<Reply, Errno>, now: u64) -> Touched {
        let mut touched = Touched::default();
        let by_reply = match result {
            Ok(Reply::Attr(attr)) => Some(attr.ino),
            Ok(Reply::Entry(entry) | Reply::Created(entry, _)) => Some(entry.attr.ino),
            _ => None,
        };
        let leases = self.leases.as_ref().filter(|leases| leases.are_for(client));
        let may_give = |key| leases.is_some_and(|leases| leases.may_give(key, &[], now));
        for ino in inos.iter().copied().filter(|ino| Some(*ino) != by_reply) {
            match self.state.inodes.get(&ino).map(|cached| &cached.inode) {
                Some(inode) if !inode.is_streamed() && may_give(LeaseKey::Inode(ino)) => {
                    let mut attr = inode.attr(None);
                    attr.contents_leased = leased_keys(&attr).into_iter().all(may_give);
                    touched.attrs.push(attr);
                }
                _ => touched.others.push(ino),
            }
        }
        touched
    }

    /// Grants the leases as the reply leaves. Returns for how many milliseconds the client may
    /// cache the reply (0: not at all), and what the request has touched.
    pub(crate) fn finish_grant(
        &mut self,
        client: ClientId,
        grant: &PreparedGrant,
        now: u64,
    ) -> (u32, Touched) {
        let (Some(leases), PreparedGrant(Some(durable_bound))) = (&mut self.leases, grant) else {
            return Default::default();
        };
        let GrantTerms { keys, epoch, refused, touched, dir } = &**durable_bound;
        let grants = *refused || !keys.is_empty();
        let mut is_granted = !keys.is_empty() && leases.finish_grant(client, keys, *epoch, now);
        // A reply has one lease for all that it exposes.
        let may_grant = is_granted || !grants;
        let mut left = Touched { others: touched.others.clone(), ..Touched::default() };
        for attr in &touched.attrs {
            if may_grant && leases.finish_grant(client, &leased_keys(attr), *epoch, now) {
                is_granted = true;
                left.attrs.push(*attr);
            } else {
                left.others.push(attr.ino);
            }
        }
        // Never grant an exclusive lease on a reply that is already stale.
        let dir = dir.filter(|dir| may_grant && self.may_grant_exclusive(client, *dir));
        left.exclusive = dir.filter(|dir| self.grant_exclusive(client, *dir, now));
        left.spreads_dirs = left.exclusive.is_some_and(|dir| self.spreads_dirs(dir));
        is_granted |= left.exclusive.is_some();
        (self.config.lease_ms.filter(|_| is_granted).unwrap_or(0), left)
    }

    // ---- Before changes

    /// Revokes, before an event is applied, other clients' leases on what it changes. The operation
    /// waits until none is held.
    pub(crate) fn revoke(&mut self, cx: &mut Cx<'_>, event: &Event) -> Step<()> {
        if self.leases.is_none() {
            return Ok(());
        }
        let dependent = event.changes_dependents().and_then(|dir| self.revoke_dependents(cx, dir));
        self.revoke_all(cx, &|state, see| state.touched(event, see))?;
        if let Some(dependent) = dependent {
            return Err(Stop::Wait(Wait::Lease(dependent)));
        }
        let touched = &mut cx.read_set.touched;
        self.state.touched(event, &mut |key, _| touched.extend(key.changed_inode()))?;
        // The attributes are not revoked, but the client that set them sees the new ones.
        if let Event::SetAttr { ino, .. } = event {
            touched.push(*ino);
        }
        Ok(())
    }

    /// Revokes the leases on no-metafile files whose attributes derive from `dir`, before these
    /// change. Returns a key that is still held.
    pub(crate) fn revoke_dependents(&mut self, cx: &mut Cx<'_>, dir: Ino) -> Option<LeaseKey> {
        let leases = self.leases.as_mut()?;
        let held = leases.revoke_dependents(dir, cx.uptime_ms)?;
        leases.raise_barrier(cx.barriers, LeaseKey::Inode(dir));
        Some(held)
    }

    /// Revokes other clients' leases before a name is created.
    pub(crate) fn revoke_new_name(&mut self, cx: &mut Cx<'_>, dir: Ino, name: &Name) -> Step<()> {
        self.revoke_all(cx, &|state, see| {
            state.touched_name(dir, name, see);
            Ok(())
        })
    }

    /// Revokes all leases on absent names of a directory record except those with hashes in `rest`,
    /// before it cedes the others.
    pub(crate) fn revoke_absent(
        &mut self,
        cx: &mut Cx<'_>,
        record: Ino,
        rest: &RangeInclusive<u64>,
    ) -> Step<()> {
        let Some(leases) = &self.leases else { return Ok(()) };
        let absent = leases.absent_outside(record, rest);
        self.revoke_all(cx, &|_, see| {
            absent
                .iter()
                .for_each(|(hash, name)| see(LeaseKey::Name { dir: record, hash: *hash }, Some(name)));
            Ok(())
        })
    }

    /// Revokes other clients' leases on an inode before it changes.
    pub(crate) fn revoke_inode(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<()> {
        self.revoke_all(cx, &|_, see| {
            see(LeaseKey::Inode(ino), None);
            Ok(())
        })
    }

    /// Revokes other clients' leases on a file whose stream this operation changes in several
    /// steps, and blocks new ones until the operation ends.
    pub(crate) fn block_grants(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<()> {
        if let Some(leases) = &mut self.leases {
            leases.raise_barrier(cx.barriers, LeaseKey::Inode(ino));
        }
        self.revoke_inode(cx, ino)
    }

    /// Revokes all leases on `key`, also those of the caller's own client, and waits for none: the
    /// caller's kernel may hold a lock that the client's acknowledgement waits for.
    pub(crate) fn revoke_without_waiting(&mut self, cx: &Cx<'_>, key: LeaseKey, name: Option<&Name>) {
        if let Some(leases) = &mut self.leases {
            leases.revoke(INTERNAL_CLIENT, key, name, cx.uptime_ms);
        }
    }

    pub(crate) fn revoke_all(&mut self, cx: &mut Cx<'_>, touched: Sight<'_>) -> Step<()> {
        let Some(leases) = &mut self.leases else { return Ok(()) };
        let mut held = None;
        touched(&self.state, &mut |key, name| {
            if leases.revoke(cx.client, key, name, cx.uptime_ms) {
                held = Some(key);
            }
        })?;
        let Some(held) = held else { return Ok(()) };
        touched(&self.state, &mut |key, _| leases.raise_barrier(cx.barriers, key))?;
        Err(Stop::Wait(Wait::Lease(held)))
    }

    // ---- Waiting

    pub(crate) fn wait_for_lease(&mut self, key: LeaseKey, client: ClientId, task: u64) {
        if let Some(leases) = &mut self.leases {
            leases.wait(key, client, task);
        }
    }

    /// Handles a client's acknowledgement of a revocation.
    pub(crate) fn revoked(&mut self, now: Now, client: ClientId, number: RevocationId, out: &mut Outbox) {
        let Some(leases) = &mut self.leases else { return };
        let unannounced = leases.unannounced_file(client, number);
        let ready = leases.revoked(client, number);
        if let Some(ino) = unannounced {
            self.sessions.set_announces(client, ino, true);
        }
        ready.into_iter().for_each(|task| self.resume(now, task, out));
    }

    pub(crate) fn tick_leases(&mut self, now: Now, out: &mut Outbox) {
        let ready = self.leases.as_mut().map_or_else(Vec::new, |leases| leases.tick(now.uptime_ms));
        ready.into_iter().for_each(|task| self.resume(now, task, out));
    }

    /// Sets whether a client receives leases.
    pub(crate) fn want_leases(&mut self, client: ClientId, wanted: bool) {
        if let Some(leases) = &mut self.leases {
            leases.want(client, wanted);
        }
    }

    /// Drops all leases of a client whose session has ended.
    pub fn drop_leases(&mut self, now: Now, client: ClientId, out: &mut Outbox) {
        let ready =
            self.leases.as_mut().map_or_else(Vec::new, |leases| leases.drop_client(client, now.uptime_ms));
        ready.into_iter().for_each(|task| self.resume(now, task, out));
    }

    /// Releases the grant barriers of an operation that has ended, or that yields between two
    /// steps.
    pub(crate) fn lift_barriers(&mut self, task: &mut Task) {
        if let Some(leases) = &mut self.leases
            && !task.barriers.is_empty()
        {
            leases.lift_barriers(&mut task.barriers);
            self.streams_changed += 1;
        }
    }
}

type See<'a> = &'a mut dyn FnMut(LeaseKey, Option<&Name>);
type Sight<'a> = &'a dyn Fn(&State, See<'_>) -> Step<()>;

impl State {
    /// Visits what clients may have cached and an event changes.
    pub(crate) fn touched(&self, event: &Event, see: See<'_>) -> Step<()> {
        match event {
            Event::Create { dir, name, .. }
            | Event::CreateNoMetafile { dir, name, .. }
            | Event::Merge { dir, name, .. }
            | Event::Clone { dir, name, .. } => {
                self.touched_name(*dir, name, see)
            }
            Event::Link { ino, dir, name, .. } | Event::MergeLink { ino, dir, name, .. } => {
                self.touched_name(*dir, name, see);
                see(LeaseKey::Inode(*ino), None);
            }
            Event::Unlink { dir, name, .. } => self.touched_entry(*dir, name, see)?,
            Event::Rename { from_dir, from, to_dir, to, .. }
            | Event::Exchange { from_dir, from, to_dir, to, .. } => {
                self.touched_entry(*from_dir, from, see)?;
                self.touched_entry(*to_dir, to, see)?;
            }
            // Leases do not cover access times.
            Event::SetAttr { change, .. } if (Change { atime: None, ..*change }) == Change::default() => {}
            Event::SetAttr { ino, .. }
            | Event::Write { ino, .. }
            | Event::Resize { ino, .. }
            | Event::Zero { ino, .. }
            | Event::Allocate { ino, .. }
            | Event::Unstuff { ino }
            | Event::Stripe { ino, .. }
            | Event::SetAcl { ino, .. }
            | Event::SetDefaultAcl { ino, .. }
            | Event::SetXattr { ino, .. }
            | Event::SetPolicy { dir: ino, .. }
            | Event::Decouple { dir: ino, .. }
            | Event::SetQuota { dir: ino, .. } => see(LeaseKey::Inode(*ino), None),
            // No client knows a new unnamed file, and the other events change nothing that clients
            // can observe.
            Event::TmpFile { .. }
            | Event::MarkSizeDirty { .. }
            | Event::SetLayout { .. }
            | Event::Count { .. }
            | Event::Purge { .. }
            | Event::Locate { .. }
            | Event::Session { .. }
            | Event::Completed { .. }
            | Event::Moved { .. }
            | Event::Reserved { .. }
            | Event::Freed { .. }
            | Event::FreedAcknowledged { .. }
            | Event::Pulled { .. }
            | Event::Pool { .. }
            | Event::Given { .. }
            // `Meta::revoke_edits` has revoked the leases on what these events change.
            | Event::Began
            | Event::Prepared { .. }
            | Event::Decided { .. }
            | Event::Committed { .. }
            | Event::Forgotten { .. }
            // Clients do not cache usage.
            | Event::UsageSent { .. }
            | Event::UsageReceived { .. }
            | Event::Counted { .. } => {}
        }
        Ok(())
    }

    pub(crate) fn touched_name(&self, dir: Ino, name: &Name, see: See<'_>) {
        see(LeaseKey::Name { dir, hash: self.slot(name).hash }, Some(name));
        see(LeaseKey::Contents(dir), None);
    }

    /// Visits a name and the inode that it refers to, if the name exists.
    fn touched_entry(&self, dir: Ino, name: &Name, see: See<'_>) -> Step<()> {
        self.touched_name(dir, name, see);
        if let Some(ino) = self.target(dir, &self.slot(name))?.ino() {
            see(LeaseKey::Inode(ino), None);
        }
        Ok(())
    }
}

/// The keys of the leases that come with attributes in a reply.
fn leased_keys(attr: &Attr) -> SmallVec<[LeaseKey; 2]> {
    let mut keys = LeaseKey::of_attributes(attr.ino, attr.kind);
    if !attr.contents_leased {
        keys.truncate(1);
    }
    keys
}
