//! What a kernel keeps of what files and directories hold, for those who call: its pages. It uses them without asking, so they must be true as
//! long as somebody has the file open; whoever opens it is told whether what was kept before is so still.

use espalier_proto::{Attr, Ino, Time};

use super::{Cache, Users};

/// A lease that ends within so many milliseconds covers no pages any more: a kernel is told in time to drop them. Clients tick more than once
/// in that time.
pub(crate) const SOON_MS: u64 = 1_000;

/// What a kernel may have of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pages {
    #[default]
    Nothing,
    /// What is so as long as the lease lasts.
    Leased,
    /// What was so when the file was like this, if that is known; the lease has ended since.
    Before(Option<Stamp>),
}

/// A file of which this is the same holds the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    ctime: Time,
    size: u64,
}

impl Stamp {
    fn of(attr: &Attr) -> Self {
        Self { ctime: attr.ctime, size: attr.size }
    }
}

impl Pages {
    /// The lease has ended; these attributes were known.
    pub(super) fn lapse(&mut self, attr: Option<&Attr>) {
        if *self == Self::Leased {
            *self = Self::Before(attr.map(Stamp::of));
        }
    }
}

impl Cache {
    /// Whether those who call keep anything.
    pub fn has_kernel(&self) -> bool {
        self.users == Users::Tell
    }

    /// Whether servers give leases to this client.
    pub fn has_leases(&self) -> bool {
        self.has_leases
    }

    /// Counts what servers have said.
    pub fn turn(&self) -> u64 {
        self.turn
    }

    pub fn next_turn(&mut self) {
        self.turn += 1;
    }

    /// A kernel is told what an inode holds, for which it has asked in that turn. For how many milliseconds that may be kept.
    pub fn told_pages(&mut self, ino: Ino, asked: u64, now: u64) -> u64 {
        let Some(record) = self.records.get_mut(&ino) else { return 0 };
        // What was asked for before the lease began may have been changed before it.
        if record.lease <= now + SOON_MS || record.since > asked {
            record.pages = Pages::Before(None);
            let is_covered = record.data > now + SOON_MS && record.data_since <= asked;
            return if is_covered { record.data - now } else { 0 };
        }
        if record.pages == Pages::Nothing {
            record.pages = Pages::Leased;
        }
        record.lease - now
    }

    /// Whether what a kernel would be told now of what an inode holds it may keep.
    pub fn covers_pages(&self, ino: Ino, asked: u64, now: u64) -> bool {
        let Some(record) = self.records.get(&ino) else { return false };
        let is_covered = |until, since| until > now + SOON_MS && since <= asked;
        is_covered(record.lease, record.since) || is_covered(record.data, record.data_since)
    }

    /// There is a lease on a file's bytes until then.
    pub fn data_leased(&mut self, ino: Ino, until: u64, now: u64) {
        if let Some(record) = self.records.get_mut(&ino) {
            if record.data <= now {
                record.data_since = self.turn;
            }
            record.data = record.data.max(until);
        }
    }

    /// The lease on a file's bytes is over.
    pub fn lose_data(&mut self, ino: Ino) {
        if let Some(record) = self.records.get_mut(&ino) {
            record.data = 0;
        }
    }

    /// Until when a kernel may keep what an inode holds; 0: it may not.
    pub fn pages_until(&self, ino: Ino) -> u64 {
        self.records.get(&ino).map_or(0, |record| record.lease.max(record.data))
    }

    /// Whether a lease on an inode has ever been had: else there will be none.
    pub fn was_leased(&self, ino: Ino) -> bool {
        self.records.get(&ino).is_some_and(|record| record.since > 0)
    }

    /// An inode is opened: whether what a kernel may have kept of it is so. If not, it drops that now. What comes later is told with
    /// [`Self::told_pages`].
    pub fn keeps_pages(&mut self, ino: Ino, now: u64) -> bool {
        let stamp = self.attr(ino, now).as_ref().map(Stamp::of);
        let Some(record) = self.records.get_mut(&ino) else { return false };
        let is_covered = record.lease > now + SOON_MS;
        match record.pages {
            Pages::Leased if is_covered => true,
            Pages::Before(Some(before)) if is_covered && stamp == Some(before) => {
                record.pages = Pages::Leased;
                true
            }
            _ => {
                record.pages = Pages::Nothing;
                false
            }
        }
    }

    /// A kernel has dropped what it had kept.
    pub fn lose_pages(&mut self, ino: Ino) {
        if let Some(record) = self.records.get_mut(&ino) {
            (record.pages, record.data) = (Pages::Nothing, 0);
        }
    }

    /// A server has renewed the lease on an inode, until then.
    pub fn renewed(&mut self, ino: Ino, until: u64, now: u64) {
        if self.records.contains_key(&ino) {
            self.renew(ino, until, now);
        }
    }
}
