use espalier_proto::*;

use crate::harness::{Harness, everywhere, under_faults};

fn statfs(fs: &mut Harness, path: &str) -> Capacity {
    let ino = fs.walk(path).unwrap();
    match fs.ask(Request::StatFs { ino }).unwrap() {
        Reply::StatFs(capacity) => capacity,
        other => panic!("{other:?}"),
    }
}

#[test]
fn statfs_reports_tightest_quota() {
    everywhere(|fs| {
        let (outer, inner) = (fs.mkdir("outer"), fs.mkdir("outer/inner"));
        fs.file("outer/inner/file", b"bytes");
        fs.file("outer/file", b"more bytes");
        assert_eq!(statfs(fs, "outer").byte_limit, None);
        fs.set_limit(outer, "max_bytes", 20).unwrap();
        fs.set_limit(inner, "max_bytes", 12).unwrap();
        fs.set_limit(inner, "max_files", 9).unwrap();
        let below = statfs(fs, "outer/inner/file");
        assert_eq!(below.byte_limit, Some(Limit { max: 20, used: 15 }));
        assert_eq!(below.file_limit, Some(Limit { max: 9, used: 1 }));
        let above = statfs(fs, "outer");
        assert_eq!((above.byte_limit, above.file_limit), (below.byte_limit, None));
        fs.set_limit(inner, "max_bytes", 7).unwrap();
        assert_eq!(statfs(fs, "outer/inner").byte_limit, Some(Limit { max: 7, used: 5 }));
        assert_eq!(statfs(fs, "").byte_limit, None);
    });
}

#[test]
fn in_a_removed_directory_there_is_none() {
    everywhere(|fs| {
        let (outer, inner) = (fs.mkdir("outer"), fs.mkdir("outer/inner"));
        fs.set_limit(inner, "max_bytes", 12).unwrap();
        fs.open("outer/inner");
        fs.ask(Request::RmDir { dir: outer, name: crate::harness::name("inner"), time: None }).unwrap();
        fs.ask(Request::RmDir { dir: Ino::ROOT, name: crate::harness::name("outer"), time: None }).unwrap();
        fs.forget(outer);
        let reported = fs.ask(Request::StatFs { ino: inner });
        assert!(matches!(reported, Ok(Reply::StatFs(Capacity { byte_limit: None, .. }))), "{reported:?}");
        fs.ask(Request::Release { ino: inner }).unwrap();
        fs.forget(inner);
    });
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        let dir = fs.mkdir("dir");
        fs.file("dir/file", b"bytes");
        fs.set_limit(dir, "max_bytes", 12).unwrap();
    };
    under_faults(before, |fs| {
        let ino = fs.walk("dir/file")?;
        fs.ask(Request::StatFs { ino })
    });
}
