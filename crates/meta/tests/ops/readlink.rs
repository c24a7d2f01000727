use espalier_meta::{Atime, Config};
use espalier_proto::*;

use crate::harness::{Harness, config, everywhere, under_faults};

fn readlink(fs: &mut Harness, path: &str) -> Result<Reply, Errno> {
    let ino = fs.walk(path)?;
    fs.ask(Request::ReadLink { ino })
}

#[test]
fn a_link_holds_any_bytes() {
    everywhere(|fs| {
        let target = [b'/', 0xff, b' ', b'\n'].repeat(1000);
        fs.make("link", NewNode::Symlink(target.clone().into()));
        assert_eq!(readlink(fs, "link"), Ok(Reply::Bytes(target.into())));
        assert_eq!(fs.attr("link").size, 4000);
    });
}

#[test]
fn only_links_are_read() {
    everywhere(|fs| {
        fs.file("file", b"");
        assert_eq!(readlink(fs, "file"), Err(Errno::EINVAL));
        assert_eq!(readlink(fs, ""), Err(Errno::EINVAL));
    });
}

#[test]
fn reading_is_an_access() {
    let fs = &mut Harness::with(Config { atime: Atime::Relative, ..config() });
    fs.make("link", NewNode::Symlink(b"to".as_slice().into()));
    let before = fs.attr("link");
    readlink(fs, "link").unwrap();
    let first = fs.attr("link");
    assert!(first.atime > before.atime && first.ctime == before.ctime);
    // The next access counts only after a day (relatime).
    readlink(fs, "link").unwrap();
    assert_eq!(fs.attr("link").atime, first.atime);
    fs.now.secs += 24 * 60 * 60;
    readlink(fs, "link").unwrap();
    assert!(fs.attr("link").atime > first.atime);
}

#[test]
fn is_whole_under_faults() {
    under_faults(
        |fs| {
            fs.mkdir("dir");
            fs.make("dir/link", NewNode::Symlink(b"to".as_slice().into()));
        },
        |fs| readlink(fs, "dir/link"),
    );
}
