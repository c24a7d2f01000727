//! Unstuffing: moves a stuffed file's bytes to a stream, once and for all (carns III.B).
//! Invariants: at most one operation unstuffs a file at a time, since a second one would overwrite
//! the stream when clients already write to it; if it fails, the stream is removed before another
//! operation may try; and a file moves to another rank only when no data server has remains of it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::mem::take;

use espalier_proto::{Caller, Errno, Ino, Reply, Request, RequestId, ServerId, Time};

use crate::io::Purpose;
use crate::journal::HeldOutput;
use crate::machine::{Cx, Meta};
use crate::outbox::{Io, Now, Outbox};
use crate::progress::Progress;
use crate::record::Body;
use crate::step::{Step, Stop, StreamCall, Wait};
use crate::striping::Layouts;
use crate::task::Task;
use crate::trash::INTERNAL_CLIENT;

/// Files whose streams are being filled or removed.
#[derive(Debug, Default)]
pub(crate) struct Filling {
    files: BTreeMap<Ino, FillState>,
    /// Operations to resume.
    ready: Vec<u64>,
    /// Data servers that have reported their provisional datafiles.
    listed: BTreeSet<ServerId>,
    /// Known provisional datafiles that are to be removed.
    left: Vec<(Ino, Layouts)>,
    /// Reported provisional datafiles of files that may be at another rank, which is being found
    /// out.
    claiming: BTreeSet<(Ino, ServerId)>,
    /// Streams that durably belong to their files and are to be finalised.
    finalising: Vec<Ino>,
}

#[derive(Debug, Default)]
struct FillState {
    /// The stream of an earlier attempt is being removed.
    removes: bool,
    /// Operations that wait for it.
    waiting: Vec<u64>,
}

impl Filling {
    pub(crate) fn wait(&mut self, ino: Ino, number: u64) {
        self.files.entry(ino).or_default().waiting.push(number);
    }

    /// Removes the waiting operation that `is_target` selects.
    pub(crate) fn stop_waiting(&mut self, is_target: impl Fn(&u64) -> bool) -> Option<u64> {
        let mut all = self.files.values_mut().map(|fill| &mut fill.waiting);
        all.find_map(|waiting| waiting.iter().position(&is_target).map(|at| waiting.swap_remove(at)))
    }

    /// Starts to fill or remove a file's stream. Returns true if no remains of an earlier attempt
    /// are known.
    fn begin(&mut self, ino: Ino, removes: bool) -> bool {
        self.files.insert(ino, FillState { removes, waiting: Vec::new() });
        let before = self.left.len();
        self.left.retain(|(left, _)| *left != ino);
        self.left.len() == before && !self.claims(ino)
    }

    fn claims(&self, ino: Ino) -> bool {
        let mut claims = self.claiming.range((ino, ServerId(0))..);
        claims.next().is_some_and(|(claimed, _)| *claimed == ino)
    }

    /// True if no data server may have a provisional datafile of a file. `servers`: all of them.
    fn leaves_nothing(&self, ino: Ino, servers: &[ServerId]) -> bool {
        servers.iter().all(|server| self.listed.contains(server))
            && !self.files.contains_key(&ino)
            && !self.left.iter().any(|(left, _)| *left == ino)
            && !self.claims(ino)
    }

    /// Ends the filling or removal of a file's stream.
    fn end(&mut self, ino: Ino) {
        self.ready.extend(self.files.remove(&ino).into_iter().flat_map(|fill| fill.waiting));
    }
}

impl Meta {
    /// Moves a stuffed file's bytes to a stream. Readers continue meanwhile; a concurrent change
    /// starts it over. `written`: bytes to write there too, with their offset.
    pub(crate) fn unstuff(&mut self, cx: &mut Cx<'_>, ino: Ino, written: Option<(u64, &[u8])>) -> Stop {
        let unstuffing = self.fill(cx, ino, written).and_then(|()| self.unstuffing(ino));
        let event = match unstuffing {
            Ok(event) => event,
            Err(stop) => return stop,
        };
        self.stage_all(cx, &[event], |meta, cx| {
            meta.journal.hold(meta.state.sequence, HeldOutput::FinaliseStream(ino));
            meta.filling.end(ino);
            *cx.progress = Progress::Unstuffed { is_written: written.is_some() };
        })
    }

