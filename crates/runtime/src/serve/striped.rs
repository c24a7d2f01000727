//! A metadata server's requests to data servers; they do not block its machine.

use std::time::Instant;

use espalier_meta::{Input, IoDone, IoId, Layouts, StreamCall, StreamRequest};
use espalier_proto::{ClientId, Errno, FromServer, Ino, Reply, RequestId, ServerId, Space, Touched};
use espalier_store::Store;
use tokio::task::AbortHandle;

use super::machine::{Inner, Server, now};
use super::streams::{StreamJob, Streamed};
use crate::data::Striper;
use crate::disk::logged;
use crate::tracer::Id;
use crate::watch::Stage;

/// An operation in progress on striped files.
pub struct Striping {
    servers: Vec<ServerId>,
    task: AbortHandle,
    /// The operation is a try-stat: it does not wait for an unreachable server.
    is_try_stat: bool,
}

impl Striping {
    /// True if the operation waits for an unreachable server.
    fn is_stuck(&self, striper: &Striper) -> bool {
        !striper.servers.are_reached(&self.servers)
    }
}

impl Server {
    /// Keeps connections to the data servers.
    pub fn reach_data_servers(&self) {
        let Some(striper) = &self.striper else { return };
        for number in striper.servers.numbers() {
            let Some(server) = self.own_handle.upgrade() else { return };
            self.runtime.spawn(async move {
                let Some(striper) = &server.striper else { return };
                let new = |number: ServerId, inos: Vec<Ino>| {
                    if !inos.is_empty() {
                        tracing::info!(server = %number, new = inos.len(), "a data server has provisional datafiles");
                    }
                    server.feed(Input::NewDatafiles { server: number, inos });
                };
                striper.servers.keep_connected(number, new).await;
            });
        }
    }

    /// Executes an operation of the machine on data servers; the machine gets its result.
    pub(super) fn ask_data_servers(
        &self,
        id: IoId,
        call: StreamCall,
        layouts: Layouts,
        causes: Vec<Id>,
    ) -> Option<(IoId, Result<IoDone, Errno>)> {
        let Some(striper) = &self.striper else {
            // A volume with striped files is not served without data servers.
            tracing::error!("a file is stored on data servers, but none is configured");
            return Some((id, Err(Errno::EIO)));
        };
        let servers: Vec<_> = layouts.iter().flat_map(|(_, layout)| layout.servers()).copied().collect();
        let is_try_stat = matches!(call, StreamCall::TryStat(_));
        if is_try_stat && !striper.servers.are_reached(&servers) {
            return Some((id, Err(Errno::EAGAIN)));
        }
        let (server, mut inner) = (self.own_handle.upgrade()?, self.lock().ok()?);
        // The task cannot finish before it is registered, because its end needs the lock.
        let task = self.runtime.spawn(async move {
            let Some(striper) = &server.striper else { return };
            let store = &server.background_work.disk.store;
            let local = |ino| store.stream_stat(ino).map_err(logged);
            let result = striper.call(&call, &layouts, local, &causes).await.map(IoDone::Stream);
            // The request may have been cancelled meanwhile.
            if server.lock().is_ok_and(|mut inner| inner.asking.remove(&id).is_some()) {
                server.feed(Input::Done { id, result });
            }
        });
        inner.asking.insert(id, Striping { servers, task: task.abort_handle(), is_try_stat });
        None
    }

