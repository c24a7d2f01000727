use espalier_meta::Config;
use espalier_proto::*;

use crate::harness::{Harness, STRIP, config, everywhere, under_faults};

/// Granularity of holes in bytes.
const BLOCK: u64 = 4096;

fn seek(fs: &mut Harness, path: &str, offset: u64, what: SeekWhat) -> Result<Reply, Errno> {
    let ino = fs.walk(path)?;
    fs.ask(Request::Seek { ino, offset, what })
}

fn resize(fs: &mut Harness, ino: Ino, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    fs.ask(Request::SetAttr { ino, set }).unwrap();
}

/// Three bytes of data in the only block.
fn sparse(fs: &mut Harness) {
    let ino = fs.file("file", b"abc");
    resize(fs, ino, STRIP);
}

/// A file of ten blocks and a part of one; `data`: the blocks with data.
fn blocks(data: &[u64]) -> Harness {
    let mut fs = Harness::with(Config { strip_bytes: 65_536, ..config() });
    let ino = fs.file("file", b"");
    resize(&mut fs, ino, 10 * BLOCK + 5);
    for block in data {
        fs.write(ino, block * BLOCK + 3, b"data").unwrap();
    }
    fs
}

fn check(fs: &mut Harness, cases: &[(u64, SeekWhat, Result<u64, Errno>)]) {
    for (offset, what, found) in cases {
        assert_eq!(seek(fs, "file", *offset, *what), found.map(Reply::Offset), "{offset} {what:?}");
    }
}

#[test]
fn a_block_with_data_is_no_hole() {
    everywhere(|fs| {
        sparse(fs);
        let cases = [
            (0, SeekWhat::Data, Ok(0)),
            (20, SeekWhat::Data, Ok(20)),
            (0, SeekWhat::Hole, Ok(STRIP)),
            (STRIP - 1, SeekWhat::Hole, Ok(STRIP)),
            (STRIP, SeekWhat::Hole, Err(Errno::ENXIO)),
            (STRIP, SeekWhat::Data, Err(Errno::ENXIO)),
        ];
        check(fs, &cases);
    });
}

#[test]
fn blocks_of_zeros_are_holes() {
    let (data, hole) = (SeekWhat::Data, SeekWhat::Hole);
    let size = 10 * BLOCK + 5;
    let mut fs = blocks(&[1, 2, 5]);
    let cases = [
        (0, data, Ok(BLOCK)),
        (0, hole, Ok(0)),
        (BLOCK + 1, data, Ok(BLOCK + 1)),
        (BLOCK + 1, hole, Ok(3 * BLOCK)),
        (3 * BLOCK + 7, data, Ok(5 * BLOCK)),
        (3 * BLOCK + 7, hole, Ok(3 * BLOCK + 7)),
        (5 * BLOCK, hole, Ok(6 * BLOCK)),
        (6 * BLOCK, data, Err(Errno::ENXIO)),
        (9 * BLOCK, hole, Ok(9 * BLOCK)),
        (10 * BLOCK + 4, hole, Ok(10 * BLOCK + 4)),
        (size, hole, Err(Errno::ENXIO)),
    ];
    check(&mut fs, &cases);
    check(&mut blocks(&[]), &[(5, data, Err(Errno::ENXIO)), (5, hole, Ok(5))]);
    // The last block is partial.
    check(&mut blocks(&[9]), &[(0, data, Ok(9 * BLOCK)), (9 * BLOCK, hole, Ok(10 * BLOCK))]);
    let mut fs = blocks(&[]);
    let ino = fs.walk("file").unwrap();
    fs.write(ino, 10 * BLOCK, b"x").unwrap();
    check(&mut fs, &[(0, data, Ok(10 * BLOCK)), (10 * BLOCK, hole, Ok(size))]);
}

#[test]
fn punched_and_allocated_ranges_are_holes() {
    let mut fs = blocks(&[0, 1, 2, 3]);
    let ino = fs.walk("file").unwrap();
    let punch = AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE;
    for (offset, mode) in
        [(BLOCK, punch), (3 * BLOCK, AllocateMode::ZERO_RANGE), (6 * BLOCK, AllocateMode::empty())]
    {
        fs.ask(Request::Allocate { ino, offset, length: BLOCK, mode }).unwrap();
    }
    let (data, hole) = (SeekWhat::Data, SeekWhat::Hole);
    let cases = [
        (0, hole, Ok(BLOCK)),
        (BLOCK, data, Ok(2 * BLOCK)),
        (2 * BLOCK, hole, Ok(3 * BLOCK)),
        (3 * BLOCK, data, Err(Errno::ENXIO)),
    ];
    check(&mut fs, &cases);
}

#[test]
fn a_big_file_is_for_its_stream_to_answer() {
    everywhere(|fs| {
        fs.file("big", &[7; 100]);
        assert_eq!(seek(fs, "big", 0, SeekWhat::Data), Ok(Reply::Streamed));
    });
}

#[test]
fn directories_have_no_bytes() {
    everywhere(|fs| assert_eq!(seek(fs, "", 0, SeekWhat::Data), Err(Errno::EINVAL)));
}

#[test]
fn is_whole_under_faults() {
    under_faults(sparse, |fs| seek(fs, "file", 0, SeekWhat::Hole));
}
