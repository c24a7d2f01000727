//! Striped files: their bytes are on data servers (docs/striping.md).

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
use crate::journal::HeldOutput;
use crate::machine::{Cx, Final, Meta};
use crate::outbox::{Io, IoId, Now, Outbox};
use crate::pool::round_robin;
use crate::record::{Body, Inode};
use crate::step::{Step, StreamCall};
use crate::task::Task;
use crate::trash::INTERNAL_CLIENT;

/// The layouts of a call's striped files.
pub type Layouts = Vec<(Ino, Arc<Layout>)>;

/// The distribution of files that are not stuffed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Striping {
    distribution: Distribution,
    /// All data servers.
    servers: Arc<[ServerId]>,
    /// The servers that new files are placed on.
    open: Arc<[ServerId]>,
    /// Number of servers per file.
    width: usize,
    /// Clients ask data servers directly.
    delegated: bool,
}

impl Striping {
    /// # Errors
    /// No file could have this distribution.
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

    /// Lets clients ask data servers directly, with capabilities.
    #[must_use]
    pub fn delegated(self) -> Self {
        Self { delegated: true, ..self }
    }

    /// All data servers, those that get no new files included.
    pub(crate) fn servers(&self) -> &[ServerId] {
        &self.servers
    }

    pub(crate) fn is_delegated(&self) -> bool {
        self.delegated
    }

    /// Excludes servers from the placement of new files.
    ///
    /// # Errors
    /// No server would be left.
    pub fn drain(mut self, drained: &[ServerId]) -> Result<Self, LayoutError> {
        self.open = self.open.iter().copied().filter(|server| !drained.contains(server)).collect();
        if self.open.is_empty() { Err(LayoutError) } else { Ok(self) }
    }

    /// The policy implied by this configuration.
    fn policy(&self) -> Policy {
        let width = self.width.try_into().ok().and_then(NonZeroU16::new);
        let mut settings: Vec<_> = width.map(Setting::NumDfiles).into_iter().collect();
        if let Distribution::SimpleStripe { strip } = self.distribution {
            settings.push(Setting::DistName(DistName::SimpleStripe));
            settings.push(Setting::DistParams(Params::StripSize(strip).into()));
        }
        Policy::try_from(settings).unwrap_or_default()
    }

    /// The layout of a new file, with at most as many servers as there are.
    fn layout(&self, ino: Ino, policy: &Policy) -> Result<Arc<Layout>, Errno> {
        let width = policy.num_dfiles().map_or(self.width, |width| width.get().into());
        let params = policy.dist_params();
        let (distribution, servers) = match (policy.distribution(), params.as_ref().map(DistParams::params)) {
            (Some(DistName::Basic), _) => (Distribution::Basic, self.round_robin(ino, 1)),
            (_, Some(Params::Strips(strips))) => self.varstrip(strips),
            (_, Some(Params::StripSize(strip))) => {
                (Distribution::SimpleStripe { strip: *strip }, self.round_robin(ino, width))
            }
            // No shares are given: they are equal.
            (Some(DistName::Varstrip), None) => {
                (self.distribution.clone(), self.round_robin(ino, usize::MAX))
            }
            (_, None) => (self.distribution.clone(), self.round_robin(ino, width)),
        };
        Layout::new(distribution, servers).map(Arc::new).map_err(|_| Errno::EIO)
    }

    fn round_robin(&self, ino: Ino, width: usize) -> Vec<ServerId> {
        round_robin(&self.open, width, ino)
    }

    /// The servers for new files and the number of them per file, if files take turns.
    pub(crate) fn spread(&self, policy: &Policy) -> (Arc<[ServerId]>, u16) {
        let width = match policy.distribution() {
            _ if policy.no_metafile() == Some(true) => 1,
            Some(DistName::Basic) => 1,
            _ => policy.num_dfiles().map_or(self.width, |width| width.get().into()).min(self.open.len()),
        };
        // A layout has at most `u16::MAX` servers.
        (Arc::clone(&self.open), width as u16)
    }

    /// Builds a varstrip distribution; strips for more servers than exist wrap around.
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

