//! Threads that write and read parts of one big file by several paths, such as two mounts of one
//! file system: a read of an undisturbed part returns its last write by any path, also if that
//! write extended the file.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::{CaseResult, Failure};

const BYTES: usize = 256 << 10;
const PIECES: usize = 32;
const THREADS: usize = 16;
const STEPS: usize = 30;
/// Alignment of memory and offsets for direct I/O.
const ALIGNMENT: usize = 4096;

/// State of a part: number of writes, and path of the last one.
#[derive(Clone, Copy, Default)]
struct Written {
    times: u32,
    way: usize,
}

/// Executes rounds that alternate between cached and direct I/O.
///
/// # Errors
/// A part does not contain its last write, or a call failed.
pub fn run(ways: &[PathBuf], seed: u64, rounds: u64) -> CaseResult {
    (seed..seed + rounds).try_for_each(|seed| round(ways, seed))
}

fn round(ways: &[PathBuf], seed: u64) -> CaseResult {
    let name = format!("pieces.{}.{seed}", std::process::id());
    let direct = if seed.is_multiple_of(2) { OFlags::empty() } else { OFlags::DIRECT };
    let open = |way: &PathBuf, flags| open(&way.join(&name), flags, direct).map(File::from);
    let Some(first) = ways.first() else { return Ok(()) };
    let made = open(first, OFlags::CREATE | OFlags::EXCL)?;
    // A big file, whose data is not leased.
    made.write_all_at(&Aligned::new(), 0)?;
    // Later opens know that the file is shared.
    let files = ways.iter().rev().map(|way| open(way, OFlags::empty())).collect::<Result<Vec<_>, _>>()?;
    drop(made);
    let pieces: Vec<_> = (0..PIECES).map(|_| Mutex::<Written>::default()).collect();
    let outcome = std::thread::scope(|scope| {
        let running: Vec<_> = (0..THREADS as u64)
            .map(|thread| {
                let rng = fastrand::Rng::with_seed(seed.wrapping_mul(31).wrapping_add(thread));
                scope.spawn(|| steps(&files, &pieces, rng))
            })
            .collect();
        running.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| Failure::at("a thread panicked")).and_then(|done| done)
        })
    });
    rustix::fs::unlink(first.join(&name))?;
    outcome.map_err(|failure| Failure::at(format!("seed {seed}: {}", failure.message)))
}

/// Opens a file for direct I/O, or for cached I/O if that is not supported.
fn open(path: &Path, flags: OFlags, direct: OFlags) -> Result<OwnedFd, Errno> {
    let open = |direct| {
        rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | flags | direct, Mode::RUSR | Mode::WUSR)
    };
    match open(direct) {
        Err(Errno::INVAL) => open(OFlags::empty()),
        opened => opened,
    }
}

fn steps(files: &[File], pieces: &[Mutex<Written>], mut rng: fastrand::Rng) -> CaseResult {
    let (mut bytes, mut expected) = (Aligned::new(), Aligned::new());
    for _ in 0..STEPS {
        let (piece, way) = (rng.usize(..pieces.len()), rng.usize(..files.len()));
        let offset = (piece * BYTES) as u64;
        let mut written = pieces[piece].lock().unwrap_or_else(PoisonError::into_inner);
        if written.times == 0 || rng.bool() {
            *written = Written { times: written.times + 1, way };
            bytes.stamp(piece, written.times);
            files[way].write_all_at(&bytes, offset)?;
            continue;
        }
        let Written { times, way: writer } = *written;
        expected.stamp(piece, times);
        let read = files[way].read_at(&mut bytes, offset)?;
        if bytes[..read] != expected[..] {
            let head = String::from_utf8_lossy(&bytes[..read.min(STAMP)]).into_owned();
            return Err(Failure::at(format!(
                "piece {piece}, written {times} times, last by way {writer}, has {read} of {BYTES} bytes by way {way}, and \
                 begins with '{head}'"
            )));
        }
    }
    Ok(())
}

/// Bytes of the pattern that fills a part.
const STAMP: usize = 16;

/// An aligned buffer for one part.
struct Aligned(Vec<u8>);

impl Aligned {
    fn new() -> Self {
        Self(vec![0; BYTES + ALIGNMENT])
    }

    fn start(&self) -> usize {
        self.0.as_ptr().align_offset(ALIGNMENT)
    }

    fn stamp(&mut self, piece: usize, times: u32) {
        let stamp = format!("{piece:07} {times:07}\n");
        self.chunks_exact_mut(STAMP).for_each(|place| place.copy_from_slice(stamp.as_bytes()));
    }
}

impl std::ops::Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0[self.start()..][..BYTES]
    }
}

impl std::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        let start = self.start();
        &mut self.0[start..][..BYTES]
    }
}
