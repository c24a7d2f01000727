//! Files whose bytes lie on data servers.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::num::NonZeroU16;

use espalier_policy::{DistName, DistParams, Params, Policy, Setting};
use espalier_proto::{
    Caller, ClientId, Distribution, Errno, Ino, Layout, LayoutError, Reply, Request, RequestId, ServerId,
    StreamIo, Strip,
};

use crate::event::Event;
use crate::io::Purpose;
use crate::journal::Held;
use crate::machine::{Cx, Meta};
use crate::outbox::{Io, IoId, Now, Outbox};
use crate::pool::in_turn;
use crate::record::{Body, Inode};
use crate::state::State;
use crate::step::{Step, StreamCall};
use crate::task::Task;
use crate::trash::ITSELF;

/// Which of a call's files lie on data servers, and how.
pub type Layouts = Vec<(Ino, Arc<Layout>)>;

/// How files are distributed that outgrow what is kept with their inodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Striping {
    distribution: Distribution,
    /// All data servers.
    servers: Arc<[ServerId]>,
    /// Those that new files come to lie on.
    open: Arc<[ServerId]>,
    /// A file gets so many of them.
    width: usize,
    /// Clients can ask them themselves.
    delegated: bool,
}

impl Striping {
    /// # Errors
    /// No file could be distributed so.
    pub fn new(
        distribution: Distribution,
        servers: Vec<ServerId>,
        width: usize,
    ) -> Result<Self, LayoutError> {
        Layout::new(distribution.clone(), servers.clone())?;
        let width = width.clamp(1, servers.len());
        let servers: Arc<[ServerId]> = servers.into();
        Ok(Self { distribution, open: Arc::clone(&servers), servers, width, delegated: false })
    }

    /// Clients can ask data servers themselves, for they are given capabilities.
    #[must_use]
    pub fn delegated(self) -> Self {
        Self { delegated: true, ..self }
    }

    pub(crate) fn is_delegated(&self) -> bool {
        self.delegated
    }

    /// No new files come to lie on these servers.
    ///
    /// # Errors
    /// None would be left.
    pub fn drain(mut self, drained: &[ServerId]) -> Result<Self, LayoutError> {
        self.open = self.open.iter().copied().filter(|server| !drained.contains(server)).collect();
        if self.open.is_empty() { Err(LayoutError) } else { Ok(self) }
    }

    /// What is done where nobody says anything else.
    fn policy(&self) -> Policy {
        let width = self.width.try_into().ok().and_then(NonZeroU16::new);
        let mut settings: Vec<_> = width.map(Setting::NumDfiles).into_iter().collect();
        if let Distribution::SimpleStripe { strip } = self.distribution {
            settings.push(Setting::DistName(DistName::SimpleStripe));
            settings.push(Setting::DistParams(Params::StripSize(strip).into()));
        }
        Policy::try_from(settings).unwrap_or_default()
    }

    /// The layout of a new file, with as many servers as there are at most.
    fn layout(&self, ino: Ino, policy: &Policy) -> Result<Arc<Layout>, Errno> {
        let width = policy.num_dfiles().map_or(self.width, usize::from);
        let (distribution, servers) =
            match (policy.distribution(), policy.dist_params().map(DistParams::params)) {
                (Some(DistName::Basic), _) => (Distribution::Basic, self.in_turn(ino, 1)),
                (_, Some(Params::Strips(strips))) => self.varstrip(strips),
                (_, Some(Params::StripSize(strip))) => {
                    (Distribution::SimpleStripe { strip: *strip }, self.in_turn(ino, width))
                }
                // No shares are given: they are equal.
                (Some(DistName::Varstrip), None) => {
                    (self.distribution.clone(), self.in_turn(ino, usize::MAX))
                }
                (_, None) => (self.distribution.clone(), self.in_turn(ino, width)),
            };
        Layout::new(distribution, servers).map(Arc::new).map_err(|_| Errno::EIO)
    }

    fn in_turn(&self, ino: Ino, width: usize) -> Vec<ServerId> {
        in_turn(&self.open, width, ino)
    }

    /// The servers that new files come to lie on, and on how many of them each is, if that is so many in turn.
    pub(crate) fn spread(&self, policy: &Policy) -> (Arc<[ServerId]>, u16) {
        let width = match policy.distribution() {
            _ if policy.no_metafile() == Some(true) => 1,
            Some(DistName::Basic) => 1,
            _ => policy.num_dfiles().map_or(self.width, usize::from).min(self.open.len()),
        };
        // More servers no layout has.
        (Arc::clone(&self.open), width as u16)
    }

