//! Truncations that have been done for clients' requests. A metadata server that was started anew before it had noted that asks for one once more when
//! its client does; what others have written meanwhile, who have seen the file short, is to stay.

use alloc::collections::{BTreeSet, VecDeque};

use espalier_proto::{ClientId, Ino, RequestId};

/// So many of the last ones are remembered.
const MOST: usize = 4096;

/// Of which file, and for whose request.
pub(crate) type Truncation = (Ino, ClientId, RequestId);

/// See the module's description.
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
