use espalier_proto::*;

use crate::harness::{Harness, everywhere, open_how, under_faults};

#[test]
fn new_file_has_attributes_of_its_creation() {
    everywhere(|fs| {
        let ino = fs.file("file", b"");
        let attr = fs.attr_of(ino);
        let time = attr.btime;
        let expected = Attr {
            ino,
            kind: FileType::Regular,
            perm: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            streamed: false,
            xattrs: XattrPresence::None,
            map_version: 0,
            contents_leased: true,
            flags: InodeFlags::empty(),
        };
        assert_eq!(attr, expected);
    });
}

#[test]
fn a_directory_has_a_link_for_each_subdirectory() {
    everywhere(|fs| {
        fs.mkdir("dir");
        assert_eq!((fs.attr("dir").kind, fs.attr("dir").nlink), (FileType::Directory, 2));
        fs.mkdir("dir/one");
        fs.mkdir("dir/two");
        fs.file("dir/file", b"");
        assert_eq!(fs.attr("dir").nlink, 4);
    });
}

#[test]
fn of_a_big_file_the_stream_knows_the_size() {
    everywhere(|fs| {
        let ino = fs.file("big", &[7; 100]);
        fs.ask(Request::Open { ino, how: open_how(Access::WRITE, false) }).unwrap();
        fs.disk.store().stream_write(ino, 100, &[8; 50]).unwrap();
        let attr = fs.attr("big");
        assert!(attr.streamed && attr.size == 150 && attr.blocks > 0, "{attr:?}");
        fs.ask(Request::Release { ino }).unwrap();
    });
}

#[test]
fn removed_inode_is_stale() {
    everywhere(|fs| {
        assert_eq!(fs.ask(Request::GetAttr { ino: Ino(12345) }), Err(Errno::ESTALE));
    });
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        fs.mkdir("dir");
        fs.file("dir/file", b"bytes");
    };
    under_faults(before, |fs| {
        let ino = fs.walk("dir/file")?;
        fs.ask(Request::GetAttr { ino })
    });
}