    /// Executes a client's I/O on a striped file.
    pub(super) fn stripe(&self, job: StreamJob) {
        let StreamJob { stream: StreamRequest { of, io, layout, data }, mut span, .. } = job;
        let (Some(layout), true) = (layout, self.striper.is_some()) else {
            return self.streamed([Streamed { of, span, result: Err(Errno::EIO) }]);
        };
        let (Some(server), Ok(mut inner)) = (self.own_handle.upgrade(), self.lock()) else { return };
        span.enter_stage(Stage::Disk, Instant::now());
        let (servers, cause) = (layout.servers().to_vec(), self.id_of(&inner, of));
        // The task cannot finish before it is registered, because its end needs the lock.
        let task = self.runtime.spawn(async move {
            let Some(striper) = &server.striper else { return };
            // A server needs no capability.
            let requested = striper.stream(layout, io, data, None, cause.as_slice()).await;
            let result = requested.unwrap_or(Err(Errno::EIO));
            // The request may have been cancelled meanwhile.
            let is_noted = server.lock().is_ok_and(|mut inner| inner.striping.remove(&of).is_some());
            if is_noted {
                span.enter_stage(Stage::Work, Instant::now());
                server.streamed([Streamed { of, span, result }]);
            }
        });
        inner.striping.insert(of, Striping { servers, task: task.abort_handle(), is_try_stat: false });
    }

    /// Cancels an operation for an interrupted caller, if it waits for an unreachable server.
    pub(super) fn give_up(&self, inner: &mut Inner, of: (ClientId, RequestId)) {
        let Some(striper) = &self.striper else { return };
        if inner.striping.get(&of).is_some_and(|striping| striping.is_stuck(striper))
            && let Some(Striping { task, .. }) = inner.striping.remove(&of)
        {
            task.abort();
            inner.session_layer.end_stream(of, Err(Errno::EINTR));
        }
        if let Some(id) = inner.session_layer.meta().stream_io_of(of.0, of.1)
            && inner.asking.get(&id).is_some_and(|striping| striping.is_stuck(striper))
            && let Some(Striping { task, .. }) = inner.asking.remove(&id)
        {
            task.abort();
            inner.session_layer.input(now(0), Input::Done { id, result: Err(Errno::EINTR) });
        }
    }

    /// Cancels the try-stats that wait for unreachable servers.
    pub(super) fn give_up_try_stats(&self) {
        let (Some(striper), Ok(mut inner)) = (&self.striper, self.lock()) else { return };
        let is_in_vain =
            |_: &IoId, requested: &mut Striping| requested.is_try_stat && requested.is_stuck(striper);
        let given_up: Vec<_> = inner.asking.extract_if(is_in_vain).collect();
        drop(inner);
        for (id, Striping { task, .. }) in given_up {
            task.abort();
            self.feed(Input::Done { id, result: Err(Errno::EAGAIN) });
        }
    }

    /// Requests the free space of the data servers in the background.
    pub(super) fn measure_space(&self) {
        let Some(server) = self.own_handle.upgrade().filter(|_| self.striper.is_some()) else { return };
        self.runtime.spawn(async move {
            let Some(striper) = &server.striper else { return };
            striper.servers.measure_space().await;
        });
    }

    /// Answers a client's `statfs` when the data servers have reported their free space. Returns
    /// false if there are none.
    pub(super) fn measure_then(
        &self,
        to: ClientId,
        id: RequestId,
        lease_ms: u32,
        result: &Result<Reply, Errno>,
    ) -> bool {
        if self.striper.is_none() {
            return false;
        }
        let (Some(server), result) = (self.own_handle.upgrade(), result.clone()) else { return false };
        self.runtime.spawn(async move {
            let Some(striper) = &server.striper else { return };
            striper.servers.measure_space().await;
            let result = result.and_then(|reply| server.complete(reply));
            let sender = server.lock().ok().and_then(|inner| inner.sender_to(to));
            let (announced, touched) = (false, Touched::default());
            let reply = FromServer::Reply { id, lease_ms, announced, touched, result };
            // The client repeats the request over its next connection.
            if let Some(Err(error)) = sender.map(|sender| sender.send(reply)) {
                tracing::debug!(%error, "cannot send a message to a client");
            }
        });
        true
    }

    /// Adds the free space of the data servers.
    pub(super) fn add_space(&self, space: &mut Space) {
        let Some(striper) = &self.striper else { return };
        for Space { total, free, available, .. } in striper.servers.space() {
            space.total = space.total.saturating_add(total);
            space.free = space.free.saturating_add(free);
            space.available = space.available.saturating_add(available);
        }
    }
}
