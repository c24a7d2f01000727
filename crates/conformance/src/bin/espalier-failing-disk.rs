//! `espalier-failing-disk FILE MOUNTPOINT CONTROL`: a disk that fails on request.
//!
//! FILE appears as MOUNTPOINT/disk, for a loop device, until MOUNTPOINT is unmounted. While the
//! file CONTROL contains the word `writes`, every write and sync fails with `EIO`; with `all`,
//! reads fail too; with `stuck`, reads block.

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use espalier_fuse::{
    Attr, Entry, Filesystem, MountOptions, Op, Opened, ROOT_NODE, Reply, Request, Session, Wanted,
};

const DISK_NODE: u64 = 2;
/// Number of threads; enough that some remain when reads block.
const THREADS: usize = 8;
const VALID: Duration = Duration::from_secs(3600);

struct FailingDisk {
    file: File,
    bytes: u64,
    control: PathBuf,
}

/// Fault of the disk.
#[derive(PartialEq, Eq)]
enum Broken {
    Nothing,
    Writes,
    All,
    /// Reads block.
    Stuck,
}

impl FailingDisk {
    fn broken(&self) -> Broken {
        match std::fs::read_to_string(&self.control).unwrap_or_default().trim() {
            "writes" => Broken::Writes,
            "all" => Broken::All,
            "stuck" => Broken::Stuck,
            _ => Broken::Nothing,
        }
    }

    fn fails_writes(&self) -> bool {
        matches!(self.broken(), Broken::Writes | Broken::All)
    }

    fn attr(&self, node: u64) -> Attr {
        let root = Attr { ino: ROOT_NODE, mode: 0o040_755, nlink: 2, ..Attr::default() };
        let (size, blocks) = (self.bytes, self.bytes / 512);
        let disk = Attr { ino: DISK_NODE, mode: 0o100_600, nlink: 1, size, blocks, ..Attr::default() };
        if node == ROOT_NODE { root } else { disk }
    }

    fn read(&self, offset: u64, size: u32) -> Result<Vec<u8>, i32> {
        while self.broken() == Broken::Stuck {
            std::thread::sleep(Duration::from_millis(20));
        }
        if self.broken() == Broken::All {
            return Err(libc::EIO);
        }
        let mut bytes = vec![0; u64::from(size).min(self.bytes.saturating_sub(offset)) as usize];
        self.file.read_exact_at(&mut bytes, offset).map_err(|_| libc::EIO)?;
        Ok(bytes)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), i32> {
        if self.fails_writes() {
            return Err(libc::EIO);
        }
        self.file.write_all_at(data, offset).map_err(|_| libc::EIO)
    }

    fn sync(&self) -> Result<(), i32> {
        if self.fails_writes() {
            return Err(libc::EIO);
        }
        self.file.sync_data().map_err(|_| libc::EIO)
    }
}

impl Filesystem for FailingDisk {
    fn request(&self, request: Request<'_>, reply: Reply) {
        match request.op {
            Op::Lookup { name: b"disk" } => {
                let (node, attr) = (DISK_NODE, self.attr(DISK_NODE));
                reply.entry(&Entry { node, generation: 1, attr, entry_valid: VALID, attr_valid: VALID });
            }
            Op::Lookup { .. } => reply.error(libc::ENOENT),
            Op::Forget { .. } | Op::BatchForget(_) => reply.none(),
            Op::GetAttr { .. } => reply.attr(&self.attr(request.node), VALID),
            Op::Open { .. } | Op::OpenDir { .. } => reply.open(&Opened::default()),
            Op::Read { offset, size, .. } => match self.read(offset, size) {
                Ok(bytes) => reply.data(&bytes),
                Err(errno) => reply.error(errno),
            },
            Op::Write { offset, data, .. } => match self.write(offset, data) {
                Ok(()) => reply.written(data.len() as u32),
                Err(errno) => reply.error(errno),
            },
            Op::FSync { .. } => match self.sync() {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            },
            Op::ReadDir { .. } => reply.data(&[]),
            Op::Flush { .. } | Op::Release { .. } | Op::ReleaseDir { .. } => reply.ok(),
            _ => reply.error(libc::ENOSYS),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [file, mountpoint, control] = &arguments[..] else {
        return Err("usage: espalier-failing-disk FILE MOUNTPOINT CONTROL".into());
    };
    let file = File::options().read(true).write(true).open(file)?;
    let bytes = file.metadata()?.len();
    let disk = FailingDisk { file, bytes, control: control.into() };
    let options = MountOptions::default();
    let session = Session::mount("failing-disk", Path::new(mountpoint), &options, &Wanted::default())?;
    session.run(THREADS, Arc::new(disk))?;
    Ok(())
}
