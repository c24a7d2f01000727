//! Truncations already done for client requests. A metadata server that restarted before it
//! recorded one repeats it when its client does; later writes must survive that.

use alloc::collections::{BTreeSet, VecDeque};

use espalier_proto::{ClientId, Ino, RequestId};

/// Number of truncations remembered.
const MOST: usize = 4096;

/// File and client request.
pub(crate) type Truncation = (Ino, ClientId, RequestId);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Truncated {
    done: BTreeSet<Truncation>,
    order: VecDeque<Truncation>,
}

impl Truncated {
    pub fn is_done(&self, truncation: Truncation) -> bool {
        self.done.contains(&truncation)
    }

    pub fn done(&mut self, truncation: Truncation) {
        if self.done.insert(truncation) {
            self.order.push_back(truncation);
        }
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.done.remove(&oldest);
        }
    }
}
