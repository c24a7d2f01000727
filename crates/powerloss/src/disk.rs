//! A FUSE mount with two files: `disk`, an image whose writes and flushes are recorded, and
//! `marks`, to which a workload writes lines for the record.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use espalier_fuse::{
    Attr, Entry, Filesystem, MountOptions, Op, Opened, OpenedFlags, Reply, Request, Session, Wanted,
};

use crate::record::Recorder;

const ROOT: u64 = 1;
const DISK: u64 = 2;
const MARKS: u64 = 3;
const FOREVER: Duration = Duration::from_secs(24 * 60 * 60);

const ENOENT: i32 = 2;
const EIO: i32 = 5;
const ENOSYS: i32 = 38;

struct RecordingDisk {
    image: File,
    size: u64,
    /// Held while the image changes, so that the record has the same order.
    record: Mutex<Option<Recorder>>,
}

/// Serves `image` on `mountpoint` until it is unmounted, and writes the record.
pub fn serve(image: &Path, record: &Path, mountpoint: &Path) -> Result<()> {
    let file = File::options().read(true).write(true).open(image);
    let file = file.with_context(|| format!("cannot open {}", image.display()))?;
    let size = file.metadata()?.len();
    let disk =
        Arc::new(RecordingDisk { image: file, size, record: Mutex::new(Some(Recorder::create(record)?)) });
    let options = MountOptions { subtype: "espalier-powerloss".into(), ..MountOptions::default() };
    let session = Session::mount("powerloss", mountpoint, &options, &Wanted::default())?;
    session.run(4, Arc::clone(&disk))?;
    let recorder = disk.record.lock().unwrap_or_else(PoisonError::into_inner).take();
    recorder.map_or(Ok(()), Recorder::finish).context("cannot write the record")
}

impl Filesystem for RecordingDisk {
    fn request(&self, request: Request<'_>, reply: Reply) {
        match (request.op, request.node) {
            (Op::Lookup { name: b"disk" }, ROOT) => reply.entry(&self.entry(DISK)),
            (Op::Lookup { name: b"marks" }, ROOT) => reply.entry(&self.entry(MARKS)),
            (Op::Lookup { .. }, _) => reply.error(ENOENT),
            (Op::GetAttr { .. } | Op::SetAttr(_), node) => reply.attr(&self.attr(node), FOREVER),
            (Op::Open { .. }, node) => {
                let flags = if node == MARKS { OpenedFlags::DIRECT_IO } else { OpenedFlags::KEEP_CACHE };
                reply.open(&Opened { flags, ..Opened::default() });
            }
            (Op::Read { offset, size, .. }, DISK) => {
                let mut buffer = vec![0; size as usize];
                let end = (self.size.saturating_sub(offset)).min(u64::from(size)) as usize;
                match self.image.read_exact_at(&mut buffer[..end], offset) {
                    Ok(()) => reply.data(&buffer[..end]),
                    Err(_) => reply.error(EIO),
                }
            }
            (Op::Write { offset, data, .. }, DISK) => {
                let written = self.record(|record| {
                    record.write(offset, data)?;
                    self.image.write_all_at(data, offset)
                });
                if written { reply.written(data.len() as u32) } else { reply.error(EIO) }
            }
            (Op::Write { data, .. }, MARKS) => {
                let written = self.record(|record| record.mark(data));
                if written { reply.written(data.len() as u32) } else { reply.error(EIO) }
            }
            (Op::FSync { .. }, DISK) => {
                if self.record(Recorder::flush) {
                    reply.ok()
                } else {
                    reply.error(EIO)
                }
            }
            (Op::Release { .. } | Op::Flush { .. }, _) => reply.ok(),
            (Op::Forget { .. } | Op::BatchForget(_), _) => reply.none(),
            _ => reply.error(ENOSYS),
        }
    }
}

impl RecordingDisk {
    fn record(&self, entry: impl FnOnce(&mut Recorder) -> std::io::Result<()>) -> bool {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.as_mut().is_some_and(|record| entry(record).is_ok())
    }

    fn entry(&self, node: u64) -> Entry {
        let attr = self.attr(node);
        Entry { node, generation: 0, attr, entry_valid: FOREVER, attr_valid: FOREVER }
    }

    fn attr(&self, node: u64) -> Attr {
        let (mode, size) = match node {
            ROOT => (0o040_755, 0),
            DISK => (0o100_600, self.size),
            _ => (0o100_600, 0),
        };
        Attr { ino: node, mode, size, blocks: size / 512, nlink: 1, blksize: 4096, ..Attr::default() }
    }
}
