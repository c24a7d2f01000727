//! A mount of a cluster's file system: the kernel's requests become a server's.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use espalier_fuse::Transport;
use espalier_meta::Atime;

use crate::calls::Calls;
use crate::door::{FuseDoor, Mounted};
use crate::error::Error;
use crate::mount::{MountOptions, set_notifiers, start_session};
use crate::remote::Remote;
use crate::servers::{Servers, keep_connected};

/// So often the server is told what it need not know at once, and revocations are looked after.
const TICK: Duration = Duration::from_millis(50);
/// For what is still to be told when it is unmounted.
const FAREWELL: Duration = Duration::from_secs(5);

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
    set_notifiers(&mut session, &door)?;
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
    let told = runtime.block_on(async { tokio::time::timeout(FAREWELL, remote.farewell()).await });
    if told.is_err() {
        tracing::warn!("the server could not be told that this client goes; it will notice");
    }
    runtime.shutdown_background();
    Ok(outcome?)
}