    /// Strips for more servers than there are go round.
    fn varstrip(&self, strips: &[espalier_policy::Strip]) -> (Distribution, Vec<ServerId>) {
        let mut servers = Vec::new();
        let place = |strip: &espalier_policy::Strip| {
            let named = self.servers[usize::from(strip.server) % self.servers.len()];
            let other = self.open[usize::from(strip.server) % self.open.len()];
            let server = if self.open.contains(&named) { named } else { other };
            let place = servers.iter().position(|there| *there == server).unwrap_or_else(|| {
                servers.push(server);
                servers.len() - 1
            });
            Strip { place: place as u16, length: strip.size }
        };
        let strips = strips.iter().map(place).collect();
        (Distribution::Varstrip { strips }, servers)
    }

    /// A layout that names servers, whatever they have of the file.
    pub(crate) fn of(&self, servers: Vec<ServerId>) -> Result<Arc<Layout>, Errno> {
        let distribution = Distribution::SimpleStripe { strip: 1 };
        Layout::new(distribution, servers).map(Arc::new).map_err(|_| Errno::EIO)
    }
}

/// Where the bytes of a file are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// With the inode: there is no stream.
    Inode,
    Store,
    Servers(Arc<Layout>),
    /// [`Input::Place`](crate::Input::Place) finds out.
    Unknown,
}

impl State {
    /// No server holds the file's stream for new any more.
    pub(crate) fn note_settled(&mut self, ino: Ino) {
        self.unsettled.remove(&ino);
        if let Some(striped) = &mut self.striped {
            striped.remove(&ino);
        }
    }
}

impl Meta {
    /// Whether there are, or have been, files on data servers.
    pub fn is_striped(&self) -> bool {
        self.state.striped.is_some()
    }

    /// Where the bytes of a file are to lie that is about to be unstuffed; `None`: in the store.
    pub(crate) fn new_layout(&self, ino: Ino) -> Step<Option<Arc<Layout>>> {
        let Some(striping) = &self.config.striping else { return Ok(None) };
        let Some(cached) = self.state.inodes.get(&ino) else {
            // It has gone meanwhile: what is to be removed of it may be anywhere.
            return Ok(Some(striping.of(striping.servers.to_vec())?));
        };
        let policy = self.effective_policy(&cached.inode);
        Ok(Some(striping.layout(ino, &policy)?))
    }

    /// What an inode's policy says, or else the server.
    pub(crate) fn effective_policy(&self, inode: &Inode) -> Policy {
        let mut policy = inode.policy().or(&self.config.policy);
        if let Some(striping) = &self.config.striping {
            policy = policy.or(&striping.policy());
        }
        policy.explicit()
    }

    /// What is read and written of a file is announced, however little it is.
    pub(crate) fn announces(&self, file: &Inode) -> bool {
        file.policy().eager().or(self.config.policy.eager()) == Some(false)
    }

    /// The number of a new regular file, and what it is. Of one that is on data servers from its beginning these need not know: a datafile
    /// that was never written is empty. They learn of it when the file is first written to, for which [`Self::watch`] waits until it is
    /// durable that there is such a file.
    pub(crate) fn new_file(&self, dir: &Inode) -> Step<(Ino, Body)> {
        let Some(striping) = self.config.striping.as_ref().filter(|_| !self.is_stuffed_in(dir)) else {
            return Ok((self.new_ino()?, Body::STUFFED));
        };
        let policy = self.effective_policy(dir);
        let pooled = if policy.precreation() == Some(true) {
            self.pooled_ino(|ino| striping.layout(ino, &policy).ok())
        } else {
            None
        };
        let ino = pooled.map_or_else(|| self.new_ino(), Ok)?;
        Ok((ino, Body::Striped { counted: 0, layout: striping.layout(ino, &policy)? }))
    }

    /// Whether files that are made in a directory are small ones at first, with a metafile.
    pub(crate) fn is_stuffed_in(&self, dir: &Inode) -> bool {
        let wanted = dir.policy().stuffing().or(self.config.policy.stuffing()).unwrap_or(true);
        self.config.striping.is_none() || (wanted && !self.wants_bare(dir))
    }

    /// The I/O of a call, with what it must be told of layouts.
    pub(crate) fn stream_io(&self, call: StreamCall) -> Io {
        if self.config.striping.is_none() && self.state.striped.is_none() {
            return Io::Stream(call, Layouts::new());
        }
        let layout = |ino: Ino| self.layout_for(&call, ino).map(|layout| (ino, layout));
        let layouts = match &call {
            StreamCall::Stat(inos) | StreamCall::Glance(inos) => {
                inos.iter().copied().filter_map(layout).collect()
            }
            StreamCall::Measure(files) => files.iter().filter_map(|(ino, _)| layout(*ino)).collect(),
            // The pool has numbers that no file has.
            StreamCall::Precreate | StreamCall::Discard | StreamCall::SyncStore => Layouts::new(),
            StreamCall::SyncServers => layout(Ino::ROOT).into_iter().collect(),
            StreamCall::Fill { ino, .. }
            | StreamCall::Write { ino, .. }
            | StreamCall::Settle { ino, .. }
            | StreamCall::Truncate { ino, .. }
            | StreamCall::SetMtime { ino, .. }
            | StreamCall::Sync { ino }
            | StreamCall::Remove { ino } => layout(*ino).into_iter().collect(),
        };
        Io::Stream(call, layouts)
    }

