//! What a run may contain, which decides what can be checked.

use espalier_policy::Policy;

use crate::Nanos;

/// Scope of the check, and guarantees of the configuration.
#[derive(Clone, Debug)]
pub struct Rules {
    pub strip_bytes: u32,
    /// There are several ranks, which exchange usage deltas with delay.
    pub several_ranks: bool,
    /// Directories may be partitioned: their names may be at other ranks than they are.
    pub splits: bool,
    /// Strips are on several data servers.
    pub scattered: bool,
    /// The server's defaults for directories without a policy.
    pub server: Policy,
    /// The policies of directories change during the run.
    pub live: bool,
    /// Files may have set-id bits and capabilities.
    pub privileges: bool,
    /// Time after the reply at which a change is durable; zero: at the reply. `None`: no losses of
    /// power.
    pub durable: Option<Nanos>,
    /// Term for which clients cache names and attributes without a lease.
    pub cached_views: Option<Nanos>,
}
