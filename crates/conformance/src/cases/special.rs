//! Fifos, sockets and device nodes.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::fs::FileType;

use super::prelude::*;

pub(super) fn fifo(d: &Dir) -> CaseResult {
    let path = d.at("p");
    rustix::fs::mkfifoat(CWD, &path, Mode::from_raw_mode(0o640))?;
    same!(stat(&path)?.st_mode, libc::S_IFIFO | 0o640);
    fails!(open(&path, OFlags::WRONLY | OFlags::NONBLOCK), ENXIO);
    let data = pattern(1, 300_000);
    let writer = Child::start(|| Ok(OpenOptions::new().write(true).open(&path)?.write_all(&data)?))?;
    let mut back = Vec::new();
    File::open(&path)?.read_to_end(&mut back)?;
    writer.wait()?;
    same!(back, data);
    same!(stat(&path)?.st_size, 0);
    // Both ends meet although one of them uses another name of the fifo.
    fs::hard_link(&path, d.at("q"))?;
    let writer = Child::start(|| Ok(OpenOptions::new().write(true).open(d.at("q"))?.write_all(b"hello")?))?;
    let mut back = String::new();
    File::open(&path)?.read_to_string(&mut back)?;
    writer.wait()?;
    same!(back, "hello");
    Ok(())
}

/// Changes to the directory first: a socket's path is limited to 107 bytes.
fn inside(d: &Dir, body: impl FnOnce() -> CaseResult) -> CaseResult {
    in_child(|| {
        std::env::set_current_dir(d.path())?;
        body()
    })
}

pub(super) fn socket(d: &Dir) -> CaseResult {
    inside(d, || {
        let listener = UnixListener::bind("s")?;
        check!(stat("s")?.st_mode & libc::S_IFMT == libc::S_IFSOCK);
        fails!(UnixListener::bind("s"), EADDRINUSE);
        fails!(File::open("s"), ENXIO);
        fs::rename("s", "t")?;
        let client = Child::start(|| {
            let mut stream = UnixStream::connect("t")?;
            stream.write_all(b"question")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            same!(answer, "answer");
            Ok(())
        })?;
        let (mut stream, _) = listener.accept()?;
        let mut question = [0; 8];
        stream.read_exact(&mut question)?;
        stream.write_all(b"answer")?;
        drop(stream);
        client.wait()?;
        drop(listener);
        fails!(UnixStream::connect("t"), ECONNREFUSED);
        chmod("t", 0)?;
        let listener = UnixListener::bind("u")?;
        chmod("u", 0o700)?;
        BOB.run(|| {
            fails!(UnixStream::connect("u"), EACCES);
            Ok(())
        })?;
        drop(listener);
        Ok(())
    })
}

pub(super) fn devices(d: &Dir) -> CaseResult {
    let make = |name: &str, kind, device| {
        rustix::fs::mknodat(CWD, d.at(name), kind, Mode::from_raw_mode(0o600), device)
    };
    for (name, kind, device) in [
        ("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        ("block", FileType::BlockDevice, rustix::fs::makedev(7, 200)),
        ("large", FileType::CharacterDevice, rustix::fs::makedev(4000, 1_000_000)),
    ] {
        make(name, kind, device)?;
        let s = stat(d.at(name))?;
        same!(s.st_rdev, device, "{name}");
        same!(FileType::from_raw_mode(s.st_mode), kind);
    }
    fails!(make("null", FileType::CharacterDevice, 0), EEXIST);
    make("plain", FileType::RegularFile, 0)?;
    check!(stat(d.at("plain"))?.st_mode == libc::S_IFREG | 0o600);
    // The device node works, unless the mount has `nodev`.
    match OpenOptions::new().read(true).write(true).open(d.at("null")) {
        Ok(mut null) => {
            null.write_all(b"gone")?;
            same!(null.read(&mut [0; 10])?, 0);
        }
        Err(e) => same!(e.raw_os_error(), Some(libc::EACCES)),
    }
    same!(stat(d.at("null"))?.st_size, 0);
    Ok(())
}

pub(super) fn device_permissions(d: &Dir) -> CaseResult {
    let home = d.home("home", ALICE, 0o755)?;
    ALICE.run(|| {
        let node = |kind, device| {
            rustix::fs::mknodat(CWD, home.at("n"), kind, Mode::from_raw_mode(0o600), device)
        };
        fails!(node(FileType::CharacterDevice, 0x103), EPERM);
        fails!(node(FileType::BlockDevice, 0x700), EPERM);
        rustix::fs::mkfifoat(CWD, home.at("p"), Mode::from_raw_mode(0o600))?;
        Ok(())
    })?;
    same!(stat(home.at("p"))?.st_uid, ALICE.uid);
    Ok(())
}

pub(super) fn socket_in_listing(d: &Dir) -> CaseResult {
    inside(d, || {
        drop(UnixListener::bind("s")?);
        same!(crate::sys::names(".")?, ["s"]);
        fs::remove_file("s")?;
        same!(crate::sys::names(".")?.len(), 0);
        Ok(())
    })
}
