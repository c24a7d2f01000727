use espalier_proto::*;

use crate::harness::{Harness, everywhere, name, under_faults, user};

fn lookup(fs: &mut Harness, caller: &Caller, dir: Ino, text: &str) -> Result<Reply, Errno> {
    fs.ask_as(caller, Request::Lookup { dir, name: name(text) })
}

#[test]
fn a_name_is_found_or_known_to_be_absent() {
    everywhere(|fs| {
        let root = crate::harness::ROOT_CALLER;
        let dir = fs.mkdir("dir");
        let ino = fs.file("dir/file", b"bytes");
        let attr = fs.attr_of(ino);
        let location = Location::Dentry { dir, hash: fs.list(dir, false)[0].cursor };
        let entry = Entry {
            attr,
            cacheable: true,
            name_leased: true,
            attr_leased: true,
            sole_holder: false,
            location,
            reclaim_token: 0,
        };
        assert_eq!(lookup(fs, &root, dir, "file"), Ok(Reply::Entry(entry)));
        assert_eq!(lookup(fs, &root, dir, "other"), Ok(Reply::Absent { cacheable: true }));
    });
}

#[test]
fn names_of_a_directory_that_not_all_may_search_are_not_cached() {
    everywhere(|fs| {
        let root = crate::harness::ROOT_CALLER;
        let dir = fs.mkdir("dir");
        fs.file("dir/file", b"");
        fs.chmod("dir", 0o710);
        assert!(matches!(lookup(fs, &root, dir, "file"), Ok(Reply::Entry(Entry { cacheable: false, .. }))));
        assert_eq!(lookup(fs, &root, dir, "other"), Ok(Reply::Absent { cacheable: false }));
        assert_eq!(lookup(fs, &user(5), dir, "other"), Err(Errno::EACCES));
    });
}

#[test]
fn only_directories_have_names() {
    everywhere(|fs| {
        let file = fs.file("file", b"");
        assert_eq!(lookup(fs, &user(5), file, "x"), Err(Errno::ENOTDIR));
    });
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        fs.mkdir("dir");
        let ino = fs.file("dir/file", b"bytes");
        fs.file("dir/big", &[7; 100]);
        fs.ask(Request::Link { ino, dir: Ino::ROOT, name: name("other") }).unwrap();
    };
    for (dir, file) in [("dir", "file"), ("dir", "big"), ("", "other"), ("dir", "absent")] {
        under_faults(before, |fs| {
            let dir = fs.walk(dir)?;
            let reply = lookup(fs, &crate::harness::ROOT_CALLER, dir, file)?;
            // The store determines the times of a stream.
            Ok(match reply {
                Reply::Entry(Entry { attr, .. }) if attr.streamed => Reply::Offset(attr.size),
                other => other,
            })
        });
    }
}
