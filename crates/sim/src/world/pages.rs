//! What a client's kernel keeps of what files hold: it reads that without asking. Whole files are kept, as they were read last; a kernel keeps
//! what it writes, too, but here it is dropped, as is what was being read meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use espalier_client::{Answer, Call};
use espalier_proto::{Errno, Ino, Request};

/// See the module's description.
#[derive(Debug, Default)]
pub struct Pages {
    kept: BTreeMap<Ino, Bytes>,
    /// Calls that read so.
    reading: BTreeMap<u64, Ino>,
    /// Files that somebody has open past the cache, for others write to them.
    direct: BTreeSet<Ino>,
}

impl Pages {
    /// The answer to a call, if it needs nobody else.
    pub fn answer(&self, call: &Call<'_>) -> Option<Answer> {
        let Call::Read { ino, offset, size, .. } = *call else { return None };
        let bytes = self.kept.get(&ino)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        Some(Answer::Bytes(bytes[from..].iter().copied().take(size as usize).collect()))
    }

    /// A call is made.
    pub fn called(&mut self, number: u64, call: &Call<'_>) {
        match call {
            Call::Read { ino, offset: 0, .. } if !self.direct.contains(ino) => {
                self.reading.insert(number, *ino);
            }
            Call::Write { ino, .. } | Call::Allocate { ino, .. } | Call::Copy { to: ino, .. } => {
                self.drop(*ino)
            }
            Call::Request(Request::SetAttr { ino, .. } | Request::Open { ino, .. }) => {
                self.drop_changed(*ino, call)
            }
            // It may empty any.
            Call::Request(Request::Create { .. }) => self.drop_all(),
            _ => {}
        }
    }

    /// One has been answered; what it tells of a file may be kept for so many milliseconds.
    pub fn answered(&mut self, number: u64, call: &Call<'_>, result: &Result<Answer, Errno>, lease_ms: u64) {
        let reading = self.reading.remove(&number);
        match (call, result) {
            (Call::Read { size, .. }, Ok(Answer::Bytes(bytes))) => {
                let is_whole = bytes.len() < *size as usize;
                if let Some(ino) = reading.filter(|_| is_whole && lease_ms > 0) {
                    self.kept.insert(ino, bytes.clone());
                }
            }
            (_, Ok(Answer::Opened(opening) | Answer::Created(_, opening))) => {
                if opening.shared {
                    self.direct.insert(opening.ino);
                } else {
                    self.direct.remove(&opening.ino);
                }
                if opening.shared || !opening.keep {
                    self.drop(opening.ino);
                }
            }
            (Call::Write { ino, .. } | Call::Allocate { ino, .. } | Call::Copy { to: ino, .. }, _) => {
                self.drop(*ino)
            }
            (Call::Request(Request::SetAttr { ino, .. }), _) => self.drop_changed(*ino, call),
            _ => {}
        }
    }

    fn drop_changed(&mut self, ino: Ino, call: &Call<'_>) {
        let resizes = match call {
            Call::Request(Request::SetAttr { set, .. }) => set.size.is_some(),
            Call::Request(Request::Open { how, .. }) => how.truncate,
            _ => false,
        };
        if resizes {
            self.drop(ino);
        }
    }

    /// Nothing is kept of a file, nor what is being read of it.
    pub fn drop(&mut self, ino: Ino) {
        self.kept.remove(&ino);
        self.reading.retain(|_, reading| *reading != ino);
    }

    pub fn drop_all(&mut self) {
        self.kept.clear();
        self.reading.clear();
    }
}
