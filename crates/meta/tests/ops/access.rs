use espalier_meta::Config;
use espalier_proto::*;

use crate::harness::{Harness, config, everywhere, under_faults, user};

fn access(fs: &mut Harness, caller: &Caller, path: &str, want: Access) -> Result<Reply, Errno> {
    let ino = fs.walk(path)?;
    fs.ask_as(caller, Request::Access { ino, want })
}

#[test]
fn the_first_class_that_fits_decides() {
    everywhere(|fs| {
        fs.file("file", b"");
        fs.chown("file", 5, 6);
        fs.chmod("file", 0o046);
        // The owner gets the owner's right even if others have more.
        assert_eq!(access(fs, &user(5), "file", Access::READ), Err(Errno::EACCES));
        assert_eq!(access(fs, &user(6), "file", Access::READ), Ok(Reply::Done));
        assert_eq!(access(fs, &user(6), "file", Access::WRITE), Err(Errno::EACCES));
        assert_eq!(access(fs, &user(7), "file", Access::READ | Access::WRITE), Ok(Reply::Done));
        assert_eq!(access(fs, &user(7), "file", Access::EXEC), Err(Errno::EACCES));
    });
}

#[test]
fn supplementary_groups_count() {
    everywhere(|fs| {
        fs.file("file", b"");
        fs.chown("file", 0, 1005);
        fs.chmod("file", 0o040);
        assert_eq!(access(fs, &user(5), "file", Access::READ), Ok(Reply::Done));
        assert_eq!(access(fs, &user(6), "file", Access::READ), Err(Errno::EACCES));
    });
}

#[test]
fn superuser_may_execute_only_with_an_execute_bit() {
    everywhere(|fs| {
        fs.file("file", b"");
        fs.mkdir("dir");
        fs.chmod("file", 0);
        fs.chmod("dir", 0);
        let root = crate::harness::ROOT_CALLER;
        assert_eq!(access(fs, &root, "file", Access::READ | Access::WRITE), Ok(Reply::Done));
        assert_eq!(access(fs, &root, "file", Access::EXEC), Err(Errno::EACCES));
        assert_eq!(access(fs, &root, "dir", Access::EXEC), Ok(Reply::Done));
        fs.chmod("file", 0o001);
        assert_eq!(access(fs, &root, "file", Access::EXEC), Ok(Reply::Done));
    });
}

#[test]
fn on_a_read_only_mount_only_devices_may_be_written() {
    let mut fs = Harness::new();
    fs.file("file", b"");
    fs.make("fifo", NewNode::Fifo);
    fs.drain();
    fs.config = Config { read_only: true, ..config() };
    let fs = &mut fs.crash();
    let root = crate::harness::ROOT_CALLER;
    assert_eq!(access(fs, &root, "file", Access::WRITE), Err(Errno::EROFS));
    assert_eq!(access(fs, &root, "file", Access::READ), Ok(Reply::Done));
    assert_eq!(access(fs, &root, "fifo", Access::WRITE), Ok(Reply::Done));
}

#[test]
fn is_whole_under_faults() {
    under_faults(
        |fs| {
            fs.mkdir("dir");
            fs.file("dir/file", b"");
            fs.chown("dir/file", 0, 5);
            fs.chmod("dir/file", 0o640);
        },
        |fs| access(fs, &user(5), "dir/file", Access::READ),
    );
}
