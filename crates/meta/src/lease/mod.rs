//! Leases: what clients may cache until it changes (docs/leases.md).
//!
//! A running operation records what its reply exposes; when the reply leaves, its client has leases
//! on that. Before an event is applied, the leases of other clients on what it changes are revoked,
//! and the operation waits until they have been acknowledged or have expired. Without leases
//! ([`Config::lease_ms`](crate::Config)) none of this costs anything.

mod blocked;
mod contention;
mod data;
mod exclusive;
mod heirs;
mod table;

use alloc::boxed::Box;
use alloc::vec::Vec;

use espalier_proto::{Attr, ClientId, Entry, Errno, Ino, Name, Reply, Touched};
use smallvec::SmallVec;

use crate::event::{Change, Event};
use crate::machine::{Cx, Meta};
use crate::outbox::{Now, Outbox};
use crate::record::Slot;
use crate::session::Proven;
use crate::state::{Home, State};
use crate::step::{Step, Stop, Wait};
use crate::task::Task;

use exclusive::named_dir;
pub(crate) use table::{Key, Leases};

/// Most replies expose one name and one inode.
type Keys = SmallVec<[Key; 2]>;

/// What a reply exposes to its client.
#[derive(Debug, Default)]
pub(crate) struct Told {
    keys: Keys,
    /// No-metafile files in the reply, with the directories that their attributes derive from.
    heirs: Vec<(Ino, Ino)>,
    /// The reply must not be cached.
    refused: bool,
    /// Number of the last event that changed any of it. 0: all of it is durable. `None`: unknown.
    pub last_change: Option<u64>,
    /// Inodes that the operation has changed.
    pub touched: Vec<Ino>,
}

impl Told {
    /// Marks the reply as not cacheable.
    pub fn refuse(&mut self) {
        self.refused = true;
    }
}

/// The leases of a reply that is held back until the journal is written.
#[derive(Debug, Default)]
pub(crate) struct Promise(Option<Box<Promised>>);

impl Promise {
    /// Withdraws the leases of a reply that will fail. What it was to report may be visible to
    /// others, so the changed inodes are still listed.
    pub(crate) fn broken(self) -> Self {
        let broken = self.0.map(|promised| {
            let Touched { attrs, mut others, .. } = promised.touched;
            others.extend(attrs.iter().map(|attr| attr.ino));
            let touched = Touched { others, ..Touched::default() };
            Box::new(Promised { keys: Keys::new(), refused: false, touched, dir: None, ..*promised })
        });
        Self(broken)
    }
}

#[derive(Debug)]
struct Promised {
    keys: Keys,
    turn: u64,
    refused: bool,
    /// Each attribute in it has a lease of its own.
    touched: Touched,
    /// The directory in which the request names an entry.
    dir: Option<Ino>,
}

impl Meta {
    // ---- What replies expose

    /// Records that the reply exposes an inode: its attributes or contents.
    pub(crate) fn tell_inode(&self, cx: &mut Cx<'_>, ino: Ino) {
        if !self.tell(cx, ino, None) {
            cx.told.refused = true;
        }
    }

    /// Records that the reply exposes that a name does not exist.
    pub(crate) fn tell_absent(&self, cx: &mut Cx<'_>, dir: Ino, slot: &Slot) {
        if !self.tell(cx, dir, Some(slot.hash)) {
            cx.told.refused = true;
        }
    }

