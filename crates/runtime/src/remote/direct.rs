//! What a door does with data servers itself: the bytes of big files, as far as the metadata server has let it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use espalier_client::Call;
use espalier_proto::{Caller, Delegation, Errno, Ino, Layout, Rank, Reply, Request, ServerMap, StreamIo};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::end::{Finished, Parked};
use super::{Asked, Inner, Remote};
use crate::calls::{Door, Interrupt};
use crate::data::{Asker, DataServers, Pass, Stale, Striper};
use crate::servers::Servers;

/// Before the metadata server is asked for another capability: a data server may not have heard yet that it was started anew.
const STALE_PAUSE: Duration = Duration::from_millis(50);

/// The data servers, and what is connected to them.
pub struct Direct {
    striper: Arc<Striper>,
    runtime: Handle,
    connections: Mutex<Vec<AbortHandle>>,
}

/// Calls that wait for data servers, by number.
pub struct Asking<T> {
    next: u64,
    /// Calls that are to be asked when the lock is let go, by number.
    new: Vec<u64>,
    calls: HashMap<u64, Waiting<T>>,
    /// Files of which data servers have been asked something. Who asks has a share, until it is sure that nothing of it is done any
    /// more: also when nobody waits for it.
    held: HashMap<Ino, Arc<()>>,
    /// Releases of those that somebody still has.
    put_off: Vec<Ino>,
}

struct Waiting<T> {
    parked: Parked<T>,
    delegation: Arc<Delegation>,
    io: StreamIo,
    task: Option<AbortHandle>,
}

impl Direct {
    /// Connects to nobody yet.
    pub fn new(servers: &Servers) -> Self {
        let (security, limits) = (servers.security.clone(), servers.limits.clone());
        let data_servers = DataServers::new(Vec::new(), security, limits, Asker::Client(servers.client));
        let striper = Arc::new(Striper::new(data_servers));
        Self { striper, runtime: Handle::current(), connections: Mutex::default() }
    }

    pub fn learn(&self, servers: &ServerMap) {
        self.striper.servers.learn(servers.data.clone());
    }

    /// Connects to those who have a file, where nobody is connected yet.
    fn reach(&self, layout: &Layout) {
        for server in self.striper.servers.unkept(layout.servers()) {
            let striper = Arc::clone(&self.striper);
            let kept = self.runtime.spawn(async move {
                striper.servers.keep_connected(server, |_, _| {}).await;
            });
            let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
            connections.push(kept.abort_handle());
        }
    }

    fn is_stuck(&self, layout: &Layout) -> bool {
        !self.striper.servers.are_reached(layout.servers())
    }

    /// Ends all connections.
    pub fn close(&self) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.drain(..).for_each(|connection| connection.abort());
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.close();
    }
}

impl<T> Default for Asking<T> {
    fn default() -> Self {
        Self { next: 0, new: Vec::new(), calls: HashMap::new(), held: HashMap::new(), put_off: Vec::new() }
    }
}

impl<T> Asking<T> {
    /// Keeps a call that is about to be asked.
    pub fn park(&mut self, parked: Parked<T>, delegation: Arc<Delegation>, io: StreamIo) {
        self.next += 1;
        self.calls.insert(self.next, Waiting { parked, delegation, io, task: None });
        self.new.push(self.next);
    }

    /// The caller of a call got a signal. `dies`: whether a process ends by it.
    pub fn interrupt(&mut self, call_id: u64, dies: impl Fn(u32) -> bool) -> Interrupt {
        let waiting = self.calls.values_mut().find(|waiting| waiting.parked.call_id == call_id);
        match waiting {
            None => Interrupt::Unknown,
            Some(waiting) if !dies(waiting.parked.caller.pid) => Interrupt::Survived,
            Some(waiting) => {
                waiting.parked.interrupted = true;
                Interrupt::Heard
            }
        }
    }

    /// The session with a rank has ended, and with it what it had allowed: of these calls nobody knows whether they were done.
    pub fn lose(&mut self, rank: Rank) -> Vec<Finished<T>> {
        self.give_up(|waiting| waiting.delegation.capability.ino.rank() == rank, Errno::EIO)
    }

