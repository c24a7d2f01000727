//! Precreation of datafiles (carns III.A). Inode numbers are allocated in batches, and each data
//! server is asked once for a batch's datafiles: making a file then costs no message to data
//! servers. A file's number determines its servers.
//!
//! Invariants: a batch is journaled before its datafiles are made, and until all its numbers are
//! used or the rest is removed, so no datafile is ever lost. After a restart, a batch that was
//! never opened is used; the rest of an open batch is removed, since replies may have contained
//! numbers that no event records (`numbers.rs`).

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_policy::Policy;
use espalier_proto::{Errno, Ino, Layout, ServerId};
use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::io::Purpose;
use crate::journal::HeldOutput;
use crate::machine::Meta;
use crate::outbox::{Io, Outbox};
use crate::record::Inode;
use crate::state::State;
use crate::step::StreamCall;
use crate::striping::Layouts;

/// A batch of precreated files; the numbers from `first` up to `end` are unused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    pub(crate) first: u64,
    /// Identifies the batch.
    pub(crate) end: u64,
    /// Clients may know its numbers.
    open: bool,
    /// Number of servers per file; files take turns among `servers`.
    width: u16,
    servers: Arc<[ServerId]>,
}

/// Data servers, and the number of them per file.
type Spread = (Arc<[ServerId]>, u16);

impl Batch {
    pub(crate) fn has(&self, ino: Ino) -> bool {
        (self.first..self.end).contains(&ino.0)
    }

    fn inos(&self) -> impl Iterator<Item = Ino> {
        (self.first..self.end).map(Ino)
    }

    /// The data servers that have a datafile of this number.
    fn servers_of(&self, ino: Ino) -> Vec<ServerId> {
        round_robin(&self.servers, self.width.into(), ino)
    }

    /// True if new files have the same spread.
    fn is_spread(&self, (servers, width): &Spread) -> bool {
        (servers, width) == (&self.servers, &self.width)
    }

    /// True if the batch accounts for a datafile.
    pub(crate) fn explains(&self, ino: Ino, server: ServerId) -> bool {
        self.has(ino) && self.servers_of(ino).contains(&server)
    }
}

/// The servers of a file. Consecutive numbers start at consecutive servers.
pub(crate) fn round_robin(servers: &[ServerId], width: usize, ino: Ino) -> Vec<ServerId> {
    let Some(first) = ino.0.checked_rem(servers.len() as u64) else { return Vec::new() };
    servers.iter().cycle().skip(first as usize).take(width.min(servers.len())).copied().collect()
}

/// State of a batch since the start of the machine. Batches without one have not been touched
/// since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchState {
    /// The event that creates the batch is not durable yet.
    Planned {
        event: u64,
    },
    /// Data servers are making its datafiles.
    Making,
    Made,
    /// Its numbers may be used once the event is durable.
    Open {
        event: u64,
    },
    /// Data servers are removing its datafiles.
    Discarding,
}

#[derive(Debug)]
pub(crate) struct Pool {
    /// By the end of their batch.
    phases: BTreeMap<u64, BatchState>,
    /// Numbers in the next batch.
    size: u64,
    /// Files are being made that use the pool.
    wanted: bool,
    /// The pool was exhausted when a file needed a number.
    exhausted: bool,
    /// A data server has failed a request; the next tick retries.
    failed: bool,
}

impl Default for Pool {
    fn default() -> Self {
        Self { phases: BTreeMap::new(), size: Self::FIRST, wanted: false, exhausted: false, failed: false }
    }
}

impl Pool {
    /// Size of the first batch, and maximum size. The size doubles whenever the pool was exhausted.
    const FIRST: u64 = 64;
    const LAST: u64 = 4096;
}

impl State {
    pub(crate) fn apply_pool(&mut self, pool: &[Batch]) {
        self.provisional.note_servers();
        self.numbers.set_pool(pool);
    }
}

impl Meta {
    /// A usable number for a file with the layout that `layout` returns for it.
    pub(crate) fn pooled_ino(&self, layout: impl Fn(Ino) -> Option<Arc<Layout>>) -> Option<Ino> {
        let is_usable = |batch: &&Batch| {
            let phase = self.pool.phases.get(&batch.end);
            matches!(phase, Some(BatchState::Open { event }) if *event <= self.journal.durable)
        };
        let batch = self.state.numbers.pool().iter().find(is_usable)?;
        let ino = Ino(batch.first);
        layout(ino).filter(|layout| layout.servers() == batch.servers_of(ino)).map(|_| ino)
    }

    /// Records that a file is about to be made, and whether it should come from the pool and does.
    pub(crate) fn note_pool_use(&mut self, inode: &Inode) {
        let (Some(layout), Some(striping)) = (inode.layout(), &self.config.striping) else { return };
        let (servers, width) = striping.spread(&self.config.policy);
        let is_pooled = layout.servers() == round_robin(&servers, width.into(), inode.ino);
        if is_pooled && self.setting(inode, Policy::precreation) == Some(true) {
            self.pool.wanted = true;
            self.pool.exhausted |= !self.state.numbers.pool().iter().any(|batch| batch.first == inode.ino.0);
        }
    }

