//! Runs the balancing policy: each decision has a thread of its own, since a policy may take long.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use espalier_meta::{DecisionRequest, Input, IoDone, IoId};
use espalier_proto::Errno;

use super::machine::Server;

/// Time after which a policy is stopped.
const TIME_LIMIT: Duration = Duration::from_secs(1);

impl Server {
    /// Decides in the background what the rank moves. Returns a failure to begin.
    pub(super) fn decide(
        &self,
        id: IoId,
        request: Box<DecisionRequest>,
    ) -> Option<(IoId, Result<IoDone, Errno>)> {
        let (server, began) = (self.own_handle.clone(), Instant::now());
        let decide = move || {
            let out_of_time = move || began.elapsed() > TIME_LIMIT;
            let decision =
                catch_unwind(AssertUnwindSafe(|| espalier_rank_balancer::decide(&request, out_of_time)));
            let result = decision.map(|decision| IoDone::Decided(Box::new(decision))).map_err(|_| Errno::EIO);
            if let Some(server) = server.upgrade() {
                server.feed(Input::Done { id, result });
            }
        };
        let error = std::thread::Builder::new().name("balancer".into()).spawn(decide).err()?;
        tracing::warn!(%error, "cannot start a thread for the balancer");
        Some((id, Err(Errno::EAGAIN)))
    }
}
