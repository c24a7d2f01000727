//! The page cache of the kernel: which pages of files and directory listings it may keep.
//! It uses them without asking, so a lease must cover them while the file is open. At each open the
//! kernel learns whether older pages are still valid.

use espalier_proto::{Attr, Ino, Time};

use super::{Cache, Users};

/// Margin in ms: a lease that ends within it covers no pages, since the kernel needs time to drop
/// them. Clients tick more often than that.
pub(crate) const SOON_MS: u64 = 1_000;

/// The pages of an inode that a kernel may have cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pages {
    #[default]
    Nothing,
    /// Pages that are valid as long as the lease lasts.
    Leased,
    /// Pages from before the lease ended, with the state of the file at that time, if known.
    Before(Option<Stamp>),
}

/// Two equal stamps of a file mean equal contents.
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
    /// The lease has ended; `attr` was cached at that time.
    pub(super) fn lapse(&mut self, attr: Option<&Attr>) {
        if *self == Self::Leased {
            *self = Self::Before(attr.map(Stamp::of));
        }
    }
}

impl Cache {
    /// True if the users are a kernel with a page cache.
    pub fn has_kernel(&self) -> bool {
        self.users == Users::Report
    }

    /// True if servers grant leases to this client.
    pub fn has_leases(&self) -> bool {
        self.has_leases
    }

    /// The epoch: counts the messages received from servers.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn next_epoch(&mut self) {
        self.epoch += 1;
    }

    /// A kernel receives pages that it requested in epoch `requested_at`. Returns how long it may
    /// cache them, in ms.
    pub fn note_kernel_pages(&mut self, ino: Ino, requested_at: u64, now: u64) -> u64 {
        let Some(record) = self.records.get_mut(&ino) else { return 0 };
        // Data requested before the lease began may have changed before it began.
        if record.contents_lease <= now + SOON_MS || record.since > requested_at {
            record.pages = Pages::Before(None);
            let is_covered = record.data > now + SOON_MS && record.data_since <= requested_at;
            return if is_covered { record.data - now } else { 0 };
        }
        if record.pages == Pages::Nothing {
            record.pages = Pages::Leased;
        }
        record.contents_lease - now
    }

    /// True if a lease covers pages that were requested in epoch `requested_at`.
    pub fn covers_pages(&self, ino: Ino, requested_at: u64, now: u64) -> bool {
        let Some(record) = self.records.get(&ino) else { return false };
        let is_covered = |until, since| until > now + SOON_MS && since <= requested_at;
        is_covered(record.contents_lease, record.since) || is_covered(record.data, record.data_since)
    }

    /// Records a lease on a file's bytes.
    pub fn data_leased(&mut self, ino: Ino, until: u64, now: u64) {
        if let Some(record) = self.records.get_mut(&ino) {
            if record.data <= now {
                record.data_since = self.epoch;
            }
            record.data = record.data.max(until);
        }
    }

    /// Ends the lease on a file's bytes.
    pub fn lose_data(&mut self, ino: Ino) {
        if let Some(record) = self.records.get_mut(&ino) {
            record.data = 0;
        }
    }

    /// Until when a kernel may cache the pages of an inode; 0: it may not.
    pub fn pages_until(&self, ino: Ino) -> u64 {
        self.records.get(&ino).map_or(0, |record| record.contents_lease.max(record.data))
    }

    /// True if the inode has ever been leased; otherwise the server will not lease it.
    pub fn was_leased(&self, ino: Ino) -> bool {
        self.records.get(&ino).is_some_and(|record| record.since > 0)
    }

    /// Handles an open: returns true if the kernel's cached pages are valid. If not, the kernel
    /// drops them; [`Self::note_kernel_pages`] covers the next ones.
    pub fn keeps_pages(&mut self, ino: Ino, now: u64) -> bool {
        let stamp = self.attr(ino, now).as_ref().map(Stamp::of);
        let Some(record) = self.records.get_mut(&ino) else { return false };
        let is_covered = record.contents_lease > now + SOON_MS;
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

    /// The kernel has dropped the pages.
    pub fn lose_pages(&mut self, ino: Ino) {
        if let Some(record) = self.records.get_mut(&ino) {
            (record.pages, record.data) = (Pages::Nothing, 0);
        }
    }

    /// Extends the leases on an inode until `until`.
    pub fn renewed(&mut self, ino: Ino, until: u64, now: u64) {
        if self.records.contains_key(&ino) {
            self.renew(ino, until, now);
        }
    }
}