    /// Allows failed requests to be repeated.
    pub(crate) fn retry_pool(&mut self) {
        self.pool.failed = false;
    }

    /// Refills the pool, and removes datafiles that nobody can use.
    pub(crate) fn tend_pool(&mut self, out: &mut Outbox) {
        let is_changed = !self.config.read_only && !self.draining && self.journal.broken.is_none();
        if !is_changed || (self.state.numbers.pool().is_empty() && !self.pool.wanted) {
            return;
        }
        let Some(striping) = &self.config.striping else { return };
        let spread = striping.spread(&self.config.policy);
        let pool = self.state.numbers.pool();
        self.pool.phases.retain(|end, _| pool.iter().any(|batch| batch.end == *end));
        if self.pool.wanted {
            self.open_batch();
            self.plan_batch(&spread);
        }
        let next = |batch: &Batch| match self.pool.phases.get(&batch.end) {
            None if batch.open || !batch.is_spread(&spread) => Some((batch.clone(), BatchState::Discarding)),
            None => Some((batch.clone(), BatchState::Making)),
            Some(BatchState::Planned { event }) if *event <= self.journal.durable => {
                Some((batch.clone(), BatchState::Making))
            }
            Some(_) => None,
        };
        let due: Vec<_> =
            self.state.numbers.pool().iter().filter(|_| !self.pool.failed).filter_map(next).collect();
        for (batch, phase) in due {
            self.ask_for(&batch, phase, out);
        }
    }

    /// Sum of the unused numbers of the batches that `is_counted` selects.
    fn pooled(&self, is_counted: impl Fn(&Batch, Option<&BatchState>) -> bool) -> u64 {
        let counted = |batch: &&Batch| is_counted(batch, self.pool.phases.get(&batch.end));
        self.state.numbers.pool().iter().filter(counted).map(|batch| batch.end - batch.first).sum()
    }

    /// Creates a batch when the pool falls below its low watermark.
    fn plan_batch(&mut self, spread: &Spread) {
        let coming = self.pooled(|batch, phase| match phase {
            None => !batch.open && batch.is_spread(spread),
            Some(phase) => *phase != BatchState::Discarding,
        });
        if coming >= self.pool.size / 2 || self.pool.failed {
            return;
        }
        if core::mem::take(&mut self.pool.exhausted) && !self.pool.phases.is_empty() {
            self.pool.size = (2 * self.pool.size).min(Pool::LAST);
        }
        let first = self.state.numbers.next();
        let end = first + self.pool.size;
        if !self.may_give(end - 1) {
            return;
        }
        let (servers, width) = spread.clone();
        let batch = Batch { first, end, open: false, width, servers };
        let pool = self.state.numbers.pool().iter().cloned().chain([batch]).collect();
        let event = self.note_pool(pool);
        self.pool.phases.insert(end, BatchState::Planned { event });
    }

    /// Opens the next batch before the current one is exhausted.
    fn open_batch(&mut self) {
        let left = self.pooled(|_, phase| matches!(phase, Some(BatchState::Open { .. })));
        if left >= self.pool.size / 4 {
            return;
        }
        let mut pool = self.state.numbers.pool().to_vec();
        let is_next = |batch: &&mut Batch| self.pool.phases.get(&batch.end) == Some(&BatchState::Made);
        let Some(batch) = pool.iter_mut().find(is_next) else { return };
        batch.open = true;
        let end = batch.end;
        let event = self.note_pool(pool);
        self.pool.phases.insert(end, BatchState::Open { event });
    }

    /// Journals the new state of the pool. Returns the event's number.
    fn note_pool(&mut self, pool: Vec<Batch>) -> u64 {
        self.append_loaded(&Event::Pool { pool });
        self.journal.hold(self.state.sequence, HeldOutput::Pool);
        self.state.sequence
    }

    fn ask_for(&mut self, batch: &Batch, phase: BatchState, out: &mut Outbox) {
        let Some(striping) = &self.config.striping else { return };
        let layout = |ino| striping.of(batch.servers_of(ino)).ok().map(|layout| (ino, layout));
        let layouts: Layouts = batch.inos().filter_map(layout).collect();
        let call = if phase == BatchState::Making { StreamCall::Precreate } else { StreamCall::Discard };
        self.pool.phases.insert(batch.end, phase);
        self.ask(Purpose::Pool(batch.end), Io::Stream(call, layouts), out);
    }

    /// Completes a request to make or remove the datafiles of a batch.
    pub(crate) fn pool_done(&mut self, end: u64, result: Result<(), Errno>) {
        match (self.pool.phases.remove(&end), result) {
            (_, Err(_)) => self.pool.failed = true,
            (Some(BatchState::Making), Ok(())) => {
                self.pool.phases.insert(end, BatchState::Made);
            }
            (Some(BatchState::Discarding), Ok(())) => {
                let pool =
                    self.state.numbers.pool().iter().filter(|batch| batch.end != end).cloned().collect();
                self.note_pool(pool);
            }
            (_, Ok(())) => {}
        }
    }
}
