//! Notices the end of other servers' processes.
//!
//! A connection to each shows that it runs. When it has ended, and then nothing listens at the
//! address, or another process does, the server has ended, too: the kernel closes the sockets of a
//! process that ends. A server that is only silent is left to its lease.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use espalier_meta::failover::{ClusterMap, InstanceId};
use espalier_net::{ConnectError, Connection, Limits, Security};
use espalier_proto::ClientId;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::ranks::RankStarter;
use crate::addresses;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Watches the other servers of the cluster map.
pub struct Liveness {
    own: InstanceId,
    runtime: Handle,
    security: Security,
    limits: Limits,
    ended: Arc<dyn Fn(InstanceId) + Send + Sync>,
    tasks: BTreeMap<InstanceId, AbortHandle>,
}

impl Liveness {
    /// `ended` is called when an instance has ended.
    pub fn new(
        own: InstanceId,
        starter: &RankStarter,
        ended: impl Fn(InstanceId) + Send + Sync + 'static,
    ) -> Self {
        let (security, limits) = (starter.options.security.clone(), starter.options.limits.clone());
        let (runtime, ended) = (starter.runtime.clone(), Arc::new(ended));
        Self { own, runtime, security, limits, ended, tasks: BTreeMap::new() }
    }

    /// Watches the servers of this map.
    pub fn update(&mut self, map: &ClusterMap) {
        self.tasks.retain(|instance, task| {
            let is_listed = map.server(*instance).is_some();
            if !is_listed {
                task.abort();
            }
            is_listed
        });
        let own = self.own;
        for server in map.servers.iter().filter(|server| server.instance != own) {
            let Self { runtime, security, limits, ended, tasks, .. } = self;
            tasks.entry(server.instance).or_insert_with(|| {
                let (security, limits) = (security.clone(), limits.clone());
                let ended = Arc::clone(ended);
                let (instance, address) = (server.instance, server.address.clone());
                let watching = async move {
                    wait_for_end(instance, &address, &security, &limits, ClientId(own.0)).await;
                    ended(instance);
                };
                runtime.spawn(watching).abort_handle()
            });
        }
    }
}

impl Drop for Liveness {
    fn drop(&mut self) {
        self.tasks.values().for_each(AbortHandle::abort);
    }
}

/// Returns when the instance was seen, and its process has ended.
async fn wait_for_end(
    instance: InstanceId,
    address: &str,
    security: &Security,
    limits: &Limits,
    own: ClientId,
) {
    let (mut was_seen, mut pause) = (false, FIRST_PAUSE);
    loop {
        match addresses::ask(address, security, limits, own).await {
            Ok((welcome, connection)) if welcome.incarnation == instance.0 => {
                (was_seen, pause) = (true, FIRST_PAUSE);
                let Connection { mut receiver, sender: _sender } = connection;
                let mut batch = Vec::new();
                while receiver.next(&mut batch).await.is_ok() {
                    batch.clear();
                }
            }
            Ok(_) | Err(ConnectError::NoServer { .. }) if was_seen => return,
            Ok(_) => {}
            Err(error) => tracing::debug!(address, %error, "cannot reach another server"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
