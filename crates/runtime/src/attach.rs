//! A mount of a cluster's file system: the kernel's requests become a server's, and connections that are lost are made
//! again.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use espalier_fuse::Transport;
use espalier_meta::Atime;
use espalier_net::{ConnectError, Connection, Limits, Receiver, Security, connect};
use espalier_proto::{ClientId, ClusterId, FromClient, FromServer, Hello, Welcome};

use crate::calls::Calls;
use crate::door::{FuseDoor, Mounted};
use crate::error::Error;
use crate::mount::{MountOptions, set_notifier, start_session};
use crate::remote::Remote;

/// Where a file system is served, and how to show who asks.
#[derive(Clone, Debug)]
pub struct Servers {
    /// As `HOST:PORT`; each serves the same.
    pub addresses: Vec<String>,
    pub security: Security,
    pub limits: Limits,
    /// Unlike any other client's.
    pub client: ClientId,
}

/// Before a lost connection is tried again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// So often the server is told what it need not know at once, and revocations are looked after.
const TICK: Duration = Duration::from_millis(50);
/// For what is still to be told when it is unmounted.
const FAREWELL: Duration = Duration::from_secs(5);

type Conversation = (Welcome, Connection<FromServer, FromClient>);

/// Mounts and serves until somebody unmounts. `ready` is called once the mount point is usable.
pub fn mount_servers(
    servers: &Servers,
    source: &str,
    mountpoint: &Path,
    options: &MountOptions,
    ready: impl FnOnce(),
) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|source| Error::Io { what: "cannot start threads".into(), source })?;
    // Before mounting, so that whoever may not connect is told so.
    let (welcome, connection) = runtime.block_on(servers.reach(None))?;
    // The thread that has an answer writes it to the kernel, which io_uring would not allow.
    let transport = options.transport.or(Some(Transport::Queues));
    let options = MountOptions { transport, ..options.clone() };
    let (mut session, kernel) = start_session(source, mountpoint, &options, true)?;
    let door = FuseDoor::new(kernel.default_permissions, Atime::Relative, session.granted());
    set_notifier(&mut session, &door)?;
    let remote = Arc::new(Remote::new(door));
    remote.connected(&welcome, connection.sender);
    runtime.spawn(keep_connected(Arc::clone(&remote), servers.clone(), connection.receiver));
    runtime.spawn({
        let remote = Arc::clone(&remote);
        async move {
            let mut interval = tokio::time::interval(TICK);
            loop {
                interval.tick().await;
                remote.tick();
                remote.door().tick();
            }
        }
    });
    ready();
    let mounted = Mounted {
        calls: Arc::clone(&remote),
        may_pass_through: false,
        is_shared: true,
        transport: options.transport,
    };
    let outcome = session.run(options.threads, Arc::new(mounted));
    let told = runtime.block_on(tokio::time::timeout(FAREWELL, remote.farewell()));
    if told.is_err() {
        tracing::warn!("the server could not be told that this client goes; it will notice");
    }
    runtime.shutdown_background();
    Ok(outcome?)
}

impl Servers {
    /// Connects to the first server that answers.
    async fn reach(&self, incarnation: Option<u64>) -> Result<Conversation, ConnectError> {
        let mut last = ConnectError::Address(String::new());
        for address in &self.addresses {
            let hello = Hello { cluster: ClusterId::ANY, client: self.client, incarnation };
            match connect(address, &self.security, &self.limits, hello).await {
                Ok(conversation) => return Ok(conversation),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

async fn keep_connected(remote: Arc<Remote<FuseDoor>>, servers: Servers, mut receiver: Receiver<FromServer>) {
    let mut batch = Vec::new();
    loop {
        let error = loop {
            match receiver.next(&mut batch).await {
                Ok(_) => remote.received(batch.drain(..)),
                Err(error) => break error,
            }
        };
        tracing::warn!(%error, "the connection to the server is lost: connecting again");
        remote.disconnected();
        let mut pause = FIRST_PAUSE;
        loop {
            match servers.reach(remote.incarnation()).await {
                Ok((welcome, connection)) => {
                    tracing::info!(resumed = welcome.resumed, "connected again");
                    receiver = connection.receiver;
                    remote.connected(&welcome, connection.sender);
                    break;
                }
                Err(error) => tracing::debug!(%error, "not connected yet"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
