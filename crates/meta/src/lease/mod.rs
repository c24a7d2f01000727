//! Leases: what clients may cache of what they are told, until somebody changes it. docs/leases.md says what they cover.
//!
//! While an operation runs it notes what its reply tells; when the reply leaves, its client has leases on that. Before an event
//! is applied, those that others have on what it changes are revoked, and the operation waits until they have been given up or
//! their term is over. Without leases ([`Config::lease_ms`](crate::Config)) none of this costs anything.

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

/// Most replies tell of a name and an inode.
type Keys = SmallVec<[Key; 2]>;

/// What a reply tells.
#[derive(Debug, Default)]
pub(crate) struct Told {
    keys: Keys,
    /// Files of which it tells what their directories say, and these.
    heirs: Vec<(Ino, Ino)>,
    /// Some of it must not be cached.
    refused: bool,
    /// The last event that has changed any of that; 0: it is durable. `None`: it is not known what is told.
    pub last_change: Option<u64>,
    /// What the operation has changed.
    pub touched: Vec<Ino>,
}

impl Told {
    /// Nothing of it must be cached.
    pub fn refuse(&mut self) {
        self.refused = true;
    }
}

/// A reply that is held until the journal is durable, and what it tells.
#[derive(Debug, Default)]
pub(crate) struct Promise(Option<Box<Promised>>);

impl Promise {
    /// The reply will tell nothing, but what it was to tell of may be seen by others.
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
    /// With attributes of which each has a lease of its own.
    touched: Touched,
    /// In which the request has named something.
    dir: Option<Ino>,
}

impl Meta {
    // ---- Telling

    /// The reply tells of an inode: its attributes, or what it holds.
    pub(crate) fn tell_inode(&self, cx: &mut Cx<'_>, ino: Ino) {
        if !self.tell(cx, ino, None) {
            cx.told.refused = true;
        }
    }

    /// The reply tells that a name is not there.
    pub(crate) fn tell_absent(&self, cx: &mut Cx<'_>, dir: Ino, slot: &Slot) {
        if !self.tell(cx, dir, Some(slot.hash)) {
            cx.told.refused = true;
        }
    }

    /// A client's kernel takes a name that it has moved for cached, whatever the reply says: so there must be a lease on it, also
    /// where names are fought over. If there is none, the reply has none, and the door sees to it.
    pub(crate) fn tell_moved(&self, cx: &mut Cx<'_>, dir: Ino, name: &Name) {
        let Some(leases) = &self.leases else { return };
        let key = Key::name(dir, self.state.slot(name).hash);
        // Only the name's rank gives one.
        let is_own = dir.rank() == self.config.rank;
        if is_own && leases.are_for(cx.client) && leases.is_free(key, cx.claims) {
            cx.told.keys.push(key);
        } else {
            cx.told.refused = true;
        }
    }

    /// What is told of an inode, found by a name with this hash if by any. The client then knows it, until it forgets.
    /// `cacheable`: the name may be cached for every caller.
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

    /// The reply tells of an inode, or of a name with this hash: whether it may be cached.
    pub(crate) fn tell(&self, cx: &mut Cx<'_>, ino: Ino, hash: Option<u64>) -> bool {
        let now = cx.uptime_ms;
        self.tell_if(cx, ino, hash, |leases, key, own| leases.may_give(key, own, now))
    }

    /// The reply tells what a file holds.
    pub(crate) fn tell_bytes(&self, cx: &mut Cx<'_>, ino: Ino) {
        if !self.tell_held(cx, ino) {
            cx.told.refused = true;
        }
    }

    /// A client goes on using what an inode holds. Its kernel keeps that, and reads it again without asking: there is a lease on it also where
    /// it is fought over.
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
        // What was asked of a stream some time ago may not be so any more.
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

    /// A file's stream may be written to by others, of which the machine hears nothing.
    pub(crate) fn is_written(&self, client: ClientId, ino: Ino) -> bool {
        self.state.watched.get(&ino).is_some_and(|watched| watched.written)
            && (self.sessions.in_grace() || self.is_open_elsewhere(client, ino))
    }

