//! A server: a store's machine behind a socket, for the clients of a cluster.

mod connection;
mod machine;
mod rights;
mod subtree;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use espalier_net::{Acceptor, Limits, Security};
use espalier_proto::{ClusterId, Errno, Ino};

use crate::control::{self, Status, Told};
use crate::error::Error;
use crate::volume::Volume;
use crate::watch::{MachineFigures, MetricsAddress, MetricsServer, Watch};
use connection::{Gate, accept};
use machine::Server;
pub use rights::{Access, Rights};

/// How a store is served.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    pub listen: SocketAddr,
    pub security: Security,
    pub limits: Limits,
    pub access: Access,
    /// A client that is silent for so many milliseconds loses its session.
    pub session_ms: u32,
    pub max_connections: usize,
    /// Threads that serve requests.
    pub threads: usize,
    pub metrics: Option<MetricsAddress>,
    /// How long an operation may take without being logged as slow; `None`: as long as it likes.
    pub slow: Option<Duration>,
    /// How long stopping may take to write out what has not been written.
    pub drain: Duration,
}

/// Serves a store until the process is told to end. `ready` is called with the address once clients may connect.
pub fn serve(
    volume: Volume,
    store: &Path,
    options: ServeOptions,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), Error> {
    let ServeOptions { listen, security, limits, access, session_ms, max_connections, threads, .. } = options;
    let io = |what: &str| {
        let what = what.to_string();
        move |source| Error::Io { what, source }
    };
    // One for each thread: whenever one of several threads of a runtime finds work, it wakes another to look for more.
    let runtimes = (0..threads.max(1))
        .map(|_| tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build())
        .collect::<Result<Vec<_>, _>>()
        .map_err(io("cannot start threads"))?;
    let runtime = runtimes[0].handle().clone();
    let metrics = options.metrics.as_ref().map(MetricsServer::bind).transpose()?;
    let listener = runtime
        .block_on(tokio::net::TcpListener::bind(listen))
        .map_err(io(&format!("cannot listen on {listen}: is another server running there?")))?;
    let address = listener.local_addr().map_err(io("the listening socket has no address"))?;
    let Volume { disk, meta, superblock, .. } = volume;
    let watch = Watch::new(threads, options.slow);
    let (server, background) = Server::new(meta, disk, watch);
    let server = Arc::new(server);
    let gate = Arc::new(Gate {
        server: Arc::clone(&server),
        acceptor: Acceptor::new(security, limits),
        cluster: ClusterId(superblock.uuid.into_bytes()),
        incarnation: crate::clock::incarnation(),
        session_ms,
        access,
        max_connections,
        secret: superblock.hash_key,
        workers: runtimes.iter().map(|runtime| runtime.handle().clone()).collect(),
        open: AtomicUsize::new(0),
        handshakes: Gate::turnstile(),
    });
    let control = control::Listener::of_store(store);
    let served = Served { server: Arc::clone(&server), url: format!("espalier://{address}/") };
    std::thread::scope(|scope| {
        let (stop_clock, stopped) = channel::<()>();
        scope.spawn(|| server.run_background(background));
        scope.spawn({
            let server = &server;
            move || {
                server.tick();
                while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(Duration::from_secs(1)) {
                    server.tick();
                }
            }
        });
        if let Some(metrics) = &metrics {
            scope.spawn(|| metrics.serve(|| server.exposition()));
        }
        let told = control.as_ref().map(|control| {
            scope.spawn(|| control.serve(|words| control::answer(&superblock, &served, words)))
        });
        let accepting = runtime.spawn(accept(gate, listener));
        ready(address);
        runtime.block_on(told_to_end());
        accepting.abort();
        // Requests that are under way are answered; those that come later are sent again to whoever serves next.
        let drained = server.drain(options.drain);
        for runtime in runtimes {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
        drop(stop_clock);
        server.errands.stop();
        if let (Some(control), Some(told)) = (&control, told) {
            control.stop();
            let _ = told.join();
        }
        if let Some(metrics) = &metrics {
            metrics.stop();
        }
        if drained { Ok(()) } else { Err(Error::Unwritten(server.state().1.unwrap_or(Errno::EIO))) }
    })
}

/// Waits for a signal that asks the process to end.
async fn told_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    let (Ok(mut interrupt), Ok(mut terminate)) = signals else {
        tracing::warn!("cannot handle signals: only a kill will end this server");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// What tells how a server is.
struct Served {
    server: Arc<Server>,
    url: String,
}

impl Told for Served {
    fn state(&self) -> (u64, Option<Errno>) {
        self.server.state()
    }

    fn figures(&self) -> MachineFigures {
        self.server.figures()
    }

    fn watch(&self) -> &Watch {
        &self.server.errands.watch
    }

    fn path_of(&self, ino: Ino) -> Option<String> {
        self.server.path_of(ino)
    }

    fn complete(&self, status: &mut Status) {
        status.url = Some(self.url.clone());
        status.clients = Some(self.server.connections());
    }
}
