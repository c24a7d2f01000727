//! The driver of a data server's machine. What a request does is done by a thread of its own, for it may take as long as the disk
//! likes; so requests on one file overtake each other where the machine lets them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use espalier_data::{Data, Input, Io, IoId, Outbox};
use espalier_net::{Connection, NetError, Sender};
use espalier_proto::{ClientId, FromData, Hello, ServerId, ToData};

use super::store::DataStore;

/// A data server. See the module's description.
pub struct DataServer {
    pub store: DataStore,
    inner: Mutex<Inner>,
    next_connection: AtomicU64,
}

#[derive(Default)]
struct Inner {
    machine: Data,
    connections: HashMap<u64, Sender<FromData>>,
}

/// So many bytes may wait until somebody reads them; then nothing more is taken from it.
const UNSENT: usize = 16 << 20;
/// As many requests may be under way; then nothing more is taken.
const UNDER_WAY: usize = 256;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

impl DataServer {
    pub fn new(store: DataStore) -> Self {
        Self { store, inner: Mutex::default(), next_connection: AtomicU64::new(1) }
    }

    /// Metadata servers that are connected.
    pub fn connections(&self) -> usize {
        self.inner.lock().map_or(0, |inner| inner.connections.len())
    }

    /// Serves a metadata server, as long as the connection lasts.
    ///
    /// # Errors
    /// Why it has ended.
    pub async fn converse(
        self: &Arc<Self>,
        hello: &Hello,
        connection: Connection<ToData, FromData>,
    ) -> Result<(), NetError> {
        let Connection { mut receiver, sender } = connection;
        let number = self.next_connection.fetch_add(1, Ordering::Relaxed);
        let (from, incarnation) = (hello.client, hello.incarnation.unwrap_or_default());
        if let Ok(mut inner) = self.inner.lock() {
            inner.connections.insert(number, sender.clone());
        }
        self.input([Input::Connect { from, incarnation, connection: number }]);
        let mut batch = Vec::new();
        let ended = loop {
            if let Err(error) = receiver.next(&mut batch).await {
                break Err(error);
            }
            let request = |message| Input::Request { from, connection: number, message };
            self.input(batch.drain(..).map(request));
            while sender.unsent() > UNSENT || self.under_way() > UNDER_WAY {
                tokio::time::sleep(PAUSE).await;
            }
        };
        sender.end();
        if let Ok(mut inner) = self.inner.lock() {
            inner.connections.remove(&number);
        }
        ended
    }

    fn under_way(&self) -> usize {
        self.inner.lock().map_or(0, |inner| inner.machine.under_way())
    }

    fn input(self: &Arc<Self>, inputs: impl IntoIterator<Item = Input>) {
        // A thread that has panicked with the machine has spoilt it: nobody is answered any more.
        let Ok(mut inner) = self.inner.lock() else { return };
        let mut out = Outbox::default();
        inputs.into_iter().for_each(|input| inner.machine.on(input, &mut out));
        let mut senders = Vec::new();
        for (connection, reply) in out.replies {
            if let Some(sender) = inner.connections.get(&connection)
                && sender.queue(reply).is_ok()
            {
                senders.push((connection, sender.clone()));
            }
        }
        drop(inner);
        senders.sort_unstable_by_key(|(connection, _)| *connection);
        senders.dedup_by_key(|(connection, _)| *connection);
        for (_, sender) in senders {
            // It fails with the connection, of which its own task hears.
            let _ = sender.flush();
        }
        for (id, io) in out.io {
            let server = Arc::clone(self);
            tokio::task::spawn_blocking(move || server.work(id, io));
        }
    }

    fn work(self: &Arc<Self>, id: IoId, io: Io) {
        let result = match io {
            Io::Request(request) => self.store.execute(request),
            Io::SyncRemoved => self.store.sync_removed(),
        };
        self.input([Input::Done { id, result }]);
    }
}

/// How a metadata server calls itself to data servers.
pub fn asker(number: ServerId) -> ClientId {
    ClientId(number.0.into())
}
