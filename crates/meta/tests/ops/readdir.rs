use espalier_meta::{Atime, Config, Input};
use espalier_proto::*;

use crate::harness::{Harness, config, everywhere, name, open_how, under_faults};

fn page(fs: &mut Harness, path: &str, after: u64, limit: u32, plus: bool) -> Result<Reply, Errno> {
    let dir = fs.walk(path)?;
    fs.ask(Request::ReadDir { dir, after, limit, plus })
}

fn fill(fs: &mut Harness) {
    fs.mkdir("dir");
    for number in 0..20 {
        fs.file(&format!("dir/file{number}"), b"bytes");
    }
    fs.file("dir/big", &[7; 100]);
    let ino = fs.walk("dir/file1").unwrap();
    fs.ask(Request::Link { ino, dir: Ino::ROOT, name: name("other") }).unwrap();
}

#[test]
fn pages_make_a_whole() {
    everywhere(|fs| {
        fill(fs);
        let dir = fs.walk("dir").unwrap();
        for plus in [false, true] {
            let all = fs.list(dir, plus);
            let mut names: Vec<_> = all.iter().map(|entry| entry.name.clone()).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), 21);
            assert!(all.is_sorted_by_key(|entry| entry.cursor));
            for entry in &all {
                let attr = fs.lookup(dir, std::str::from_utf8(&entry.name).unwrap()).unwrap();
                assert_eq!((entry.ino, entry.kind), (attr.ino, attr.kind));
                assert_eq!(entry.entry.map(|entry| entry.attr), plus.then_some(attr));
            }
        }
    });
}

#[test]
fn unchanged_entry_is_listed_exactly_once() {
    everywhere(|fs| {
        fill(fs);
        let dir = fs.walk("dir").unwrap();
        let all = fs.list(dir, false);
        let Ok(Reply::Listing { entries, .. }) = page(fs, "dir", 0, 5, false) else { panic!("no listing") };
        // Remove an entry that was listed and one that was not, and add one.
        for gone in [&all[1], &all[10]] {
            fs.ask(Request::Unlink { dir, name: gone.name.clone(), time: None }).unwrap();
        }
        fs.file("dir/new", b"");
        let after = entries.last().unwrap().cursor;
        let Ok(Reply::Listing { entries: rest, end, .. }) = page(fs, "dir", after, 100, false) else {
            panic!("no listing")
        };
        assert!(end);
        let listed: Vec<_> = entries.iter().chain(&rest).map(|entry| entry.name.clone()).collect();
        for entry in all.iter().filter(|entry| entry.name != all[10].name) {
            assert_eq!(listed.iter().filter(|name| **name == entry.name).count(), 1, "{:?}", entry.name);
        }
        assert!(!listed.contains(&all[10].name));
    });
}

#[test]
fn parent_directory_is_returned() {
    everywhere(|fs| {
        let dir = fs.mkdir("dir");
        fs.mkdir("dir/sub");
        let expected = Reply::Listing { entries: Vec::new(), parent: dir, end: true, until: u64::MAX };
        assert_eq!(page(fs, "dir/sub", 0, 10, false), Ok(expected));
    });
}

#[test]
fn only_directories_are_listed() {
    everywhere(|fs| {
        fs.file("file", b"");
        assert_eq!(page(fs, "file", 0, 10, false), Err(Errno::ENOTDIR));
    });
}

#[test]
fn listing_is_an_access() {
    let fs = &mut Harness::with(Config { atime: Atime::Always, ..config() });
    fill(fs);
    let before = fs.attr("dir").atime;
    page(fs, "dir", 0, 5, false).unwrap();
    assert!(fs.attr("dir").atime > before);
}

#[test]
fn listing_with_nodiratime_keeps_the_access_time() {
    let fs = &mut Harness::with(Config { atime: Atime::Always, nodiratime: true, ..config() });
    fill(fs);
    let file = fs.file("file", b"read");
    let before = (fs.attr("dir").atime, fs.attr("file").atime);
    page(fs, "dir", 0, 5, false).unwrap();
    fs.ask(Request::Read { ino: file, offset: 0, size: 4, noatime: false }).unwrap();
    assert_eq!(fs.attr("dir").atime, before.0);
    assert!(fs.attr("file").atime > before.1);
}

#[test]
fn a_client_says_which_accesses_of_its_own_count() {
    let fs = &mut Harness::with(Config { atime: Atime::Always, session_ms: Some(60_000), ..config() });
    let client = ClientId(1);
    fs.input(Input::Connect { client, leases: true, resumes: false });
    fill(fs);
    let file = fs.file("file", b"read");
    let mut change_times = |accesses| {
        fs.input(Input::Accesses { client, accesses });
        let before = (fs.attr("dir").atime, fs.attr("file").atime);
        page(fs, "dir", 0, 5, false).unwrap();
        fs.ask(Request::Open { ino: file, how: open_how(Access::READ, false) }).unwrap();
        fs.ask(Request::Read { ino: file, offset: 0, size: 4, noatime: false }).unwrap();
        fs.ask(Request::Release { ino: file }).unwrap();
        (fs.attr("dir").atime > before.0, fs.attr("file").atime > before.1)
    };
    assert_eq!(change_times(Accesses::All), (true, true));
    assert_eq!(change_times(Accesses::NoListings), (false, true));
    assert_eq!(change_times(Accesses::None), (false, false));
}

#[test]
fn is_whole_under_faults() {
    for plus in [false, true] {
        under_faults(fill, |fs| {
            let reply = page(fs, "dir", 0, 100, plus)?;
            let Reply::Listing { mut entries, parent, end, until } = reply else { return Ok(reply) };
            for entry in &mut entries {
                // The store determines the times of a stream.
                entry.entry = entry.entry.filter(|entry| !entry.attr.streamed);
            }
            Ok(Reply::Listing { entries, parent, end, until })
        });
    }
}
