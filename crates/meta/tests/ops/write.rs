use espalier_proto::*;

use crate::harness::{Harness, STRIP, config, everywhere, under_faults, user};

fn write(fs: &mut Harness, path: &str, offset: u64, data: &[u8]) -> Result<Reply, Errno> {
    let ino = fs.walk(path)?;
    fs.write(ino, offset, data)
}

#[test]
fn bytes_are_put_and_times_change() {
    everywhere(|fs| {
        let ino = fs.file("file", b"bytes");
        let before = fs.attr("file");
        assert_eq!(write(fs, "file", 3, b"XYZ"), Ok(Reply::Done));
        let after = fs.attr("file");
        assert_eq!((fs.read(ino), after.size), (b"bytXYZ".to_vec(), 6));
        assert!(after.mtime > before.mtime && after.ctime == after.mtime && after.atime == before.atime);
        // A hole precedes bytes beyond the end.
        write(fs, "file", 8, b"!").unwrap();
        assert_eq!(fs.read(ino), b"bytXYZ\0\0!");
    });
}

#[test]
fn client_write_time_is_accepted_unless_clock_is_far_off() {
    everywhere(|fs| {
        let ino = fs.file("file", b"");
        for (skew, is_accepted) in [(-11, false), (-9, true), (9, true), (11, false)] {
            let (time, kill_suid_gid) = (Time::new(fs.now.secs + skew, 0), false);
            let data = b"bytes".to_vec();
            fs.ask(Request::Write { ino, offset: 0, data: data.into(), kill_suid_gid, time: Some(time) })
                .unwrap();
            let attr = fs.attr("file");
            assert_eq!((attr.mtime == time, attr.ctime), (is_accepted, attr.mtime), "{skew}");
        }
    });
}

#[test]
fn append_goes_to_end_of_file() {
    everywhere(|fs| {
        let ino = fs.file("file", b"bytes");
        assert_eq!(write(fs, "file", END, b" and"), Ok(Reply::Done));
        assert_eq!(write(fs, "file", END, b" more"), Ok(Reply::Done));
        assert_eq!(fs.read(ino), b"bytes and more");
        // An append beyond the strip unstuffs the file, as any other write does.
        assert_eq!(write(fs, "file", END, &[1; STRIP as usize]), Ok(Reply::Streamed));
        assert_eq!(fs.attr("file").size, 14);
    });
}

#[test]
fn nothing_written_changes_nothing() {
    everywhere(|fs| {
        fs.file("file", b"bytes");
        let before = fs.attr("file");
        assert_eq!(write(fs, "file", 20, b""), Ok(Reply::Done));
        assert_eq!(fs.attr("file"), before);
    });
}

/// The client forgets the old mode before anything is written.
#[test]
fn set_id_bits_are_removed_before_an_unprivileged_write() {
    everywhere(|fs| {
        let ino = fs.file("file", b"");
        let write = |fs: &mut Harness, data: &'static [u8]| {
            let (data, kill_suid_gid) = (data.into(), true);
            fs.ask_as(&user(5), Request::Write { ino, offset: 0, data, kill_suid_gid, time: None })
        };
        fs.chmod("file", 0o6755);
        fs.write(ino, 0, b"x").unwrap();
        assert_eq!(write(fs, b""), Ok(Reply::Done), "nothing was written");
        assert_eq!(fs.attr("file").perm, 0o6755);
        let before = fs.attr("file");
        assert_eq!(write(fs, b"y"), Ok(Reply::PrivilegesRemoved { changed: true }));
        let after = fs.attr("file");
        assert_eq!((after.perm, after.mtime, fs.read(ino)), (0o755, before.mtime, b"x".to_vec()));
        assert!(after.ctime > before.ctime);
        assert_eq!(write(fs, b"y"), Ok(Reply::Done));
        assert_eq!(fs.read(ino), b"y");
    });
}

