use espalier_meta::{Config, Input};
use espalier_proto::*;

use crate::harness::{Harness, STRIP, config, everywhere, under_faults};

fn allocate(fs: &mut Harness, path: &str, range: (u64, u64), mode: AllocateMode) -> Result<Reply, Errno> {
    let ino = fs.walk(path)?;
    fs.ask(Request::Allocate { ino, offset: range.0, length: range.1, mode })
}

const PLAIN: AllocateMode = AllocateMode::empty();
const PUNCH: AllocateMode = AllocateMode::PUNCH_HOLE.union(AllocateMode::KEEP_SIZE);

#[test]
fn allocate_grows_file_unless_keep_size() {
    everywhere(|fs| {
        let ino = fs.file("file", b"bytes");
        let before = fs.attr("file");
        assert_eq!(allocate(fs, "file", (0, 20), AllocateMode::KEEP_SIZE), Ok(Reply::Done));
        assert_eq!(fs.attr("file").size, 5);
        assert_eq!(allocate(fs, "file", (3, 5), PLAIN), Ok(Reply::Done));
        let after = fs.attr("file");
        assert!(after.size == 8 && after.mtime > before.mtime && after.ctime == after.mtime);
        assert_eq!(fs.read(ino), b"bytes\0\0\0");
    });
}

#[test]
fn ranges_become_zeros() {
    everywhere(|fs| {
        let ino = fs.file("file", b"abcdefgh");
        allocate(fs, "file", (2, 2), PUNCH).unwrap();
        assert_eq!(fs.read(ino), b"ab\0\0efgh");
        allocate(fs, "file", (6, 100), PUNCH).unwrap();
        assert_eq!(fs.read(ino), b"ab\0\0ef\0\0");
        allocate(fs, "file", (5, 5), AllocateMode::ZERO_RANGE).unwrap();
        assert_eq!(fs.read(ino), b"ab\0\0e\0\0\0\0\0");
    });
}

#[test]
fn allocated_bytes_count_as_blocks_and_read_as_zeros() {
    everywhere(|fs| {
        let ino = fs.file("file", b"ab");
        allocate(fs, "file", (10, 50), AllocateMode::KEEP_SIZE).unwrap();
        let attr = fs.attr("file");
        assert_eq!((attr.size, attr.blocks, fs.read(ino)), (2, 1, b"ab".to_vec()));
        fs.write(ino, 6, b"c").unwrap();
        assert_eq!(fs.read(ino), b"ab\0\0\0\0c");
        // Truncation frees allocated bytes beyond the end.
        let set = |size| SetAttr { size: Some(size), ..SetAttr::default() };
        for (size, blocks) in [(7, 1), (0, 0), (9, 0)] {
            fs.ask(Request::SetAttr { ino, set: set(size) }).unwrap();
            assert_eq!(fs.attr("file").blocks, blocks, "{size}");
        }
        allocate(fs, "file", (0, 9), PLAIN).unwrap();
        assert_eq!((fs.attr("file").blocks, fs.read(ino)), (1, vec![0; 9]));
        allocate(fs, "file", (0, 9), PUNCH).unwrap();
        assert_eq!(fs.attr("file").blocks, 0);
        allocate(fs, "file", (20, 10), AllocateMode::ZERO_RANGE).unwrap();
        assert_eq!((fs.attr("file").size, fs.attr("file").blocks), (30, 1));
        // A file that outgrows its strip takes only its bytes along, not what is allocated beyond
        // its end.
        allocate(fs, "file", (0, STRIP), AllocateMode::KEEP_SIZE).unwrap();
        assert_eq!(allocate(fs, "file", (0, STRIP + 1), AllocateMode::KEEP_SIZE), Ok(Reply::Streamed));
        assert_eq!(fs.read(ino), [0; 30]);
    });
}

#[test]
fn allocated_bytes_can_be_written_when_there_is_no_space_for_more() {
    for cache_bytes in [usize::MAX, 0] {
        let mut fs = Harness::with(Config { reserve: 1000, cache_bytes, ..config() });
        fs.input(Input::Space { free: 2000 });
        let (inside, behind) = (fs.file("inside", b""), fs.file("behind", b""));
        allocate(&mut fs, "inside", (0, 20), PLAIN).unwrap();
        allocate(&mut fs, "behind", (0, 20), AllocateMode::KEEP_SIZE).unwrap();
        fs.checkpoint();
        fs.input(Input::Space { free: 999 });
        assert_eq!(allocate(&mut fs, "inside", (0, 21), PLAIN), Err(Errno::ENOSPC));
        for ino in [inside, behind] {
            assert_eq!(fs.write(ino, 20, b"x"), Err(Errno::ENOSPC));
            assert_eq!(fs.write(ino, 0, &[7; 20]), Ok(Reply::Done));
            assert_eq!(fs.read(ino), [7; 20]);
        }
        assert_eq!(allocate(&mut fs, "inside", (0, 20), PLAIN), Ok(Reply::Done), "it is there");
        let mut fs = fs.crash();
        assert_eq!(fs.fsck(), []);
    }
}

#[test]
fn no_more_is_allocated_than_there_will_be_space_for() {
    let mut fs = Harness::with(Config { reserve: 1000, ..config() });
    fs.file("file", b"");
    fs.input(Input::Space { free: 1000 + 4 * 49 });
    assert_eq!(allocate(&mut fs, "file", (0, 50), PLAIN), Err(Errno::ENOSPC));
    assert_eq!(fs.attr("file").size, 0);
    assert_eq!(allocate(&mut fs, "file", (0, 49), PLAIN), Ok(Reply::Done));
}

#[test]
fn file_over_strip_is_unstuffed() {
    everywhere(|fs| {
        let ino = fs.file("file", b"bytes");
        assert_eq!(allocate(fs, "file", (0, STRIP + 1), PLAIN), Ok(Reply::Streamed));
        assert!(fs.is_streamed(ino));
        assert_eq!(fs.read(ino), b"bytes");
    });
}

#[test]
fn errors_come_in_order() {
    everywhere(|fs| {
        fs.file("file", b"bytes");
        fs.make("fifo", NewNode::Fifo);
        assert_eq!(allocate(fs, "", (0, 1), PLAIN), Err(Errno::EISDIR));
        assert_eq!(allocate(fs, "fifo", (0, 1), PLAIN), Err(Errno::ENODEV));
        assert_eq!(allocate(fs, "file", (u64::MAX, 1), PLAIN), Err(Errno::EFBIG));
        assert_eq!(allocate(fs, "file", (0, 0), PLAIN), Err(Errno::EINVAL));
        assert_eq!(allocate(fs, "file", (0, 1), AllocateMode::PUNCH_HOLE), Err(Errno::EINVAL));
    });
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        fs.mkdir("dir");
        fs.file("dir/file", b"bytes");
    };
    for (range, mode) in [
        ((0, 20), PLAIN),
        ((1, 2), PUNCH),
        ((3, 20), AllocateMode::ZERO_RANGE),
        ((9, 9), AllocateMode::KEEP_SIZE),
        ((0, STRIP + 1), PLAIN),
    ] {
        under_faults(before, |fs| allocate(fs, "dir/file", range, mode));
    }
}
