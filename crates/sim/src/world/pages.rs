//! Model of a client kernel's page cache. It caches whole files as last read. Unlike in a kernel, a
//! write drops the file, including data that is being read.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use espalier_client::{Answer, Call, RangeCall};
use espalier_proto::{Errno, Ino, RangeOp, Request};

/// See the module description.
#[derive(Debug, Default)]
pub struct Pages {
    retained: BTreeMap<Ino, Bytes>,
    /// Pending calls that read a file for the cache.
    reading: BTreeMap<u64, Ino>,
    /// Files that are open without caching, since other clients write to them.
    direct: BTreeSet<Ino>,
}

impl Pages {
    /// The cached reply to a call, if any.
    pub fn answer(&self, call: &Call<'_>) -> Option<Answer> {
        let Call::Range(RangeCall { ino, op: RangeOp::Read { offset, size }, .. }) = *call else {
            return None;
        };
        let bytes = self.retained.get(&ino)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        Some(Answer::Bytes(bytes[from..].iter().copied().take(size as usize).collect()))
    }

    /// A call is made.
    pub fn called(&mut self, number: u64, call: &Call<'_>) {
        match call {
            Call::Range(RangeCall { ino, op: RangeOp::Read { offset: 0, .. }, .. })
                if !self.direct.contains(ino) =>
            {
                self.reading.insert(number, *ino);
            }
            Call::Range(_) => self.drop_written(call),
            Call::Request(Request::SetAttr { ino, .. } | Request::Open { ino, .. }) => {
                self.drop_changed(*ino, call)
            }
            // The create may truncate any file.
            Call::Request(Request::Create { .. }) => self.drop_all(),
            _ => {}
        }
    }

    /// A call is answered; the file's data may be cached for `lease_ms` milliseconds.
    pub fn answered(&mut self, number: u64, call: &Call<'_>, result: &Result<Answer, Errno>, lease_ms: u64) {
        let reading = self.reading.remove(&number);
        match (call, result) {
            (Call::Range(RangeCall { op: RangeOp::Read { size, .. }, .. }), Ok(Answer::Bytes(bytes))) => {
                let is_whole = bytes.len() < *size as usize;
                if let Some(ino) = reading.filter(|_| is_whole && lease_ms > 0) {
                    self.retained.insert(ino, bytes.clone());
                }
            }
            (_, Ok(Answer::Opened(opening) | Answer::Created(_, opening))) => {
                if opening.shared {
                    self.direct.insert(opening.ino);
                } else {
                    self.direct.remove(&opening.ino);
                }
                // A truncating open also drops what was read while it was under way.
                if opening.shared || !opening.keep_cache || resizes(call) {
                    self.drop(opening.ino);
                }
            }
            (Call::Range(_), _) => self.drop_written(call),
            (Call::Request(Request::SetAttr { ino, .. }), _) => self.drop_changed(*ino, call),
            _ => {}
        }
    }

    fn drop_written(&mut self, call: &Call<'_>) {
        if let Some(ino) = call.writes() {
            self.drop(ino);
        }
    }

    fn drop_changed(&mut self, ino: Ino, call: &Call<'_>) {
        if resizes(call) {
            self.drop(ino);
        }
    }

    /// Drops the cached data of a file, including data that is being read.
    pub fn drop(&mut self, ino: Ino) {
        self.retained.remove(&ino);
        self.reading.retain(|_, reading| *reading != ino);
    }

    pub fn drop_all(&mut self) {
        self.retained.clear();
        self.reading.clear();
    }
}

/// True if the call sets a file's size.
fn resizes(call: &Call<'_>) -> bool {
    match call {
        Call::Request(Request::SetAttr { set, .. }) => set.size.is_some(),
        Call::Request(Request::Open { how, .. } | Request::Create { open: Some(how), .. }) => how.truncate,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use espalier_client::{Opening, Payload};
    use espalier_proto::{Access, OpenHow, Reads};

    use super::*;

    /// As Linux, which drops a file's pages when it gets the reply to an open with `O_TRUNC`.
    #[test]
    fn truncating_open_drops_what_is_read_meanwhile() {
        let ino = Ino(2);
        let how = |truncate| OpenHow {
            access: Access::READ | Access::WRITE,
            kill_suid_gid: false,
            truncate,
            sync: false,
            append: false,
            reads: Reads::Server,
        };
        let op = RangeOp::Read { offset: 0, size: 9 };
        let data = Payload::Borrowed(&[]);
        let read = Call::Range(RangeCall { ino, op, data, noatime: false, kill_suid_gid: false });
        let opening = Opening { ino, accessed: true, shared: false, keep_cache: true, passthrough: false };
        for truncates in [false, true] {
            let mut pages = Pages::default();
            let open = Call::Request(Request::Open { ino, how: how(truncates) });
            pages.called(1, &open);
            pages.called(2, &read);
            pages.answered(2, &read, &Ok(Answer::Bytes(b"old"[..].into())), 1000);
            assert!(pages.answer(&read).is_some());
            pages.answered(1, &open, &Ok(Answer::Opened(opening)), 1000);
            assert_eq!(pages.answer(&read).is_none(), truncates);
        }
    }
}
