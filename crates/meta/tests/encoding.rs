//! The encodings of the journal and of the tables, which stores keep for years.

use crate::harness::{Harness, ROOT_CALLER, STRIP, config, name, open_how};
use espalier_meta::{Config, Input};
use espalier_proto::*;

/// FNV-1a, which never changes.
fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let bytes = parts.into_iter().flat_map(|part| part.iter().copied().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// A history with events and records of most kinds.
fn history() -> Harness {
    let mut fs = Harness::with(Config { session_ms: Some(60_000), ..config() });
    fs.input(Input::Connect { client: ClientId(1), leases: true, resumes: false });
    let dir = fs.mkdir("dir");
    fs.file("dir/small", b"a few bytes");
    let large = fs.file("dir/large", &[7; 3 * STRIP as usize]);
    fs.make("dir/link", NewNode::Symlink(b"target".as_slice().into()));
    fs.make("dir/fifo", NewNode::Fifo);
    let xattr = |name: &str, value: &[u8]| (name.as_bytes().into(), value.into());
    for (ino, (name, value)) in [
        (large, xattr("user.comment", &[b'x'; 300])),
        (dir, xattr("user.espalier.stuffing", b"false")),
        (dir, xattr("user.espalier.quota.max_files", b"1000")),
        (dir, xattr("system.posix_acl_default", b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x05\0\x09\0\0\0\x04\0\x05\0\xff\xff\xff\xff\x10\0\x07\0\xff\xff\xff\xff\x20\0\x05\0\xff\xff\xff\xff")),
    ] {
        let mode = XattrMode::Any;
        fs.ask(Request::SetXattr { ino, name, value, mode, kill_sgid: false }).unwrap();
    }
    fs.file("dir/inherits", b"");
    fs.mkdir("dir/below");
    fs.ask(Request::Link { ino: large, dir: Ino::ROOT, name: name("linked") }).unwrap();
    fs.chown("dir/small", 5, 6);
    fs.chmod("dir/small", 0o640);
    let rename = |from_dir, from: &str, to_dir, to: &str| Request::Rename {
        from_dir,
        from: name(from),
        to_dir,
        to: name(to),
        flags: RenameFlags::empty(),
        time: None,
    };
    fs.ask(rename(dir, "fifo", Ino::ROOT, "moved")).unwrap();
    fs.ask(Request::Unlink { dir, name: name("link"), time: None }).unwrap();
    fs.ask(Request::RmDir { dir, name: name("below"), time: None }).unwrap();
    let removed = fs.open("dir/inherits");
    fs.ask(Request::Unlink { dir, name: name("inherits"), time: None }).unwrap();
    assert_eq!(fs.attr_of(removed).nlink, 0);
    fs.ask(Request::Open { ino: large, how: open_how(Access::WRITE, true) }).unwrap();
    fs.send(&ROOT_CALLER, Request::Forget { ino: dir, lookups: 1 });
    fs.run_until_idle();
    fs
}

/// If this fails on purpose, raise `FORMAT` in `crates/store/src/superblock.rs`, describe the
/// change in docs/format.md, and put the new digest here.
#[test]
fn journal_and_tables_are_encoded_as_before() {
    let mut fs = history();
    let journal = digest(fs.disk.frames());
    fs.checkpoint();
    let records: Vec<_> = fs.disk.store().records().map(Result::unwrap).collect();
    let objects: Vec<String> = records.iter().map(|(object, ..)| format!("{object:?}")).collect();
    let parts = records.iter().zip(&objects);
    let tables = digest(parts.flat_map(|((_, key, value), object)| [object.as_bytes(), key, value]));
    assert_eq!(
        (journal, records.len(), tables),
        (17_215_968_916_444_991_619, 20, 14_962_928_788_066_997_096)
    );
}
