//! Sequential writes of a big file through its first opening, on a real mount. Needs root and
//! `/dev/fuse`.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use espalier_runtime::{MkfsOptions, MountOptions, OpenOptions, Volume, mkfs, mount};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// Mounts a new file system, and unmounts it after the test.
fn on_mount(test: impl FnOnce(&Path)) {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return eprintln!("skipped: needs root and /dev/fuse");
    }
    let work = tempfile::tempdir().unwrap();
    let (store, mountpoint) = (work.path().join("store"), work.path().join("mnt"));
    fs::create_dir(&mountpoint).unwrap();
    let made = MkfsOptions { journal_bytes: Some(4 << 20), ..MkfsOptions::default() };
    mkfs(&store, &made).unwrap();
    let volume = Volume::open(&store, OpenOptions::default()).unwrap();
    let options = MountOptions {
        kernel: espalier_fuse::MountOptions::default(),
        threads: 8,
        transport: None,
        local_locks: false,
        ttl: None,
        drain: Duration::from_secs(60),
        metrics: None,
        slow: None,
        record: None,
    };
    std::thread::scope(|scope| {
        let (ready, mounted) = channel();
        let (store, at) = (&store, &mountpoint);
        let server = scope.spawn(move || mount(volume, store, at, &options, || ready.send(()).unwrap()));
        mounted.recv().unwrap();
        let unmount = Unmount(at);
        test(at);
        drop(unmount);
        server.join().unwrap().unwrap();
    });
}

/// Unmounts also when a test fails, since its threads would wait.
struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        espalier_fuse::force_unmount(self.0).unwrap();
    }
}

fn bytes_at(offset: usize, length: usize) -> Vec<u8> {
    (offset..offset + length).map(|at| ((at / 7) ^ (at >> 13)) as u8).collect()
}

/// Number of pages from `offset` on that the kernel has cached for this file.
fn cached_pages(file: &File, offset: usize, bytes: usize) -> usize {
    let mut cached = vec![0_u8; bytes / PAGE];
    // SAFETY: a new mapping, of which no memory is touched; the kernel writes a byte for each page.
    unsafe {
        let flags = (ProtFlags::READ, MapFlags::SHARED);
        let map = mmap(std::ptr::null_mut(), bytes, flags.0, flags.1, file.as_fd(), offset as u64).unwrap();
        assert_eq!(libc::mincore(map, bytes, cached.as_mut_ptr()), 0);
        munmap(map, bytes).unwrap();
    }
    cached.iter().filter(|page| **page & 1 == 1).count()
}

#[test]
fn flushed_pages_are_not_cached_twice() {
    on_mount(|dir| {
        let length = 40 * MIB;
        let file = File::options().read(true).write(true).create_new(true).open(dir.join("big")).unwrap();
        for offset in (0..length).step_by(MIB) {
            file.write_all_at(&bytes_at(offset, MIB), offset as u64).unwrap();
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while cached_pages(&file, 0, 32 * MIB) > 0 {
            assert!(Instant::now() < deadline, "{} pages are kept", cached_pages(&file, 0, 32 * MIB));
            std::thread::sleep(Duration::from_millis(10));
        }
        // Otherwise the kernel was short of memory; it lacks a few pages even so.
        let retained = cached_pages(&file, 32 * MIB, 8 * MIB);
        assert!(retained > 7 * MIB / PAGE, "{retained} pages of what was written last");
        let attr = file.metadata().unwrap();
        // A fragmented underlying file system also counts blocks of the extent map.
        assert!(attr.len() == 40 << 20 && (80 << 10..81 << 10).contains(&attr.blocks()), "{attr:?}");
        assert!(fs::read(dir.join("big")).unwrap() == bytes_at(0, length));
    });
}

/// Other processes read and map the range behind the writer.
#[test]
fn growing_file_keeps_written_bytes() {
    on_mount(|dir| {
        const PIECE: usize = 300_007;
        let length = 150 * PIECE;
        let path = dir.join("big");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all_at(&bytes_at(0, PIECE), 0).unwrap();
        // SAFETY: a new mapping, of a page that lies in the file and stays so.
        let page = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), PAGE, protection, MapFlags::SHARED, file.as_fd(), 0).unwrap()
        };
        for (count, offset) in (PIECE..length).step_by(PIECE).enumerate() {
            file.write_all_at(&bytes_at(offset, PIECE), offset as u64).unwrap();
            // SAFETY: within the page, which only this thread uses.
            unsafe { page.cast::<u8>().add(count).write(count as u8) };
            let (at, other) = (offset / 3 * 2 + PAGE, File::open(&path).unwrap());
            for reader in [&file, &other] {
                let mut read = vec![0; PIECE / 3];
                reader.read_exact_at(&mut read, at as u64).unwrap();
                assert!(read == bytes_at(at, PIECE / 3), "at {at}");
            }
            assert_eq!(other.metadata().unwrap().len(), (offset + PIECE) as u64);
        }
        // SAFETY: the mapping from above.
        unsafe { munmap(page, PAGE) }.unwrap();
        file.sync_all().unwrap();
        drop(file);
        let mut expected = bytes_at(0, length);
        expected.iter_mut().zip(0..149).for_each(|(byte, count)| *byte = count);
        assert!(fs::read(&path).unwrap() == expected);
    });
}