    /// Fills the stream of a stuffed file.
    fn fill(&mut self, cx: &mut Cx<'_>, ino: Ino, written: Option<(u64, &[u8])>) -> Step<()> {
        let inode = self.state.inode(ino)?;
        let Body::Stuffed { mut size, .. } = inode.body else { return Err(Errno::EINVAL.into()) };
        let mut mtime = inode.mtime;
        let mut bytes = self.state.strip(ino)?.to_vec();
        // The stream makes its own allocations.
        bytes.truncate(size as usize);
        let (version, first) =
            self.state.strips.get(&ino).map_or((0, 0), |strip| (strip.version, strip.first));
        // Durable state, even a size without bytes, must not be lost for state that is not durable.
        let sync = size > 0 && first <= self.journal.durable_bound();
        let mut filled = cx.streams.iter().rev().filter_map(|(call, _)| call.fills());
        let filled = filled.find(|filled| filled.ino == ino);
        if let Some((offset, data)) = written {
            // A repeated run of the operation makes the same call.
            mtime = filled.map_or(cx.now, |filled| filled.mtime);
            let (start, end) = (offset as usize, offset as usize + data.len());
            size = size.max(end as u64);
            bytes.resize(bytes.len().max(end), 0);
            bytes[start..end].copy_from_slice(data);
        }
        let clean = match filled {
            // Filling it with less would leave bytes of the earlier attempt.
            Some(before) => before.clean && (before.version, before.size) == (version, size),
            None if self.filling.files.contains_key(&ino) => return Err(Stop::Wait(Wait::Filling(ino))),
            None => {
                let layout = self.new_layout(ino)?;
                let mut servers = layout.iter().flat_map(|layout| layout.servers());
                let have_listed = servers.all(|server| self.filling.listed.contains(server));
                self.filling.begin(ino, false) && have_listed
            }
        };
        cx.stream(StreamCall::Fill { ino, version, bytes: bytes.into(), size, mtime, sync, clean })?;
        Ok(())
    }

    /// Schedules the finalising of a stream that durably belongs to its file. It waits for the next
    /// tick, which keeps it out of the way of the file's writers.
    pub(crate) fn finalise_soon(&mut self, ino: Ino, out: &mut Outbox) {
        self.filling.finalising.push(ino);
        if self.draining {
            self.finalise_filled(out);
        }
    }

    pub(crate) fn finalise_filled(&mut self, out: &mut Outbox) {
        let durable = self.journal.durable;
        for ino in take(&mut self.filling.finalising) {
            let finalise = self.stream_io(StreamCall::Finalise { ino, durable });
            self.ask(Purpose::FinaliseStream(ino), finalise, out);
        }
    }

    /// Removes what an ending operation has filled and no file uses.
    pub(crate) fn remove_unused(&mut self, task: &Task, out: &mut Outbox) {
        let filled = task.streams.iter().find_map(|(call, _)| call.fills());
        if let Some(Filled { ino, .. }) = filled.filter(|filled| self.filling.files.contains_key(&filled.ino))
        {
            let layout = self.new_layout(ino).ok().flatten();
            self.remove_filled(ino, layout.map(|layout| (ino, layout)).into_iter().collect(), out);
        }
    }

    fn remove_filled(&mut self, ino: Ino, layouts: Layouts, out: &mut Outbox) {
        let io = Io::Stream(StreamCall::Remove { ino }, layouts.clone());
        self.ask(Purpose::RemoveUnused(ino, layouts), io, out);
    }

    pub(crate) fn unused_removed(&mut self, ino: Ino, layouts: Layouts, is_removed: bool) {
        self.filling.end(ino);
        if !is_removed {
            // It is harmless, and the removal is retried.
            self.filling.left.push((ino, layouts));
        }
    }