    pub(crate) fn is_open_elsewhere(&self, client: ClientId, ino: Ino) -> bool {
        self.state.inodes.get(&ino).is_some_and(|cached| cached.opens > self.opens_of(client, ino))
    }

    /// The reply is to leave later.
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

    /// What is told of inodes that have been changed, besides the reply.
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

    /// The reply leaves. Returns for how many milliseconds its client may cache what it tells, and what it has touched.
    pub(crate) fn keep(&mut self, client: ClientId, promise: &Promise, now: u64) -> (u32, Touched) {
        let (Some(leases), Promise(Some(promised))) = (&mut self.leases, promise) else {
            return Default::default();
        };
        let Promised { keys, turn, refused, touched, dir } = &**promised;
        let tells = *refused || !keys.is_empty();
        let mut is_kept = !keys.is_empty() && leases.keep(client, keys, *turn, now);
        // One lease is for all that a reply tells.
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
        // Nor may what is out of date by now seem leased for that.
        let dir = dir.filter(|dir| may_tell && self.may_be_alone_in(client, *dir));
        left.exclusive = dir.filter(|dir| self.give_exclusive(client, *dir, now));
        is_kept |= left.exclusive.is_some();
        (self.config.lease_ms.filter(|_| is_kept).unwrap_or(0), left)
    }

    // ---- Changing

    /// Before an event: nobody but the client may have cached what it makes untrue.
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
        // That is not revoked, but whoever has asked for it sees it.
        if let Event::SetAttr { ino, .. } = event {
            touched.push(*ino);
        }
        Ok(())
    }

    /// Before a directory says something else of its files.
    fn revoke_heirs(&mut self, cx: &mut Cx<'_>, dir: Ino) -> Option<Key> {
        let leases = self.leases.as_mut()?;
        let held = leases.revoke_heirs(dir, cx.uptime_ms)?;
        leases.claim(cx.claims, Key::inode(dir));
        Some(held)
    }

    /// Before a name is made.
    pub(crate) fn revoke_new_name(&mut self, cx: &mut Cx<'_>, dir: Ino, name: &Name) -> Step<()> {
        self.revoke_all(cx, &|state, see| {
            state.touched_name(dir, name, see);
            Ok(())
        })
    }

    /// Before an inode is changed.
    pub(crate) fn revoke_inode(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<()> {
        self.revoke_all(cx, &|_, see| {
            see(Key::inode(ino), None);
            Ok(())
        })
    }

    /// Before a file's stream is changed by this operation, which takes more than one step: nobody is to cache anything of the
    /// file until it is done.
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

    /// A client has answered a revocation.
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

    /// Whether a client is to be given leases from now on.
    pub(crate) fn want_leases(&mut self, client: ClientId, wanted: bool) {
        if let Some(leases) = &mut self.leases {
            leases.want(client, wanted);
        }
    }

    /// A client's session has ended: it has no leases any more.
    pub fn drop_leases(&mut self, now: Now, client: ClientId, out: &mut Outbox) {
        let ready =
            self.leases.as_mut().map_or_else(Vec::new, |leases| leases.drop_client(client, now.uptime_ms));
        ready.into_iter().for_each(|task| self.resume(now, task, out));
    }

    /// An operation is over, or rests between two steps.
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
    /// What clients may have cached and an event makes untrue.
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
            // Access times are not covered.
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
            // Nobody knows the first, and nobody can see what the others change.
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
            // What these change has been revoked before (`Meta::revoke_edits`).
            | Event::Began
            | Event::Prepared { .. }
            | Event::Decided { .. }
            | Event::Committed { .. }
            | Event::Forgotten { .. }
            // Clients do not cache it.
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

    /// A name and what it stands for, if it is there.
    fn touched_entry(&self, dir: Ino, name: &Name, see: See<'_>) -> Step<()> {
        self.touched_name(dir, name, see);
        if let Some(ino) = self.target(dir, &self.slot(name))?.ino() {
            see(Key::inode(ino), None);
        }
        Ok(())
    }
}
