use espalier_proto::*;

use crate::harness::{Harness, STRIP, everywhere, under_faults};

fn allocate(fs: &mut Harness, path: &str, range: (u64, u64), mode: AllocateMode) -> Result<Reply, Errno> {
    let ino = fs.walk(path)?;
    fs.ask(Request::Allocate { ino, offset: range.0, length: range.1, mode })
}

const PLAIN: AllocateMode = AllocateMode::empty();
const PUNCH: AllocateMode = AllocateMode::PUNCH_HOLE.union(AllocateMode::KEEP_SIZE);

#[test]
fn the_file_grows_unless_told_not_to() {
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
fn what_outgrows_the_strip_moves_out() {
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
    for (range, mode) in
        [((0, 20), PLAIN), ((1, 2), PUNCH), ((3, 20), AllocateMode::ZERO_RANGE), ((0, STRIP + 1), PLAIN)]
    {
        under_faults(before, |fs| allocate(fs, "dir/file", range, mode));
    }
}