    fn layout_for(&self, call: &StreamCall, ino: Ino) -> Option<Arc<Layout>> {
        let inode = self.state.inodes.get(&ino).map(|cached| &cached.inode);
        match call {
            StreamCall::Fill { .. } => self.new_layout(ino).ok().flatten(),
            StreamCall::SyncServers => {
                let striping = self.config.striping.as_ref()?;
                striping.of(striping.servers.to_vec()).ok()
            }
            // It may not be in memory any more, and was settled perhaps: then nothing is to be done.
            StreamCall::Settle { .. } if inode.is_none() && self.is_unsettled(ino) => {
                let striping = self.config.striping.as_ref()?;
                striping.of(striping.servers.to_vec()).ok()
            }
            _ => inode?.layout().cloned(),
        }
    }

    pub(crate) fn is_unsettled(&self, ino: Ino) -> bool {
        self.state.striped.as_ref().is_some_and(|unsettled| unsettled.contains(&ino))
    }

    /// Where the bytes of a file are that a client does something with.
    pub fn place_of(&self, io: &StreamIo) -> Place {
        let of = |ino: Ino| match self.state.inodes.get(&ino).map(|cached| &cached.inode.body) {
            Some(Body::Streamed { .. }) => Place::Store,
            Some(Body::Striped { layout, .. }) => Place::Servers(Arc::clone(layout)),
            Some(_) => Place::Inode,
            None => Place::Unknown,
        };
        match *io {
            StreamIo::Read { ino, .. }
            | StreamIo::Write { ino, .. }
            | StreamIo::WriteList { ino, .. }
            | StreamIo::Allocate { ino, .. }
            | StreamIo::Seek { ino, .. } => of(ino),
            StreamIo::Copy { from, to, .. } => match (of(from), of(to)) {
                (Place::Store, other) | (other, _) => other,
            },
        }
    }

    /// After a recovery: what data servers may still hold for new, and files that may have other sizes than are counted.
    pub(crate) fn recover_striped(&mut self) {
        let unsettled = self.state.striped.iter().flat_map(BTreeSet::iter).copied();
        if self.config.striping.is_some() {
            unsettled.for_each(|ino| self.journal.hold(self.state.sequence, Held::SettleStream(ino)));
        }
        for (ino, watched) in &mut self.state.watched {
            let inode = self.state.inodes.get(ino).map(|cached| &cached.inode);
            watched.unmeasured = inode.is_some_and(|inode| inode.layout().is_some());
        }
    }

    /// Counts files that were being written when an earlier machine ended, or whose streams could not be looked at since.
    pub(crate) fn measure_unmeasured(&mut self, now: Now, out: &mut Outbox) {
        if self.writable().is_err() {
            return;
        }
        let (ticks, watched) = (self.ticks, self.state.watched.iter_mut());
        let unmeasured: Vec<Ino> = watched
            .filter(|(_, watched)| watched.unmeasured)
            .map(|(ino, watched)| {
                // It is watched until that is done.
                (watched.unmeasured, watched.used) = (false, ticks);
                *ino
            })
            .collect();
        for ino in unmeasured {
            let task = Task::new(ITSELF, RequestId(0), Caller::SERVER, Request::Recount { ino });
            self.run(now, task, None, out);
        }
    }

    /// What a request waits for that is done with streams.
    pub fn stream_io_of(&self, client: ClientId, request: RequestId) -> Option<IoId> {
        let asked = |number: &u64| {
            self.tasks.get(number).is_some_and(|task| (task.from, task.id) == (client, request))
        };
        let waits = |purpose: &Purpose| matches!(purpose, Purpose::Stream(number, _) if asked(number));
        self.io.iter().find(|(_, purpose)| waits(purpose)).map(|(id, _)| *id)
    }

    pub(crate) fn recount_file(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<Reply> {
        let size = self.measure(cx, ino)?;
        let cached = self.state.cached(ino)?;
        // Who has it open again may have been granted more.
        let (is_open, counted) = (cached.opens > 0, cached.inode.counted_bytes());
        self.count_size(cx, ino, if is_open { size.max(counted) } else { size })?;
        if !is_open && self.state.watched.get(&ino).is_some_and(|watched| watched.synced) {
            self.state.watched.remove(&ino);
        }
        Ok(Reply::Done)
    }

    /// The event by which a file's bytes are where [`StreamCall::Fill`] has put them.
    pub(crate) fn unstuffing(&self, ino: Ino) -> Step<Event> {
        Ok(self.new_layout(ino)?.map_or(Event::Unstuff { ino }, |layout| Event::Stripe { ino, layout }))
    }
}
