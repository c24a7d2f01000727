use std::collections::BTreeMap;
use std::sync::Arc;

use espalier_proto::{AllocateMode, Errno, SeekWhat, StreamStat, Time};

use crate::StoreError;

const PAGE: u64 = 4096;

/// The bytes of a stream. Ranges that were never written are holes and take no memory.
#[derive(Clone, Default)]
pub(super) struct StreamBytes {
    size: u64,
    /// Bytes after the size are zero.
    pages: BTreeMap<u64, Arc<[u8; PAGE as usize]>>,
    pub mtime: Time,
}

impl StreamBytes {
    pub(super) fn stat(&self) -> StreamStat {
        let blocks = self.pages.len() as u64 * (PAGE / 512);
        StreamStat { exists: true, size: self.size, blocks, mtime: self.mtime, ..StreamStat::default() }
    }

    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let length = self.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..length];
        buf.fill(0);
        for (page, start, end, at) in pieces(offset, length) {
            if let Some(bytes) = self.pages.get(&page) {
                buf[at..at + (end - start)].copy_from_slice(&bytes[start..end]);
            }
        }
        length
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        let end = end(offset, data.len() as u64)?;
        for (page, start, end, at) in pieces(offset, data.len()) {
            self.page(page)[start..end].copy_from_slice(&data[at..at + (end - start)]);
        }
        if !data.is_empty() {
            self.size = self.size.max(end);
        }
        Ok(())
    }

    pub(super) fn truncate(&mut self, size: u64) -> Result<(), StoreError> {
        end(size, 0)?;
        if size < self.size {
            self.zero(size, self.size);
        }
        self.size = size;
        Ok(())
    }

    pub(super) fn allocate(
        &mut self,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    ) -> Result<(), StoreError> {
        let end = end(offset, length)?;
        if length == 0 {
            return Err(StoreError::Refused(Errno::EINVAL));
        }
        let keep_size = mode.contains(AllocateMode::KEEP_SIZE);
        let what = mode - AllocateMode::KEEP_SIZE;
        if what == AllocateMode::ZERO_RANGE || (what == AllocateMode::PUNCH_HOLE && keep_size) {
            self.zero(offset, end);
        } else if !what.is_empty() {
            return Err(StoreError::Refused(Errno::EOPNOTSUPP));
        }
        if !keep_size {
            self.size = self.size.max(end);
        }
        Ok(())
    }

    pub(super) fn seek(&self, offset: u64, what: SeekWhat) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        let first = offset / PAGE;
        let found = match what {
            SeekWhat::Data => {
                self.pages.range(first..).next().map(|(page, _)| page * PAGE).filter(|&at| at < self.size)?
            }
            SeekWhat::Hole => {
                let mut page = first;
                while self.pages.contains_key(&page) {
                    page += 1;
                }
                (page * PAGE).min(self.size)
            }
        };
        Some(found.max(offset))
    }

    fn zero(&mut self, from: u64, to: u64) {
        let (first_whole, end_whole) = (from.div_ceil(PAGE), to / PAGE);
        if first_whole < end_whole {
            let inside: Vec<u64> = self.pages.range(first_whole..end_whole).map(|(&page, _)| page).collect();
            for page in inside {
                self.pages.remove(&page);
            }
        }
        for page in [from / PAGE, to / PAGE] {
            if self.pages.contains_key(&page) {
                let (start, end) = (from.max(page * PAGE), to.min((page + 1) * PAGE));
                if start < end {
                    self.page(page)[(start - page * PAGE) as usize..(end - page * PAGE) as usize].fill(0);
                }
            }
        }
    }

    fn page(&mut self, page: u64) -> &mut [u8; PAGE as usize] {
        Arc::make_mut(self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE as usize])))
    }
}

/// Splits a range at page boundaries: page, start and end in the page, offset in the range.
fn pieces(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let (page, start) = ((offset + done as u64) / PAGE, ((offset + done as u64) % PAGE) as usize);
        let end = (start + length - done).min(PAGE as usize);
        let at = done;
        done += end - start;
        Some((page, start, end, at))
    })
}

/// Checks that the end fits the signed offsets of system calls.
fn end(offset: u64, length: u64) -> Result<u64, StoreError> {
    let end = offset.checked_add(length).filter(|&end| i64::try_from(end).is_ok());
    end.ok_or(StoreError::Refused(Errno::EFBIG))
}