#[test]
fn privileges_are_removed_from_small_and_big_files() {
    everywhere(|fs| {
        let (small, big) = (fs.file("small", b"bytes"), fs.file("big", &[7; 100]));
        let remove = |fs: &mut Harness, uid, ino| match fs
            .ask_as(&user(uid), Request::RemovePrivileges { ino })
            .unwrap()
        {
            Reply::PrivilegesRemoved { changed } => changed,
            other => panic!("{other:?}"),
        };
        for (path, ino) in [("small", small), ("big", big)] {
            fs.chown(path, 5, 1005);
            for (perm, member, outsider) in [
                (0o6755, 0o755, 0o755),
                (0o2765, 0o2765, 0o765),
                (0o4700, 0o700, 0o700),
                (0o1666, 0o1666, 0o1666),
            ] {
                for (uid, left) in [(5, member), (6, outsider)] {
                    fs.chmod(path, perm);
                    assert_eq!(remove(fs, uid, ino), left != perm, "{path} {perm:o} {uid}");
                    assert_eq!(fs.attr(path).perm, left, "{path} {perm:o} {uid}");
                }
            }
        }
    });
}

#[test]
fn file_over_strip_is_unstuffed_with_its_bytes() {
    everywhere(|fs| {
        let ino = fs.file("file", b"bytes");
        assert_eq!(write(fs, "file", STRIP - 1, b"x"), Ok(Reply::Done));
        fs.lazy = true;
        assert_eq!(write(fs, "file", STRIP, b"x"), Ok(Reply::Streamed));
        let attr = fs.attr("file");
        assert!(attr.streamed && attr.size == STRIP);
        assert_eq!(fs.read(ino)[..5], *b"bytes");
        // The file stays unstuffed.
        assert_eq!(write(fs, "file", 0, b"x"), Ok(Reply::Streamed));
        // Until that is durable, a crash undoes it.
        assert_eq!(fs.disk.store().new_streams().unwrap(), [ino]);
        fs.lazy = false;
        fs.run_until_idle();
        assert_eq!(fs.disk.store().new_streams().unwrap(), [ino], "a writer does not wait for it");
        fs.input(espalier_meta::Input::Tick);
        fs.run_until_idle();
        assert_eq!(fs.disk.store().new_streams().unwrap(), []);
    });
}

#[test]
fn errors_come_in_order() {
    everywhere(|fs| {
        fs.file("file", b"");
        fs.make("fifo", NewNode::Fifo);
        assert_eq!(write(fs, "fifo", 0, b"x"), Err(Errno::EINVAL));
        assert_eq!(write(fs, "file", u64::MAX - 1, b"xy"), Err(Errno::EFBIG));
    });
}

/// With a full store the journal fills, writes fail, and everything continues when there is space
/// again.
#[test]
fn checkpoint_without_space_is_retried() {
    let mut fs = Harness::with(config());
    let ino = fs.file("file", b"");
    fs.ask(Request::Fsync { ino }).unwrap();
    fs.lazy = true;
    let mut number: u32 = 0;
    let mut full = |fs: &mut Harness| loop {
        number += 1;
        let written = fs.ask(Request::SetXattr {
            ino,
            name: b"user.x".as_slice().into(),
            value: [&number.to_le_bytes()[..], &[0; 20_000]].concat().into(),
            mode: XattrMode::Any,
            kill_sgid: false,
        });
        if let Err(errno) = written {
            return errno;
        }
        // Each I/O of a checkpoint fails, at its first piece or later; that of the journal
        // succeeds.
        for (id, io) in std::mem::take(&mut fs.waiting) {
            let journal = matches!(io, espalier_meta::Io::Journal { .. });
            let result = if journal { fs.disk.execute(io) } else { Err(Errno::ENOSPC) };
            fs.input(espalier_meta::Input::Done { id, result });
        }
        fs.input(espalier_meta::Input::Tick);
    };
    assert_eq!(full(&mut fs), Errno::ENOSPC);
    assert_eq!(fs.meta.failure(), Some(Errno::ENOSPC));
    assert_eq!(fs.meta.broken(), None);
    let seen = fs.dump();
    assert_eq!(fs.ask(Request::GetAttr { ino }).map(drop), Ok(()));
    // There is space again.
    fs.lazy = false;
    fs.run_until_idle();
    fs.checkpoint();
    assert_eq!(fs.meta.failure(), None);
    assert_eq!(fs.dump(), seen);
    fs.write(ino, 0, b"again").unwrap();
    assert_eq!(fs.fsck(), []);
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        fs.mkdir("dir");
        fs.file("dir/file", b"bytes");
    };
    for (offset, data) in [(3, &b"XYZ"[..]), (STRIP, b"x")] {
        under_faults(before, |fs| write(fs, "dir/file", offset, data));
    }
}
