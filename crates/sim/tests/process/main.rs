//! Processes on an embedded machine.
#![allow(clippy::unwrap_used)]

mod embedded;
mod traces;
mod workloads;

use embedded::{Embedded, STRIP};
use espalier_proto::{Access, Errno, RenameFlags, Request, SetAttr};
use espalier_sim::process::Frontend;
use espalier_sim::source::{Op, OpenFlags, Target};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn chmod(path: &str, perm: u32) -> Op {
    let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
    Op::SetAttr { target: Target::Path(path.into()), set }
}

fn symlink(target: &str, path: &str) -> Op {
    Op::Symlink { target: target.into(), path: path.into() }
}

fn rename(from: &str, to: &str) -> Op {
    Op::Rename { from: from.into(), to: to.into(), flags: RenameFlags::empty() }
}

fn write(file: u32, offset: Option<u64>, size: u64) -> Op {
    Op::Write { file, offset, size }
}

fn read(file: u32, offset: Option<u64>, size: u64) -> Op {
    Op::Read { file, offset, size }
}

#[test]
fn a_program_works_on_a_tree() {
    for frontend in [Frontend::Mount, Frontend::Library] {
        let ops = [
            Op::mkdir("/a"),
            Op::mkdir("a/b/"),
            Op::create(3, "/a/b/file"),
            write(3, None, 10),
            write(3, None, 20),
            Op::Sync { file: 3 },
            Op::Close { file: 3 },
            Op::stat("/a/./b/../b/file"),
            Op::Link { from: b"a/b/file".into(), to: b"/a/other".into() },
            rename("/a/other", "/a/third"),
            Op::open(3, "/a/third", OpenFlags::READ),
            read(3, None, 12),
            read(3, None, 100),
            read(3, None, 100),
            Op::Stat { target: Target::File(3) },
            Op::Access { path: b"/a".into(), want: Access::WRITE },
            Op::unlink("/a/third"),
            Op::unlink("/a/b/file"),
            Op::rmdir("/a/b"),
            Op::rmdir("/a"),
        ];
        let results: Vec<_> =
            Embedded::new().run_as(0, frontend, ops).into_iter().map(|result| result.unwrap()).collect();
        assert_eq!(results, [0, 0, 0, 10, 20, 0, 0, 30, 0, 0, 0, 12, 18, 0, 30, 0, 0, 0, 0, 0]);
    }
}

#[test]
fn failure_is_a_result() {
    for frontend in [Frontend::Mount, Frontend::Library] {
        let mut embedded = Embedded::new();
        let ops = [
            (Op::stat("/none"), Some(Errno::ENOENT)),
            (Op::stat(""), Some(Errno::ENOENT)),
            (Op::create(3, "/none/file"), Some(Errno::ENOENT)),
            (Op::create(3, "/file"), None),
            (Op::create(4, "/file"), Some(Errno::EEXIST)),
            (Op::open(4, "/file", RW | OpenFlags::CREATE), None),
            (Op::mkdir("/file"), Some(Errno::EEXIST)),
            (Op::mkdir("/"), Some(Errno::EEXIST)),
            (Op::stat("/file/below"), Some(Errno::ENOTDIR)),
            (Op::stat("/file/"), Some(Errno::ENOTDIR)),
            (Op::open(5, "/", RW), Some(Errno::EISDIR)),
            (Op::open(5, "/file", OpenFlags::READ | OpenFlags::DIRECTORY), Some(Errno::ENOTDIR)),
            (read(3, None, 1), Some(Errno::EBADF)),
            (read(9, None, 1), Some(Errno::EBADF)),
            (Op::Close { file: 9 }, Some(Errno::EBADF)),
            (Op::unlink("/none"), Some(Errno::ENOENT)),
            (Op::unlink("/"), Some(Errno::EISDIR)),
            (Op::rmdir("/file"), Some(Errno::ENOTDIR)),
            (Op::rmdir("/"), Some(Errno::EBUSY)),
            (rename("/none", "/other"), Some(Errno::ENOENT)),
            (rename("/file/", "/other"), Some(Errno::ENOTDIR)),
            (Op::ReadLink { path: b"/file".into() }, Some(Errno::EINVAL)),
            (Op::stat([b'x'; 256]), Some(Errno::ENAMETOOLONG)),
            (symlink("", "/link"), Some(Errno::ENOENT)),
        ];
        let (ops, errors): (Vec<_>, Vec<_>) = ops.into_iter().unzip();
        let results = embedded.run_as(0, frontend, ops.clone());
        for ((op, wanted), result) in ops.iter().zip(errors).zip(results) {
            assert_eq!(result.err(), wanted, "{op:?}");
        }
    }
}