    fn give_up(&mut self, which: impl Fn(&Waiting<T>) -> bool, errno: Errno) -> Vec<Finished<T>> {
        let gone = self.calls.extract_if(|_, waiting| which(waiting));
        let finish = |(_, Waiting { parked, task, .. }): (u64, Waiting<T>)| {
            if let Some(task) = task {
                task.abort();
            }
            Finished::new(parked.ticket, Err(errno))
        };
        gone.map(finish).collect()
    }

    /// A file is to be released. Whether that has to wait: what nobody waits for any more may still be done with it.
    pub fn puts_off(&mut self, ino: Ino) -> bool {
        let is_busy = self.is_busy(ino);
        if is_busy {
            self.put_off.push(ino);
        } else {
            self.held.remove(&ino);
        }
        is_busy
    }

    fn is_busy(&self, ino: Ino) -> bool {
        self.held.get(&ino).is_some_and(|held| Arc::strong_count(held) > 1)
    }

    fn hold(&mut self, ino: Ino) -> Arc<()> {
        Arc::clone(self.held.entry(ino).or_default())
    }
}

impl<T> Inner<T> {
    /// Releases files with which nothing is done any more.
    pub(super) fn release_put_off(&mut self) {
        for ino in std::mem::take(&mut self.asking.put_off) {
            if !self.asking.puts_off(ino)
                && let Some(end) = self.end(ino.rank())
            {
                end.ask(Caller::SERVER, Request::Release { ino });
            }
        }
    }
}

impl<D: Door> Remote<D> {
    /// Asks data servers for what calls want that have been parked just now.
    pub(super) fn ask_data_servers(&self, inner: &mut Inner<D::Ticket>) {
        let asking = &mut inner.asking;
        for number in std::mem::take(&mut asking.new) {
            let Some(Waiting { parked, delegation, io, .. }) = asking.calls.get(&number) else { continue };
            let data = if let Call::Write { data, .. } = &parked.call { data.to_vec() } else { Vec::new() };
            let (layout, io, capability) = (Arc::clone(&delegation.layout), *io, delegation.capability);
            let pass = Pass { capability, _held: asking.hold(capability.ino) };
            self.direct.reach(&layout);
            let (striper, remote) = (Arc::clone(&self.direct.striper), self.own.clone());
            // It cannot end before it is noted: its end needs the lock.
            let task = self.direct.runtime.spawn(async move {
                let outcome = striper.stream(layout, io, data, Some(&pass)).await;
                drop(pass);
                if outcome.is_err() {
                    tokio::time::sleep(STALE_PAUSE).await;
                }
                if let Some(remote) = remote.upgrade() {
                    remote.data_came(number, outcome);
                }
            });
            if let Some(waiting) = asking.calls.get_mut(&number) {
                waiting.task = Some(task.abort_handle());
            }
        }
    }

    /// Data servers have done what a call wants, or want another capability.
    fn data_came(&self, number: u64, outcome: Result<Result<Reply, Errno>, Stale>) {
        let Ok(mut inner) = self.lock() else { return };
        // It may have been given up just now.
        let Some(Waiting { parked, delegation, .. }) = inner.asking.calls.remove(&number) else { return };
        let mut finished = Vec::new();
        match outcome {
            Ok(result) => inner.lead_on(&mut finished, parked, result, Duration::ZERO),
            Err(Stale) => {
                let Parked { call_id, caller, call, ticket, seen, interrupted, .. } = parked;
                let next = inner.client.stale(&call, &delegation);
                let asked = Asked { call_id, caller, call, ticket, interrupted };
                inner.advance(&mut finished, asked, next, Duration::ZERO, seen);
            }
        }
        self.settle(inner, finished);
    }

    /// Gives up calls whose callers do not want to wait for servers that cannot be reached: nobody knows how long that takes.
    pub(super) fn give_up_stuck(&self, inner: &mut Inner<D::Ticket>) -> Vec<Finished<D::Ticket>> {
        let is_stuck = |waiting: &Waiting<D::Ticket>| {
            waiting.parked.interrupted && self.direct.is_stuck(&waiting.delegation.layout)
        };
        inner.asking.give_up(is_stuck, Errno::EINTR)
    }
}
