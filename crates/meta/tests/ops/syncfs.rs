use espalier_proto::*;

use crate::harness::{Harness, under_faults};

const SYNC: Request = Request::SyncFs { rank: Rank(0) };

#[test]
fn all_changes_and_the_bytes_of_all_files_are_durable() {
    let mut fs = Harness::new();
    fs.mkdir("dir");
    fs.file("dir/small", b"bytes");
    let big = fs.file("big", &[7; 100]);
    fs.disk.store().stream_write(big, 0, &[8; 100]).unwrap();
    assert_eq!(fs.ask(SYNC), Ok(Reply::Done));
    let seen = fs.dump();
    fs.file("later", b"");
    let mut fs = fs.crash();
    assert_eq!(fs.dump(), seen);
    assert_eq!(fs.read(big), [8; 100]);
}

#[test]
fn another_ranks_part_is_refused() {
    let mut fs = Harness::new();
    assert_eq!(fs.ask(Request::SyncFs { rank: Rank(1) }), Err(Errno::EINVAL));
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        fs.mkdir("dir");
        fs.file("dir/file", b"bytes");
        fs.file("dir/big", &[7; 100]);
    };
    under_faults(before, |fs| fs.ask(SYNC));
}