#[test]
fn permissions_are_the_callers() {
    let mut embedded = Embedded::new();
    embedded.run([Op::mkdir("/closed"), Op::create(3, "/closed/file"), chmod("/closed", 0o700)]);
    let results = embedded.run_as(1000, Frontend::Mount, [Op::stat("/closed/file"), Op::mkdir("/mine")]);
    assert_eq!(results, [Err(Errno::EACCES), Err(Errno::EACCES)]);
}

#[test]
fn symbolic_links_are_followed() {
    let results = Embedded::new().run([
        Op::mkdir("/d"),
        symlink("d/file", "/link"),
        symlink("/d", "/d/up"),
        symlink("loop", "/loop"),
        // The target does not exist and is not created.
        Op::open(3, "/link", RW | OpenFlags::CREATE),
        Op::create(3, "/d/up/up/file"),
        write(3, None, 7),
        Op::stat("/link"),
        Op::Stat { target: Target::Link(b"/link".into()) },
        Op::open(4, "/link", RW | OpenFlags::CREATE),
        Op::open(4, "/link", OpenFlags::READ | OpenFlags::NO_FOLLOW),
        Op::ReadLink { path: b"/link".into() },
        Op::stat("/loop"),
    ]);
    let errors: Vec<_> = results.iter().map(|result| result.err()).collect();
    let expected = [(4, Errno::ENOENT), (10, Errno::ELOOP), (12, Errno::ELOOP)];
    for (at, error) in errors.into_iter().enumerate() {
        let wanted = expected.iter().find(|(number, _)| *number == at).map(|(_, error)| *error);
        assert_eq!(error, wanted, "{at}");
    }
    assert_eq!((results[7], results[8]), (Ok(7), Ok(6)));
}

#[test]
fn listings_come_in_pages() {
    let mut embedded = Embedded::new();
    let files = (0..25).map(|number| Op::create(3, format!("/file{number}")));
    embedded.run(files);
    let list = Op::List { file: 3, limit: 10, plus: true };
    let results = embedded.run([
        Op::open(3, "/", OpenFlags::READ | OpenFlags::DIRECTORY),
        list.clone(),
        list.clone(),
        list.clone(),
        list,
    ]);
    assert_eq!(results, [Ok(0), Ok(10), Ok(10), Ok(5), Ok(0)]);
}

#[test]
fn large_datafile_is_moved_in_pieces() {
    let size = (2 << 20) + 5;
    let mut embedded = Embedded::new();
    let results = embedded.run([
        Op::open(3, "/big", RW | OpenFlags::CREATE),
        write(3, Some(STRIP), size),
        read(3, Some(0), 2 * size),
        Op::stat("/big"),
        Op::open(3, "/big", RW | OpenFlags::APPEND),
        write(3, None, 3),
        Op::stat("/big"),
    ]);
    let end = STRIP + size;
    assert_eq!(results, [Ok(0), Ok(size), Ok(end), Ok(end), Ok(0), Ok(3), Ok(end + 3)]);
}

#[test]
fn a_kernel_looks_up_names_before_it_uses_them() {
    let count = |frontend| {
        let mut embedded = Embedded::new();
        embedded.run_as(0, frontend, [Op::create(3, "/file"), Op::unlink("/file")]);
        embedded.received.iter().filter(|request| matches!(request, Request::Lookup { .. })).count()
    };
    assert_eq!((count(Frontend::Mount), count(Frontend::Library)), (2, 0));
}

#[test]
fn process_exit_closes_open_files() {
    let mut embedded = Embedded::new();
    embedded.run([Op::create(3, "/one"), Op::create(4, "/two"), Op::create(3, "/three")]);
    let released = embedded.received.iter().filter(|request| matches!(request, Request::Release { .. }));
    assert_eq!(released.count(), 3);
}
