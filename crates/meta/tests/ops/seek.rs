use espalier_proto::*;

use crate::harness::{Harness, STRIP, everywhere, under_faults};

fn seek(fs: &mut Harness, path: &str, offset: u64, what: SeekWhat) -> Result<Reply, Errno> {
    let ino = fs.walk(path)?;
    fs.ask(Request::Seek { ino, offset, what })
}

/// Three bytes of data, then a hole.
fn sparse(fs: &mut Harness) {
    let ino = fs.file("file", b"abc");
    let set = SetAttr { size: Some(STRIP), ..SetAttr::default() };
    fs.ask(Request::SetAttr { ino, set }).unwrap();
}

#[test]
fn data_comes_before_the_hole() {
    everywhere(|fs| {
        sparse(fs);
        for (offset, what, found) in [
            (0, SeekWhat::Data, Ok(0)),
            (2, SeekWhat::Data, Ok(2)),
            (3, SeekWhat::Data, Err(Errno::ENXIO)),
            (0, SeekWhat::Hole, Ok(3)),
            (10, SeekWhat::Hole, Ok(10)),
            (STRIP - 1, SeekWhat::Hole, Ok(STRIP - 1)),
            (STRIP, SeekWhat::Hole, Err(Errno::ENXIO)),
            (STRIP, SeekWhat::Data, Err(Errno::ENXIO)),
        ] {
            assert_eq!(seek(fs, "file", offset, what), found.map(Reply::Offset), "{offset} {what:?}");
        }
    });
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
