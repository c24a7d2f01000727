//! The inodes of a replayed recording: their present numbers, and names by which to find them
//! again.

use std::collections::BTreeMap;

use espalier_client::Answer;
use espalier_proto::{Errno, Ino, Name, RenameFlags, Request};
use espalier_recording::{Observed, RecordedRequest};

/// Directory and name, with the recording's numbers.
type RecordedName = (Ino, Name);

/// See the module description. All keys are the recording's numbers.
#[derive(Debug, Default)]
pub(super) struct Inodes {
    root: Vec<u8>,
    now: BTreeMap<Ino, Ino>,
    names: BTreeMap<RecordedName, Ino>,
    places: BTreeMap<Ino, RecordedName>,
}

impl Inodes {
    /// Maps the recording's root to this directory.
    pub(super) fn enter(&mut self, path: &[u8], ino: Ino) {
        self.root = path.to_vec();
        self.now.insert(Ino::ROOT, ino);
    }

    /// Translates a recorded request to present numbers.
    ///
    /// # Errors
    /// `ESTALE`: an inode is unknown.
    pub(super) fn translate(&self, recorded_request: &RecordedRequest) -> Result<RecordedRequest, Errno> {
        let (mut recorded_request, mut all_known) = (recorded_request.clone(), true);
        recorded_request.each_inode(&mut |ino| match self.now.get(ino) {
            Some(now) => *ino = *now,
            None => all_known = false,
        });
        if all_known { Ok(recorded_request) } else { Err(Errno::ESTALE) }
    }

    /// Learns numbers from a recorded request, its recorded reply, and the present reply.
    pub(super) fn learn(&mut self, recorded_request: &RecordedRequest, observed: &Observed, answer: &Answer) {
        let RecordedRequest::Request(request) = recorded_request else { return };
        match (request, answer) {
            (
                Request::Lookup { dir, name }
                | Request::Create { dir, name, .. }
                | Request::Link { dir, name, .. },
                Answer::Entry(entry) | Answer::Unmeasured(entry) | Answer::Created(entry, _),
            ) => {
                if let Some(inode) = observed.inode {
                    self.bind((*dir, name.clone()), inode.ino, entry.attr.ino);
                }
            }
            (Request::TmpFile { .. }, Answer::Created(entry, _)) => {
                if let Some(inode) = observed.inode {
                    self.now.insert(inode.ino, entry.attr.ino);
                }
            }
            (Request::ReadDir { dir, .. }, Answer::Listing { entries, .. }) => {
                let now: BTreeMap<&Name, Ino> =
                    entries.iter().map(|entry| (&entry.name, entry.ino)).collect();
                for (name, inode) in &observed.entries {
                    if let Some(ino) = now.get(name) {
                        self.bind((*dir, name.clone()), inode.ino, *ino);
                    }
                }
            }
            (Request::Unlink { dir, name, .. } | Request::RmDir { dir, name, .. }, _) => {
                self.names.remove(&(*dir, name.clone()));
            }
            (Request::Rename { from_dir, from, to_dir, to, flags, .. }, _) => {
                let (from, to) = ((*from_dir, from.clone()), (*to_dir, to.clone()));
                let (moved, replaced) = (self.names.remove(&from), self.names.remove(&to));
                if let Some(ino) = moved {
                    self.put(to, ino);
                }
                if let Some(ino) = replaced.filter(|_| flags.contains(RenameFlags::EXCHANGE)) {
                    self.put(from, ino);
                }
            }
            _ => {}
        }
    }

    fn put(&mut self, place: RecordedName, ino: Ino) {
        self.names.insert(place.clone(), ino);
        self.places.insert(ino, place);
    }

    fn bind(&mut self, place: RecordedName, recorded: Ino, now: Ino) {
        self.put(place, recorded);
        self.now.insert(recorded, now);
    }

    /// The paths of the request's inodes, if all are known.
    pub(super) fn paths(&self, recorded_request: &RecordedRequest) -> Vec<Vec<u8>> {
        let paths: Option<Vec<_>> = of(recorded_request).into_iter().map(|ino| self.path(ino)).collect();
        paths.unwrap_or_default()
    }

    fn path(&self, mut ino: Ino) -> Option<Vec<u8>> {
        let mut names: Vec<&Name> = Vec::new();
        while ino != Ino::ROOT {
            let (dir, name) = self.places.get(&ino)?;
            // A directory moved below itself would cause an endless loop.
            if names.len() > self.places.len() {
                return None;
            }
            names.push(name);
            ino = *dir;
        }
        let below = names.into_iter().rev().flat_map(|name| [b"/".as_slice(), name].concat());
        Some(self.root.iter().copied().chain(below).collect())
    }

    /// Learns the numbers found by looking the paths up again.
    pub(super) fn relearn(&mut self, recorded_request: &RecordedRequest, found: &[Ino]) {
        self.now.extend(of(recorded_request).into_iter().zip(found.iter().copied()));
    }
}

fn of(recorded_request: &RecordedRequest) -> Vec<Ino> {
    let mut all = Vec::new();
    recorded_request.clone().each_inode(&mut |ino| all.push(*ino));
    all
}