    /// Handles the provisional datafiles reported by a data server that is reached for the first
    /// time. Unknown ones stem from before a crash and are removed; those that are being filled are
    /// overwritten.
    pub(crate) fn new_datafiles(&mut self, now: Now, server: ServerId, inos: &[Ino], out: &mut Outbox) {
        for ino in inos {
            if self.state.moves.has_relocated() {
                self.filling.claiming.insert((*ino, server));
                let request = Request::ClaimDatafile { ino: *ino, server };
                let task = Task::new(INTERNAL_CLIENT, RequestId(0), Caller::SERVER, request);
                self.run(now, task, None, out);
            } else if self.state.is_home_of(*ino) {
                // Other ranks handle theirs.
                self.remove_datafile(*ino, server);
            }
        }
        self.filling.listed.insert(server);
        self.retry_removals(out);
    }

    /// Checks that a file's provisional datafile is this rank's to remove: the file is here, and
    /// its bytes have not moved to that data server since the report.
    ///
    /// # Errors
    /// `ESTALE`: the file is at no rank. `EXDEV`: it is at another rank. `EBUSY`: it uses the
    /// datafile.
    pub(crate) fn claim_datafile(&mut self, cx: &mut Cx<'_>, ino: Ino, server: ServerId) -> Step<Reply> {
        if self.rank_of(cx, ino)? != self.config.rank {
            return Err(Errno::EXDEV.into());
        }
        match &self.state.inode(ino)?.body {
            Body::Striped { layout, .. } if layout.servers().contains(&server) => Err(Errno::EBUSY.into()),
            _ => Ok(Reply::Done),
        }
    }

    /// True if a stuffed file may move to another rank, which will not know what earlier attempts
    /// have left on data servers.
    pub(crate) fn leaves_no_datafile(&self, ino: Ino) -> bool {
        let striping = self.config.striping.as_ref();
        striping.is_none_or(|striping| self.filling.leaves_nothing(ino, striping.servers()))
    }

    pub(crate) fn datafile_claimed(&mut self, ino: Ino, server: ServerId, result: &Result<Reply, Errno>) {
        self.filling.claiming.remove(&(ino, server));
        let is_own = match result {
            Ok(_) => true,
            Err(errno) => *errno == Errno::ESTALE && self.state.is_home_of(ino),
        };
        if is_own {
            self.remove_datafile(ino, server);
        }
    }

    /// Has a provisional datafile be removed, unless a file uses it or will.
    fn remove_datafile(&mut self, ino: Ino, server: ServerId) {
        let Some(Ok(layout)) = self.config.striping.as_ref().map(|striping| striping.of([server].into()))
        else {
            return;
        };
        let is_filled = self.filling.files.get(&ino).is_some_and(|fill| !fill.removes);
        if !is_filled && !self.is_provisional(ino) {
            self.filling.left.push((ino, [(ino, layout)].into()));
        }
    }

    pub(crate) fn retry_removals(&mut self, out: &mut Outbox) {
        for (ino, layouts) in take(&mut self.filling.left) {
            if self.filling.files.contains_key(&ino) {
                self.filling.left.push((ino, layouts));
            } else {
                self.filling.begin(ino, true);
                self.remove_filled(ino, layouts, out);
            }
        }
    }

    /// Resumes operations that have waited for a file to be unstuffed.
    pub(crate) fn resume_filling(&mut self, now: Now, out: &mut Outbox) {
        while let Some(number) = self.filling.ready.pop() {
            self.resume(now, number, out);
        }
    }
}

impl StreamCall {
    fn fills(&self) -> Option<Filled> {
        match *self {
            Self::Fill { ino, version, size, mtime, clean, .. } => {
                Some(Filled { ino, version, size, mtime, clean })
            }
            _ => None,
        }
    }
}

/// The contents that a stream has been filled with.
#[derive(Clone, Copy)]
struct Filled {
    ino: Ino,
    version: u64,
    size: u64,
    mtime: Time,
    clean: bool,
}
