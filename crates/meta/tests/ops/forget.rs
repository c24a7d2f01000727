use espalier_proto::*;

use crate::harness::{Harness, ROOT_CALLER, everywhere, name, under_faults};

fn unlink(fs: &mut Harness, text: &str) -> Result<Reply, Errno> {
    fs.ask(Request::Unlink { dir: Ino::ROOT, name: name(text), time: None })
}

fn files(fs: &mut Harness) -> u64 {
    match fs.ask(Request::StatFs { ino: Ino::ROOT }).unwrap() {
        Reply::StatFs(capacity) => capacity.files,
        other => panic!("{other:?}"),
    }
}

#[test]
fn last_forget_frees_unlinked_inode() {
    everywhere(|fs| {
        let ino = fs.file("file", b"bytes");
        fs.walk("file").unwrap();
        unlink(fs, "file").unwrap();
        fs.send(&ROOT_CALLER, Request::Forget { ino, lookups: 1 });
        assert_eq!(fs.read(ino), b"bytes");
        assert_eq!(files(fs), 2);
        fs.send(&ROOT_CALLER, Request::Forget { ino, lookups: 1 });
        assert_eq!(fs.ask(Request::GetAttr { ino }), Err(Errno::ESTALE));
        assert_eq!(files(fs), 1);
    });
}

#[test]
fn large_file_stream_is_removed_after_durable_unlink() {
    everywhere(|fs| {
        let ino = fs.file("big", &[7; 100]);
        unlink(fs, "big").unwrap();
        fs.lazy = true;
        fs.forget(ino);
        assert_eq!(fs.disk.store().streams().unwrap(), [ino], "its name may be back after a crash");
        fs.lazy = false;
        fs.drain();
        assert_eq!(fs.disk.store().streams().unwrap(), []);
        assert_eq!(files(fs), 1);
    });
}

#[test]
fn named_inode_stays() {
    everywhere(|fs| {
        let ino = fs.file("file", b"bytes");
        fs.forget(ino);
        assert_eq!(fs.walk("file"), Ok(ino));
        fs.forget(Ino(12345));
    });
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        fs.file("file", b"bytes");
        fs.file("big", &[7; 100]);
    };
    for text in ["file", "big"] {
        under_faults(before, |fs| {
            let ino = fs.walk(text)?;
            let reply = unlink(fs, text);
            fs.forget(ino);
            reply
        });
    }
}

/// A release counts each file's size separately, even if one is released twice.
#[test]
fn files_that_are_released_together_keep_their_sizes() {
    everywhere(|fs| {
        let (one, other) = (fs.file("one", &[7; 100]), fs.file("other", &[7; 300]));
        for path in ["one", "one", "other"] {
            fs.open(path);
        }
        fs.ask(Request::ForgetAll { inodes: vec![], released: vec![one, other, one] }).unwrap();
        assert_eq!((fs.attr("one").size, fs.attr("other").size), (100, 300));
        fs.forget(one);
        fs.forget(other);
        assert_eq!(fs.fsck(), []);
    });
}
