use espalier_meta::{Atime, Config};
use espalier_proto::*;

use crate::harness::{Fault, Harness, config, everywhere, under_faults};

fn read(fs: &mut Harness, path: &str, offset: u64, size: u32) -> Result<Reply, Errno> {
    let ino = fs.walk(path)?;
    fs.ask(Request::Read { ino, offset, size, noatime: false })
}

fn bytes(bytes: &[u8]) -> Result<Reply, Errno> {
    Ok(Reply::Bytes(bytes.to_vec().into()))
}

#[test]
fn bytes_come_back_up_to_the_end() {
    everywhere(|fs| {
        let ino = fs.file("file", b"bytes");
        assert_eq!(read(fs, "file", 0, 100), bytes(b"bytes"));
        assert_eq!(read(fs, "file", 1, 3), bytes(b"yte"));
        assert_eq!(read(fs, "file", 5, 100), bytes(b""));
        assert_eq!(read(fs, "file", u64::MAX, u32::MAX), bytes(b""));
        // A hole reads as zeros.
        let set = SetAttr { size: Some(8), ..SetAttr::default() };
        fs.ask(Request::SetAttr { ino, set }).unwrap();
        assert_eq!(read(fs, "file", 3, 100), bytes(b"es\0\0\0"));
        assert_eq!(read(fs, "file", 6, 100), bytes(b"\0\0"));
    });
}

#[test]
fn a_big_file_is_for_its_stream_to_answer() {
    everywhere(|fs| {
        fs.file("big", &[7; 100]);
        assert_eq!(read(fs, "big", 0, 10), Ok(Reply::Streamed));
    });
}

#[test]
fn only_files_are_read() {
    everywhere(|fs| {
        fs.make("fifo", NewNode::Fifo);
        assert_eq!(read(fs, "", 0, 1), Err(Errno::EISDIR));
        assert_eq!(read(fs, "fifo", 0, 1), Err(Errno::EINVAL));
    });
}

#[test]
fn reading_is_an_access() {
    let fs = &mut Harness::with(Config { atime: Atime::Always, ..config() });
    fs.file("file", b"bytes");
    let before = fs.attr("file");
    read(fs, "file", 0, 1).unwrap();
    let after = fs.attr("file");
    assert!(after.atime > before.atime && (after.mtime, after.ctime) == (before.mtime, before.ctime));
}

#[test]
fn reads_go_on_when_nothing_can_be_written() {
    let fs = &mut Harness::with(Config { atime: Atime::Always, ..config() });
    fs.file("file", b"bytes");
    fs.fault = Some((fs.count, Fault::Fails(Errno::EIO)));
    assert_eq!(fs.ask(Request::Fsync { ino: Ino::ROOT }), Err(Errno::EIO));
    let before = fs.attr("file");
    assert_eq!(read(fs, "file", 0, 100), bytes(b"bytes"));
    assert_eq!(fs.attr("file"), before, "an access that cannot be noted is none");
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        fs.mkdir("dir");
        fs.file("dir/file", b"bytes");
    };
    under_faults(before, |fs| read(fs, "dir/file", 1, 3));
}