    /// A layout that only names servers, without regard to the file's bytes.
    pub(crate) fn of(&self, servers: Vec<ServerId>) -> Result<Arc<Layout>, Errno> {
        let distribution = Distribution::SimpleStripe { strip: 1 };
        Layout::new(distribution, servers).map(Arc::new).map_err(|_| Errno::EIO)
    }
}

/// The location of the bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataLocation {
    /// With the inode: there is no stream.
    Inode,
    Store,
    Servers(Arc<Layout>),
    /// [`Input::Place`](crate::Input::Place) loads the inode.
    Unknown,
}

impl Meta {
    /// True if files are, or have been, on data servers.
    pub fn is_striped(&self) -> bool {
        self.state.provisional.on_servers().is_some()
    }

    /// The layout of a file that is about to be unstuffed; `None`: it goes to the store.
    pub(crate) fn new_layout(&self, ino: Ino) -> Step<Option<Arc<Layout>>> {
        let Some(striping) = &self.config.striping else { return Ok(None) };
        let Some(cached) = self.state.inodes.get(&ino) else {
            // The file is gone: its remains may be on any server.
            return Ok(Some(striping.of(striping.servers.to_vec())?));
        };
        let policy = self.effective_policy(&cached.inode);
        Ok(Some(striping.layout(ino, &policy)?))
    }

    /// The policy of an inode, with the server's where it sets nothing.
    pub(crate) fn effective_policy(&self, inode: &Inode) -> Policy {
        let mut policy = inode.policy().or(&self.config.policy);
        if let Some(striping) = &self.config.striping {
            policy = policy.or(&striping.policy());
        }
        policy.explicit()
    }

    /// The setting in force for an inode: that of its policy, the server's, or the default.
    pub(crate) fn setting<T>(&self, inode: &Inode, get: impl Fn(&Policy) -> Option<T>) -> Option<T> {
        [inode.policy(), &self.config.policy, &Policy::DEFAULT].into_iter().find_map(get)
    }

    /// True if payloads of the file are announced (rendezvous) whatever their size.
    pub(crate) fn announces(&self, file: &Inode) -> bool {
        self.setting(file, Policy::eager) == Some(false)
    }

    /// True if the file's bytes are in the store's data pool.
    pub(crate) fn is_in_data_pool(&self, inode: &Inode) -> bool {
        self.config.data_pool && inode.is_streamed() && inode.layout().is_none()
    }

    /// True if clients may write to the file without this server, which does not see these writes.
    pub(crate) fn is_written_directly(&self, inode: &Inode) -> bool {
        inode.layout().is_some() || self.is_in_data_pool(inode)
    }

    /// Number and body of a new regular file. Data servers need not know of a file that starts out
    /// striped: a datafile that was never written is empty. They learn of it with the first write,
    /// for which [`Self::mark_size_dirty`] waits until the file is durable.
    pub(crate) fn new_file(&self, dir: &Inode) -> Step<(Ino, Body)> {
        let Some(striping) = self.config.striping.as_ref().filter(|_| !self.is_stuffed_in(dir)) else {
            return Ok((self.new_ino()?, Body::STUFFED));
        };
        let policy = self.effective_policy(dir);
        let pooled = if self.setting(dir, Policy::precreation) == Some(true) {
            self.pooled_ino(|ino| striping.layout(ino, &policy).ok())
        } else {
            None
        };
        let ino = pooled.map_or_else(|| self.new_ino(), Ok)?;
        Ok((ino, Body::Striped { counted: 0, layout: striping.layout(ino, &policy)? }))
    }

    /// True if new files of a directory start out stuffed, with a metafile.
    pub(crate) fn is_stuffed_in(&self, dir: &Inode) -> bool {
        self.config.striping.is_none()
            || (self.setting(dir, Policy::stuffing) == Some(true) && !self.wants_no_metafile(dir))
    }

