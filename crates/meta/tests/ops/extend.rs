use espalier_meta::Input;
use espalier_proto::*;

use crate::harness::{Fault, Harness, everywhere, open_how, under_faults};

fn extend(fs: &mut Harness, ino: Ino, offset: u64, length: u64) -> Result<Reply, Errno> {
    fs.ask(Request::Extend { ino, offset, length, from: None, discards: false, acknowledged: false })
}

/// A big file of 100 bytes, open, in a directory with a quota of 150.
fn limited(fs: &mut Harness) -> (Ino, Ino) {
    let dir = fs.mkdir("dir");
    let file = fs.file("dir/big", &[7; 100]);
    fs.set_limit(dir, "max_bytes", 150).unwrap();
    let opened = fs.ask(Request::Open { ino: file, how: open_how(Access::WRITE, false) });
    assert!(matches!(opened, Ok(Reply::Opened(Opened { limited: true, .. }))), "{opened:?}");
    (dir, file)
}

#[test]
fn growth_is_counted_before_it_is_written_and_refused_beyond_the_quota() {
    everywhere(|fs| {
        let (dir, file) = limited(fs);
        assert_eq!(extend(fs, file, 140, 10), Ok(Reply::Granted));
        assert_eq!(fs.figure(dir, "rbytes"), Ok(150));
        assert_eq!(extend(fs, file, 141, 10), Err(Errno::EDQUOT));
        assert_eq!(extend(fs, file, 0, 150), Ok(Reply::Granted), "it has so many already");
        assert_eq!(extend(fs, file, u64::MAX - 1, 2), Err(Errno::EFBIG));
        // The write has failed: the close counts the actual size.
        fs.ask(Request::Release { ino: file }).unwrap();
        assert_eq!(fs.figure(dir, "rbytes"), Ok(100));
    });
}

#[test]
fn growth_by_an_append_is_counted_once() {
    everywhere(|fs| {
        let (dir, file) = limited(fs);
        assert_eq!(extend(fs, file, END, 10), Ok(Reply::Granted));
        assert_eq!(fs.figure(dir, "rbytes"), Ok(110));
        assert_eq!(extend(fs, file, END, 41), Err(Errno::EDQUOT));
        fs.ask(Request::Release { ino: file }).unwrap();
    });
}

#[test]
fn a_copy_takes_no_more_than_its_source_has() {
    everywhere(|fs| {
        let (dir, file) = limited(fs);
        let source = fs.file("source", &[1; 120]);
        let copy = |offset| Request::Extend {
            ino: file,
            offset,
            length: 1 << 30,
            from: Some((source, 80)),
            discards: false,
            acknowledged: false,
        };
        assert_eq!(fs.ask(copy(111)), Err(Errno::EDQUOT));
        assert_eq!(fs.ask(copy(110)), Ok(Reply::Granted));
        assert_eq!(fs.figure(dir, "rbytes"), Ok(150));
        fs.ask(Request::Release { ino: file }).unwrap();
    });
}

#[test]
fn without_a_quota_nothing_is_counted_until_the_file_is_closed() {
    everywhere(|fs| {
        let file = fs.file("big", &[7; 100]);
        fs.ask(Request::Open { ino: file, how: open_how(Access::WRITE, false) }).unwrap();
        assert_eq!(extend(fs, file, 0, 1000), Ok(Reply::Granted));
        assert_eq!(fs.figure(Ino::ROOT, "rbytes"), Ok(100));
        fs.disk.store().stream_write(file, 100, &[8; 50]).unwrap();
        assert_eq!(fs.figure(Ino::ROOT, "rbytes"), Ok(150), "the query measures open files");
        fs.ask(Request::Release { ino: file }).unwrap();
        assert_eq!(fs.figure(Ino::ROOT, "rbytes"), Ok(150));
    });
}

#[test]
fn unreachable_size_is_counted_later() {
    let mut fs = Harness::new();
    let file = fs.file("big", &[7; 100]);
    fs.ask(Request::Open { ino: file, how: open_how(Access::WRITE, false) }).unwrap();
    extend(&mut fs, file, 0, 1000).unwrap();
    fs.disk.store().stream_write(file, 100, &[8; 50]).unwrap();
    fs.fault = Some((fs.count, Fault::Fails(Errno::EIO)));
    assert_eq!(fs.ask(Request::Release { ino: file }), Ok(Reply::Done));
    assert_eq!(fs.figure(Ino::ROOT, "rbytes"), Ok(100));
    fs.input(Input::Tick);
    assert_eq!(fs.figure(Ino::ROOT, "rbytes"), Ok(150));
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        limited(fs);
    };
    under_faults(before, |fs| {
        let ino = fs.walk("dir/big")?;
        let reply = extend(fs, ino, 100, 20)?;
        fs.disk.store().stream_write(ino, 100, &[8; 20]).unwrap();
        Ok(reply)
    });
}
