//! Invalidation: revoked leases, and what the client's own calls have changed.

use alloc::vec::Vec;

use espalier_proto::{Ino, Lease, Name, Rank, XattrPresence};

use super::record::KnownName;
use super::{Cache, Users};
use crate::locations::Locations;

impl Cache {
    /// Handles the revocation of a lease.
    pub fn revoke(&mut self, lease: &Lease) {
        match lease {
            Lease::Name { dir, name } => self.doubt(*dir, name),
            Lease::Inode { ino } => self.drop_lease(*ino),
            Lease::Contents { dir } => self.drop_contents(*dir),
            Lease::Exclusive { dir } => self.revoke_exclusive(*dir),
            Lease::Data { ino } => self.lose_data(*ino),
            Lease::Unannounced { .. } => {}
        }
    }

    /// An inode has changed. What its lease covers of a directory has not: calls of this client
    /// that change it drop the lease, and those of others revoke it.
    pub fn touched(&mut self, ino: Ino) {
        self.listings.lose(ino);
        self.contents.lose(ino);
        if let Some(record) = self.records.get_mut(&ino) {
            record.is_outdated = true;
        }
    }

    /// Extended attributes of an inode have changed that are no access control lists. Its names
    /// stay. A policy may end write-back; the server grants the exclusive lease anew.
    pub(super) fn doubt_xattrs(&mut self, ino: Ino) {
        let Some(record) = self.records.get_mut(&ino) else { return };
        record.exclusive = 0;
        if let Some(attr) = &mut record.attr
            && attr.xattrs == XattrPresence::None
        {
            attr.xattrs = XattrPresence::NoAcl;
        }
    }

    /// Invalidates everything.
    pub fn distrust(&mut self) {
        self.distrust_those(|_| true);
    }

    /// Invalidates everything that a rank has returned.
    pub(crate) fn distrust_rank(&mut self, rank: Rank, locations: &Locations) {
        self.distrust_those(|ino| locations.of(*ino) == rank);
    }

    fn distrust_those(&mut self, is_one: impl Fn(&Ino) -> bool) {
        let inos: Vec<Ino> = self.records.keys().copied().filter(is_one).collect();
        for ino in inos {
            self.lose_data(ino);
            self.drop_lease(ino);
        }
    }

    /// The server asks the client to forget an inode.
    pub fn recall(&mut self, ino: Ino) {
        self.drop_lease(ino);
        if self.users == Users::AtOnce
            && let Some(record) = self.records.get_mut(&ino)
            && record.lookups > 0
        {
            self.forgotten.push((ino, core::mem::take(&mut record.lookups)));
        }
    }

    /// The binding of a name is unknown.
    pub(super) fn doubt(&mut self, dir: Ino, name: &Name) {
        self.listings.lose(dir);
        let Some(record) = self.records.get_mut(&dir) else { return };
        if record.is_listed() {
            if record.names.insert(name.clone(), KnownName::LAPSED).is_none() {
                self.names += 1;
                self.bound_names(dir);
            }
        } else if record.names.remove(name).is_some() {
            self.names -= 1;
        }
    }

    /// A name has been removed.
    pub(super) fn unbind(&mut self, dir: Ino, name: &Name) {
        self.listings.lose(dir);
        if let Some(record) = self.records.get_mut(&dir)
            && record.names.remove(name).is_some()
        {
            self.names -= 1;
        }
    }

    /// The lease on a directory's contents has ended.
    pub(super) fn drop_contents(&mut self, dir: Ino) {
        self.listings.lose(dir);
        if let Some(record) = self.records.get_mut(&dir) {
            self.names -= record.drop_contents();
        }
    }

    pub(super) fn drop_lease(&mut self, ino: Ino) {
        self.listings.lose(ino);
        self.contents.lose(ino);
        let Some(record) = self.records.get_mut(&ino) else { return };
        self.names -= record.drop_lease();
        if self.users == Users::Report && record.users == 0 {
            self.remove(ino);
        }
    }
}