    /// The I/O of a stream call, with the layouts that it needs.
    pub(crate) fn stream_io(&self, call: StreamCall) -> Io {
        if self.config.striping.is_none() && !self.is_striped() {
            return Io::Stream(call, Layouts::new());
        }
        let layout = |ino: Ino| self.layout_for(&call, ino).map(|layout| (ino, layout));
        let layouts = match &call {
            StreamCall::Stat(inos) | StreamCall::TryStat(inos) => {
                inos.iter().copied().filter_map(layout).collect()
            }
            StreamCall::Measure(files) => files.iter().filter_map(|(ino, _)| layout(*ino)).collect(),
            // Numbers of the pool have no inodes.
            StreamCall::Precreate | StreamCall::Discard | StreamCall::SyncStore => Layouts::new(),
            StreamCall::SyncServers => layout(Ino::ROOT).into_iter().collect(),
            StreamCall::Fill { ino, .. }
            | StreamCall::Write { ino, .. }
            | StreamCall::Finalise { ino, .. }
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
            // A file that has left memory may be finalised already; then there is nothing to do.
            StreamCall::Finalise { .. } if inode.is_none() && self.is_provisional(ino) => {
                let striping = self.config.striping.as_ref()?;
                striping.of(striping.servers.to_vec()).ok()
            }
            _ => inode?.layout().cloned(),
        }
    }

    pub(crate) fn is_provisional(&self, ino: Ino) -> bool {
        self.state.provisional.is_on_servers(ino)
    }

    /// The location of the bytes of a stream request's file.
    pub fn place_of(&self, io: &StreamIo) -> DataLocation {
        let of = |ino: Ino| match self.state.inodes.get(&ino).map(|cached| &cached.inode.body) {
            Some(Body::Streamed { .. }) => DataLocation::Store,
            Some(Body::Striped { layout, .. }) => DataLocation::Servers(Arc::clone(layout)),
            Some(_) => DataLocation::Inode,
            None => DataLocation::Unknown,
        };
        match io.op.source().map_or(DataLocation::Store, of) {
            DataLocation::Store => of(io.ino),
            other => other,
        }
    }

    /// After recovery: finalises streams on data servers, and marks files whose size must be
    /// queried.
    pub(crate) fn recover_striped(&mut self) {
        let provisional = self.state.provisional.on_servers().into_iter().flatten().copied();
        if self.config.striping.is_some() {
            provisional
                .for_each(|ino| self.journal.hold(self.state.sequence, HeldOutput::FinaliseStream(ino)));
        }
        for ino in self.state.size_dirty.inos().collect::<Vec<_>>() {
            let cached = self.state.inodes.get(&ino);
            if cached.is_some_and(|cached| cached.inode.layout().is_some()) {
                self.state.size_dirty.must_measure(ino);
            }
        }
    }

    /// Counts the files that were being written when an earlier machine ended, or whose streams
    /// could not be queried since.
    pub(crate) fn measure_unmeasured(&mut self, now: Now, out: &mut Outbox) {
        if self.writable().is_err() {
            return;
        }
        for ino in self.state.size_dirty.take_unmeasured(self.ticks) {
            let task = Task::new(INTERNAL_CLIENT, RequestId(0), Caller::SERVER, Request::Recount { ino });
            self.run(now, task, None, out);
        }
    }

    /// The stream I/O that a request waits for.
    pub fn stream_io_of(&self, client: ClientId, request: RequestId) -> Option<IoId> {
        let is_target = |number: &u64| {
            self.tasks.get(number).is_some_and(|task| (task.from, task.id) == (client, request))
        };
        let waits = |purpose: &Purpose| matches!(purpose, Purpose::Stream(number, _) if is_target(number));
        self.io.iter().find(|(_, purpose)| waits(purpose)).map(|(id, _)| *id)
    }

    pub(crate) fn recount_file(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<Final<'_>> {
        let size = self.measure(cx, ino)?;
        let cached = self.state.cached(ino)?;
        // A client that has opened it again may have been granted growth.
        let (is_open, counted) = (cached.opens > 0, cached.inode.counted_bytes());
        let count = self.count_event(&cached.inode, if is_open { size.max(counted) } else { size });
        self.commit_all(cx, count.as_slice(), |meta, _| {
            if !is_open {
                meta.state.size_dirty.counted(ino);
            }
            Reply::Done
        })
    }

    /// The event that completes [`StreamCall::Fill`]: the file's bytes are in its stream.
    pub(crate) fn unstuffing(&self, ino: Ino) -> Step<Event> {
        Ok(self.new_layout(ino)?.map_or(Event::Unstuff { ino }, |layout| Event::Stripe { ino, layout }))
    }
}