    /// Records a lease on the name that a `rename` has made. The client's kernel caches that name
    /// whatever the reply says, so the lease is granted on contended names too. If none can be
    /// granted, the reply carries no lease, and the frontend has the kernel look the name up again.
    pub(crate) fn tell_moved(&self, cx: &mut Cx<'_>, dir: Ino, name: &Name) {
        let Some(leases) = &self.leases else { return };
        let key = Key::name(dir, self.state.slot(name).hash);
        // Only the rank of the directory grants leases on its names.
        let is_own = dir.rank() == self.config.rank;
        if is_own && leases.are_for(cx.client) && leases.is_free(key, cx.claims) {
            cx.told.keys.push(key);
        } else {
            cx.told.refused = true;
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
        attr: Attr,
    ) -> Entry {
        let mut home = Home::Table;
        let alone = self.is_alone_with(cx.client, attr.ino);
        if let Some(cached) = self.state.inodes.get_mut(&attr.ino) {
            cached.lookups += 1;
            home = cached.told_home();
        }
        let name_leased = name.is_some_and(|(dir, hash)| self.tell(cx, dir, Some(hash)));
        let proof = self.proof(cx.client, attr.ino, Proven::Told);
        Entry { attr, cacheable, name_leased, attr_leased: self.tell(cx, attr.ino, None), alone, home, proof }
    }

    /// Records that the reply exposes an inode, or a name with this hash. Returns whether it may be
    /// cached.
    pub(crate) fn tell(&self, cx: &mut Cx<'_>, ino: Ino, hash: Option<u64>) -> bool {
        let now = cx.uptime_ms;
        self.tell_if(cx, ino, hash, |leases, key, own| leases.may_give(key, own, now))
    }

    /// Records that the reply exposes a file's bytes.
    pub(crate) fn tell_bytes(&self, cx: &mut Cx<'_>, ino: Ino) {
        if !self.tell_held(cx, ino) {
            cx.told.refused = true;
        }
    }

    /// Records a lease for a client that keeps using an inode's contents. Its kernel rereads its
    /// cache without a message, so the lease is granted also under contention.
    pub(crate) fn tell_held(&self, cx: &mut Cx<'_>, ino: Ino) -> bool {
        self.tell_if(cx, ino, None, Leases::is_free)
    }

    fn tell_if(
        &self,
        cx: &mut Cx<'_>,
        ino: Ino,
        hash: Option<u64>,
        may_give: impl Fn(&Leases, Key, &[Key]) -> bool,
    ) -> bool {
        let key = hash.map_or(Key::inode(ino), |hash| Key::name(ino, hash));
        cx.told.last_change = cx.told.last_change.max(Some(self.uncommitted.last_change(key)));
        let Some(leases) = &self.leases else { return true };
        if cx.told.refused {
            return false;
        }
        // A stream may have changed since it was queried.
        let is_fixed = hash.is_some() || !(cx.streams_have_changed || self.is_written(cx.client, ino));
        let said_by = self.state.dir_of_bare(ino).filter(|_| hash.is_none());
        let is_said = |dir| leases.is_free(Key::inode(dir), cx.claims);
        let may_cache = is_fixed
            && leases.are_for(cx.client)
            && may_give(leases, key, cx.claims)
            && said_by.is_none_or(is_said);
        if may_cache {
            cx.told.keys.push(key);
            cx.told.heirs.extend(said_by.map(|dir| (ino, dir)));
        }
        may_cache
    }

    /// True if other clients may write to the file's stream, which the machine does not see.
    pub(crate) fn is_written(&self, client: ClientId, ino: Ino) -> bool {
        self.state.watched.get(&ino).is_some_and(|watched| watched.written)
            && (self.sessions.in_grace() || self.is_open_elsewhere(client, ino))
    }

    pub(crate) fn is_open_elsewhere(&self, client: ClientId, ino: Ino) -> bool {
        self.state.inodes.get(&ino).is_some_and(|cached| cached.opens > self.opens_of(client, ino))
    }

    /// Prepares the grants of a reply that leaves later. They begin in [`Self::keep`].
    pub(crate) fn promise(
        &mut self,
        task: &Task,
        mut told: Told,
        result: &Result<Reply, Errno>,
        now: u64,
    ) -> Promise {
        if self.leases.is_none() {
            return Promise::default();
        }
        let client = task.from;
        told.touched.sort_unstable();
        told.touched.dedup();
        let touched = self.attributes(client, &told.touched, result, now);
        let keys = if told.refused { Keys::new() } else { told.keys };
        let mut turn = 0;
        if let Some(leases) = &mut self.leases
            && !(keys.is_empty() && touched.attrs.is_empty())
        {
            turn = leases.promise(client, &keys, now);
            told.heirs.into_iter().for_each(|(file, dir)| leases.inherits(file, dir));
            for attr in &touched.attrs {
                leases.promise(client, &[Key::inode(attr.ino)], now);
            }
        }
        let dir = named_dir(&task.request);
        Promise(Some(Box::new(Promised { keys, turn, refused: told.refused, touched, dir })))
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
        let may_give = |ino| leases.is_some_and(|leases| leases.may_give(Key::inode(ino), &[], now));
        for ino in inos.iter().copied().filter(|ino| Some(*ino) != by_reply) {
            match self.state.inodes.get(&ino).map(|cached| &cached.inode) {
                Some(inode) if !inode.is_streamed() && may_give(ino) => touched.attrs.push(inode.attr(None)),
                _ => touched.others.push(ino),
            }
        }
        touched
    }

    /// Grants the leases as the reply leaves. Returns for how many milliseconds the client may
    /// cache the reply (0: not at all), and what the request has touched.
    pub(crate) fn keep(&mut self, client: ClientId, promise: &Promise, now: u64) -> (u32, Touched) {
        let (Some(leases), Promise(Some(promised))) = (&mut self.leases, promise) else {
            return Default::default();
        };
        let Promised { keys, turn, refused, touched, dir } = &**promised;
        let tells = *refused || !keys.is_empty();
        let mut is_kept = !keys.is_empty() && leases.keep(client, keys, *turn, now);
        // A reply has one lease for all that it exposes.
        let may_tell = is_kept || !tells;
        let mut left = Touched { others: touched.others.clone(), ..Touched::default() };
        for attr in &touched.attrs {
            if may_tell && leases.keep(client, &[Key::inode(attr.ino)], *turn, now) {
                is_kept = true;
                left.attrs.push(*attr);
            } else {
                left.others.push(attr.ino);
            }
        }
        // Never grant an exclusive lease on a reply that is already stale.
        let dir = dir.filter(|dir| may_tell && self.may_be_alone_in(client, *dir));
        left.exclusive = dir.filter(|dir| self.give_exclusive(client, *dir, now));
        is_kept |= left.exclusive.is_some();
        (self.config.lease_ms.filter(|_| is_kept).unwrap_or(0), left)
    }

    // ---- Before changes

    /// Revokes, before an event is applied, other clients' leases on what it changes. The operation
    /// waits until none is held.
    pub(crate) fn revoke(&mut self, cx: &mut Cx<'_>, event: &Event) -> Step<()> {
        if self.leases.is_none() {
            return Ok(());
        }
        let heir = event.bequeaths().and_then(|dir| self.revoke_heirs(cx, dir));
        self.revoke_all(cx, &|state, see| state.touched(event, see))?;
        if let Some(heir) = heir {
            return Err(Stop::Wait(Wait::Lease(heir)));
        }
        let touched = &mut cx.told.touched;
        self.state.touched(event, &mut |key, _| touched.extend(key.as_inode()))?;
        // The attributes are not revoked, but the client that set them sees the new ones.
        if let Event::SetAttr { ino, .. } = event {
            touched.push(*ino);
        }
        Ok(())
    }

    /// Revokes the leases on no-metafile files whose attributes derive from `dir`, before these
    /// change. Returns a key that is still held.
    fn revoke_heirs(&mut self, cx: &mut Cx<'_>, dir: Ino) -> Option<Key> {
        let leases = self.leases.as_mut()?;
        let held = leases.revoke_heirs(dir, cx.uptime_ms)?;
        leases.claim(cx.claims, Key::inode(dir));
        Some(held)
    }

    /// Revokes other clients' leases before a name is created.
    pub(crate) fn revoke_new_name(&mut self, cx: &mut Cx<'_>, dir: Ino, name: &Name) -> Step<()> {
        self.revoke_all(cx, &|state, see| {
            state.touched_name(dir, name, see);
            Ok(())
        })
    }

    /// Revokes other clients' leases on an inode before it changes.
    pub(crate) fn revoke_inode(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<()> {
        self.revoke_all(cx, &|_, see| {
            see(Key::inode(ino), None);
            Ok(())
        })
    }

    /// Revokes other clients' leases on a file whose stream this operation changes in several
    /// steps, and blocks new ones until the operation ends.
    pub(crate) fn claim_inode(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<()> {
        if let Some(leases) = &mut self.leases {
            leases.claim(cx.claims, Key::inode(ino));
        }
        self.revoke_inode(cx, ino)
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
        touched(&self.state, &mut |key, _| leases.claim(cx.claims, key))?;
        Err(Stop::Wait(Wait::Lease(held)))
    }

    // ---- Waiting

    pub(crate) fn wait_for_lease(&mut self, key: Key, client: ClientId, task: u64) {
        if let Some(leases) = &mut self.leases {
            leases.wait(key, client, task);
        }
    }

    /// Handles a client's acknowledgement of a revocation.
    pub(crate) fn revoked(&mut self, now: Now, client: ClientId, number: u64, out: &mut Outbox) {
        let Some(leases) = &mut self.leases else { return };
        let quiet = leases.quiet_file(client, number);
        let ready = leases.revoked(client, number);
        if let Some(ino) = quiet {
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
    pub(crate) fn unclaim(&mut self, task: &mut Task) {
        if let Some(leases) = &mut self.leases
            && !task.claims.is_empty()
        {
            leases.unclaim(&mut task.claims);
            self.streams_changed += 1;
        }
    }
}

type See<'a> = &'a mut dyn FnMut(Key, Option<&Name>);
type Sight<'a> = &'a dyn Fn(&State, See<'_>) -> Step<()>;

impl State {
    /// Visits what clients may have cached and an event changes.
    pub(crate) fn touched(&self, event: &Event, see: See<'_>) -> Step<()> {
        match event {
            Event::Create { dir, name, .. }
            | Event::CreateBare { dir, name, .. }
            | Event::Clone { dir, name, .. } => {
                self.touched_name(*dir, name, see)
            }
            Event::Link { ino, dir, name, .. } => {
                self.touched_name(*dir, name, see);
                see(Key::inode(*ino), None);
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
            | Event::SetQuota { dir: ino, .. } => see(Key::inode(*ino), None),
            // No client knows a new unnamed file, and the other events change nothing that clients
            // can observe.
            Event::TmpFile { .. }
            | Event::Watch { .. }
            | Event::SetLayout { .. }
            | Event::Count { .. }
            | Event::Purge { .. }
            | Event::Locate { .. }
            | Event::Session { .. }
            | Event::Completed { .. }
            | Event::Moved { .. }
            | Event::Reserved { .. }
            | Event::Pool { .. }
            | Event::Given { .. }
            // `Meta::revoke_edits` has revoked the leases on what these events change.
            | Event::Began
            | Event::Prepared { .. }
            | Event::Decided { .. }
            | Event::Committed { .. }
            | Event::Forgotten { .. }
            // Clients do not cache usage.
            | Event::Told { .. }
            | Event::Heard { .. }
            | Event::Counted { .. } => {}
        }
        Ok(())
    }

    pub(crate) fn touched_name(&self, dir: Ino, name: &Name, see: See<'_>) {
        see(Key::name(dir, self.slot(name).hash), Some(name));
        see(Key::inode(dir), None);
    }

    /// Visits a name and the inode that it refers to, if the name exists.
    fn touched_entry(&self, dir: Ino, name: &Name, see: See<'_>) -> Step<()> {
        self.touched_name(dir, name, see);
        if let Some(ino) = self.target(dir, &self.slot(name))?.ino() {
            see(Key::inode(ino), None);
        }
        Ok(())
    }
}
