//! Set-user-id and set-group-id bits: when they are cleared, and their effect on directories.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};

use rustix::fs::{FallocateFlags, XattrFlags, copy_file_range, fallocate};
use rustix::io::Errno;

use super::prelude::*;

const CAPABILITY: &str = "security.capability";
/// A capability attribute of version 2 that permits CAP_NET_RAW.
const NET_RAW: [u8; 20] = *b"\0\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
/// Sizes in bytes of a stuffed and of an unstuffed file.
const SIZES: [usize; 2] = [100, 100_000];

/// A program owned by Alice, in her own group or in a group that she is not in.
fn program(d: &Dir, name: &str, bits: u32, gid: u32) -> Result<PathBuf, Failure> {
    let path = d.file(name, b"program")?;
    chown(&path, ALICE.uid, gid)?;
    chmod(&path, bits)?;
    same_mode(&path, bits)?;
    Ok(path)
}

fn same_mode(path: &Path, bits: u32) -> CaseResult {
    let found = mode(path)?;
    check!(found == bits, "mode is {found:o}, not {bits:o}");
    Ok(())
}

pub(super) fn cleared_by_write(d: &Dir) -> CaseResult {
    let f = program(d, "f", 0o6777, ALICE.gid)?;
    ALICE.run(|| {
        let file = OpenOptions::new().write(true).open(&f)?;
        file.write_all_at(b"x", 0)?;
        same_mode(&f, 0o777)
    })?;
    let f = program(d, "g", 0o6777, ALICE.gid)?;
    BOB.run(|| {
        OpenOptions::new().append(true).open(&f)?.write_all_at(b"x", 0)?;
        same_mode(&f, 0o777)
    })?;
    // Without group execution the bit does not mean set-group-id, and stays.
    let f = program(d, "h", 0o2767, ALICE.gid)?;
    ALICE.run(|| {
        OpenOptions::new().write(true).open(&f)?.write_all_at(b"x", 0)?;
        same_mode(&f, 0o2767)
    })
}

pub(super) fn cleared_by_chown(d: &Dir) -> CaseResult {
    let f = program(d, "f", 0o6755, ALICE.gid)?;
    ALICE.run_in(&[STAFF], || {
        chown(&f, ALICE.uid, STAFF)?;
        same_mode(&f, 0o755)
    })?;
    let f = program(d, "g", 0o6755, ALICE.gid)?;
    chown(&f, BOB.uid, BOB.gid)?;
    same_mode(&f, 0o755)?;
    let dir = d.mkdir("dir", 0o2755)?;
    chown(&dir, BOB.uid, BOB.gid)?;
    same_mode(&dir, 0o2755)
}

pub(super) fn cleared_by_truncate(d: &Dir) -> CaseResult {
    let f = program(d, "f", 0o6777, ALICE.gid)?;
    BOB.run(|| {
        OpenOptions::new().write(true).open(&f)?.set_len(2)?;
        same_mode(&f, 0o777)
    })?;
    let f = program(d, "g", 0o6777, ALICE.gid)?;
    BOB.run(|| {
        open(&f, OFlags::WRONLY | OFlags::TRUNC)?;
        same_mode(&f, 0o777)
    })
}

pub(super) fn chmod_by_outsider(d: &Dir) -> CaseResult {
    // An owner outside the file's group cannot set the set-group-id bit.
    let f = program(d, "f", 0o755, STAFF)?;
    ALICE.run(|| {
        chmod(&f, 0o6755)?;
        same_mode(&f, 0o4755)
    })?;
    ALICE.run_in(&[STAFF], || {
        chmod(&f, 0o6755)?;
        same_mode(&f, 0o6755)
    })
}

pub(super) fn directory_group(d: &Dir) -> CaseResult {
    let dir = d.mkdir("dir", 0o755)?;
    chown(&dir, 0, STAFF)?;
    chmod(&dir, 0o2777)?;
    ALICE.run(|| {
        fs::write(dir.join("f"), b"")?;
        fs::create_dir(dir.join("sub"))?;
        fs::write(dir.join("sub/g"), b"")?;
        rustix::fs::symlink("f", dir.join("l"))?;
        Ok(())
    })?;
    for name in ["f", "sub", "sub/g", "l"] {
        let s = stat(dir.join(name))?;
        same!((s.st_uid, s.st_gid), (ALICE.uid, STAFF), "{name}");
    }
    same!(mode(dir.join("sub"))?, 0o2755);
    let plain = d.mkdir("plain", 0o777)?;
    chown(&plain, 0, STAFF)?;
    ALICE.run(|| Ok(fs::write(plain.join("f"), b"")?))?;
    same!(stat(plain.join("f"))?.st_gid, ALICE.gid);
    Ok(())
}

pub(super) fn directory_group_of_outsider(d: &Dir) -> CaseResult {
    let dir = d.mkdir("dir", 0o755)?;
    chown(&dir, 0, STAFF)?;
    chmod(&dir, 0o2777)?;
    // Otherwise a user could make a program that runs with a foreign group.
    ALICE.run(|| {
        umask(0);
        OpenOptions::new().write(true).create_new(true).mode(0o2775).open(dir.join("f"))?;
        same_mode(&dir.join("f"), 0o775)
    })?;
    ALICE.run_in(&[STAFF], || {
        umask(0);
        OpenOptions::new().write(true).create_new(true).mode(0o2775).open(dir.join("g"))?;
        same_mode(&dir.join("g"), 0o2775)
    })
}

pub(super) fn kept_for_root(d: &Dir) -> CaseResult {
    let f = program(d, "f", 0o6755, ALICE.gid)?;
    OpenOptions::new().write(true).open(&f)?.write_all_at(b"root", 0)?;
    same_mode(&f, 0o6755)?;
    fs::rename(&f, d.at("g"))?;
    same_mode(&d.at("g"), 0o6755)
}

/// Also for root, and through a handle older than the capability.
pub(super) fn capabilities_cleared_by_write(d: &Dir) -> CaseResult {
    for (len, read) in [(10, false), (10, true), (100_000, false), (100_000, true)] {
        let f = d.file(format!("f{len}{read}"), &pattern(1, len))?;
        let set = || rustix::fs::setxattr(&f, CAPABILITY, &NET_RAW, XattrFlags::empty());
        let file = OpenOptions::new().read(read).write(true).open(&f)?;
        set()?;
        same!(rustix::fs::getxattr_query(&f, CAPABILITY)?, NET_RAW.len());
        file.write_all_at(b"x", 1)?;
        fails!(rustix::fs::getxattr_query(&f, CAPABILITY), ENODATA);
        set()?;
        file.set_len(5)?;
        fails!(rustix::fs::getxattr_query(&f, CAPABILITY), ENODATA);
    }
    Ok(())
}

/// An operation that changes a file's data, given the file and another one of the same size.
type DataChange = fn(&Path, &Path) -> CaseResult;

fn changes() -> [(&'static str, DataChange); 14] {
    [
        ("write", |f, _| Ok(writer(f)?.write_all_at(b"x", 1)?)),
        ("write of a reader", |f, _| {
            Ok(OpenOptions::new().read(true).write(true).open(f)?.write_all_at(b"x", 1)?)
        }),
        ("append", |f, _| Ok(OpenOptions::new().append(true).open(f)?.write_all(b"x")?)),
        ("synchronous write", |f, _| Ok(open(f, OFlags::WRONLY | OFlags::DSYNC)?.write_all_at(b"x", 1)?)),
        ("direct write", |f, _| direct_write(f)),
        ("copy_file_range", |f, other| {
            let from = File::open(other)?;
            copy_file_range(&from, Some(&mut 0), &writer(f)?, Some(&mut 0), 50)?;
            Ok(())
        }),
        ("splice", |f, _| {
            let (read, write) = rustix::pipe::pipe()?;
            rustix::io::write(&write, b"x")?;
            rustix::pipe::splice(&read, None, &writer(f)?, Some(&mut 1), 1, rustix::pipe::SpliceFlags::empty())?;
            Ok(())
        }),
        ("truncate", |f, _| {
            let path = std::ffi::CString::new(f.as_os_str().as_encoded_bytes())?;
            // SAFETY: the path ends with a NUL and outlives the call.
            let done = unsafe { libc::truncate(path.as_ptr(), 50) };
            if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
        }),
        ("ftruncate", |f, _| Ok(writer(f)?.set_len(200_000)?)),
        ("O_TRUNC", |f, _| Ok(OpenOptions::new().write(true).truncate(true).open(f).map(drop)?)),
        ("fallocate", |f, _| allocate(f, FallocateFlags::empty(), 300_000)),
        ("fallocate that keeps the size", |f, _| allocate(f, FallocateFlags::KEEP_SIZE, 300_000)),
        ("punch", |f, _| allocate(f, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 50)),
        ("zero", |f, _| allocate(f, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 50)),
    ]
}

fn writer(f: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).open(f)
}

fn direct_write(f: &Path) -> CaseResult {
    let file = match OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(f) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => writer(f)?,
        file => file?,
    };
    let bytes = vec![b'x'; 8192];
    // A block with the alignment of direct writes.
    let start = bytes.as_ptr().align_offset(4096);
    file.write_all_at(&bytes[start..start + 4096], 0)?;
    Ok(())
}

fn allocate(f: &Path, mode: FallocateFlags, length: u64) -> CaseResult {
    match fallocate(writer(f)?, mode, 0, length) {
        Err(Errno::OPNOTSUPP) => Err(Failure::skip("no such fallocate")),
        done => Ok(done?),
    }
}

/// Executes a change as a user; returns true if the file system supports it.
fn has(by: User, change: DataChange, f: &Path, other: &Path, case_name: &str) -> Result<bool, Failure> {
    match by.run(|| change(f, other)) {
        Err(Failure { skip: true, .. }) => Ok(false),
        Err(failure) => Err(Failure { message: format!("{case_name}: {}", failure.message), skip: false }),
        Ok(()) => Ok(true),
    }
}

pub(super) fn cleared_by_every_change_of_bytes(d: &Dir) -> CaseResult {
    for len in SIZES {
        let other = d.file(format!("other{len}"), &pattern(2, len))?;
        for (number, (case_name, change)) in changes().into_iter().enumerate() {
            for (by, older) in [(ALICE, false), (BOB, false), (BOB, true)] {
                let f = d.file(format!("{len}-{number}-{}-{older}", by.uid), &pattern(1, len))?;
                // Another handle, for which the kernel may use passthrough.
                let _writer = if older { Some(OpenOptions::new().read(true).write(true).open(&f)?) } else { None };
                chown(&f, ALICE.uid, ALICE.gid)?;
                chmod(&f, 0o6777)?;
                same_mode(&f, 0o6777)?;
                if has(by, change, &f, &other, case_name)? {
                    let found = mode(&f)?;
                    check!(found == 0o777, "{case_name}, {len} bytes: mode is {found:o}");
                }
            }
        }
    }
    Ok(())
}

pub(super) fn cleared_through_older_opening(d: &Dir) -> CaseResult {
    for len in SIZES {
        let f = d.file(format!("f{len}"), &pattern(1, len))?;
        let other = File::open(d.file(format!("other{len}"), &pattern(2, len))?)?;
        let file = OpenOptions::new().read(true).write(true).open(&f)?;
        let change: [(&str, &dyn Fn() -> CaseResult); 4] = [
            ("write", &|| Ok(file.write_all_at(b"x", 1)?)),
            ("truncate", &|| Ok(file.set_len(len as u64 - 10)?)),
            ("fallocate", &|| Ok(fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 300_000)?)),
            ("copy", &|| copy_file_range(&other, Some(&mut 0), &file, Some(&mut 0), 50).map(drop).map_err(Failure::from)),
        ];
        for (case_name, change) in change {
            // Denies the writer further opens of the file.
            chmod(&f, 0o4755)?;
            same_mode(&f, 0o4755)?;
            BOB.run(change).map_err(|failure| Failure::at(format!("{case_name}: {}", failure.message)))?;
            let found = mode(&f)?;
            check!(found == 0o755, "{case_name}, {len} bytes: mode is {found:o}");
        }
    }
    Ok(())
}

/// Without group execution the bit has no effect at execution, but setting it needs the privilege.
pub(super) fn group_bit_lost_by_outsider(d: &Dir) -> CaseResult {
    for (number, len) in SIZES.into_iter().enumerate() {
        let f = d.file(format!("f{number}"), &pattern(1, len))?;
        chown(&f, ALICE.uid, STAFF)?;
        chmod(&f, 0o2767)?;
        BOB.run_in(&[STAFF], || Ok(writer(&f)?.write_all_at(b"x", 1)?))?;
        same_mode(&f, 0o2767)?;
        BOB.run(|| Ok(writer(&f)?.write_all_at(b"x", 1)?))?;
        same_mode(&f, 0o767)?;
    }
    Ok(())
}

/// Reads, opens, time changes, and `chown` without an effect by an unprivileged user.
pub(super) fn kept_by_what_changes_no_bytes(d: &Dir) -> CaseResult {
    for (number, len) in SIZES.into_iter().enumerate() {
        let f = d.file(format!("f{number}"), &pattern(1, len))?;
        chown(&f, ALICE.uid, ALICE.gid)?;
        chmod(&f, 0o6755)?;
        let nobody = || rustix::fs::chownat(CWD, &f, None, None, AtFlags::empty());
        BOB.run(|| {
            fs::read(&f)?;
            let _ = nobody();
            Ok(())
        })?;
        same_mode(&f, 0o6755)?;
        ALICE.run(|| {
            drop(OpenOptions::new().read(true).write(true).open(&f)?);
            fs::rename(&f, d.at("gone")).is_err().then_some(()).ok_or_else(|| Failure::at("renamed"))
        })?;
        same_mode(&f, 0o6755)?;
        ALICE.run(|| Ok(nobody()?))?;
        same_mode(&f, 0o755)?;
    }
    Ok(())
}

/// Independent of what the kernel has cached of the file.
pub(super) fn written_program_runs_as_caller(d: &Dir) -> CaseResult {
    let program = fs::read("/usr/bin/id")?;
    for round in 0..6 {
        let f = d.file(format!("id{round}"), &program)?;
        chmod(&f, 0o4777)?;
        let runs_as = |user: User| {
            let ran = Command::new(&f).arg("-u").output()?;
            let uid = String::from_utf8_lossy(&ran.stdout).trim().to_owned();
            same!(uid, user.uid.to_string(), "round {round}");
            Ok(())
        };
        BOB.run(|| runs_as(User { uid: 0, ..BOB }))?;
        BOB.run(|| {
            OpenOptions::new().append(true).open(&f)?.write_all(b"x")?;
            runs_as(BOB)
        })?;
    }
    Ok(())
}

pub(super) fn capabilities_cleared_by_every_change_of_bytes(d: &Dir) -> CaseResult {
    for len in SIZES {
        let other = d.file(format!("other{len}"), &pattern(2, len))?;
        for (number, (case_name, change)) in changes().into_iter().enumerate() {
            for (by, older) in [(BOB, false), (BOB, true), (User { uid: 0, gid: 0 }, false)] {
                let f = d.file(format!("{len}-{number}-{}-{older}", by.uid), &pattern(1, len))?;
                let _writer = if older { Some(OpenOptions::new().read(true).write(true).open(&f)?) } else { None };
                chmod(&f, 0o777)?;
                rustix::fs::setxattr(&f, CAPABILITY, &NET_RAW, XattrFlags::empty())?;
                if has(by, change, &f, &other, case_name)? {
                    let left = rustix::fs::getxattr_query(&f, CAPABILITY);
                    check!(left == Err(Errno::NODATA), "{case_name}, {len} bytes: {left:?}");
                }
            }
        }
    }
    Ok(())
}

pub(super) fn capabilities_cleared_by_chown(d: &Dir) -> CaseResult {
    for (number, len) in SIZES.into_iter().enumerate() {
        let f = d.file(format!("f{number}"), &pattern(1, len))?;
        chown(&f, ALICE.uid, ALICE.gid)?;
        let set = || rustix::fs::setxattr(&f, CAPABILITY, &NET_RAW, XattrFlags::empty());
        set()?;
        ALICE.run_in(&[STAFF], || chown(&f, ALICE.uid, STAFF))?;
        fails!(rustix::fs::getxattr_query(&f, CAPABILITY), ENODATA);
        set()?;
        chown(&f, BOB.uid, BOB.gid)?;
        fails!(rustix::fs::getxattr_query(&f, CAPABILITY), ENODATA);
    }
    Ok(())
}

pub(super) fn capabilities_removed_by_privileged_only(d: &Dir) -> CaseResult {
    let f = d.file("f", b"program")?;
    chown(&f, ALICE.uid, ALICE.gid)?;
    chmod(&f, 0o777)?;
    rustix::fs::setxattr(&f, CAPABILITY, &NET_RAW, XattrFlags::empty())?;
    for user in [ALICE, BOB] {
        user.run(|| {
            fails!(rustix::fs::removexattr(&f, CAPABILITY), EPERM);
            fails!(rustix::fs::setxattr(&f, CAPABILITY, &NET_RAW, XattrFlags::empty()), EPERM);
            Ok(())
        })?;
    }
    same!(rustix::fs::getxattr_query(&f, CAPABILITY)?, NET_RAW.len());
    rustix::fs::removexattr(&f, CAPABILITY)?;
    fails!(rustix::fs::getxattr_query(&f, CAPABILITY), ENODATA);
    Ok(())
}

/// Containers execute programs from an overlay layer with their changes.
pub(super) fn kept_by_copy_up_of_overlayfs(d: &Dir) -> CaseResult {
    let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(|name| d.at(name));
    for dir in [&lower, &upper, &work, &merged] {
        fs::create_dir(dir)?;
        chmod(dir, 0o755)?;
    }
    for name in ["touched", "owned", "written"] {
        let f = lower.join(name);
        fs::write(&f, pattern(1, 100_000))?;
        chown(&f, ALICE.uid, ALICE.gid)?;
        rustix::fs::setxattr(&f, CAPABILITY, &NET_RAW, XattrFlags::empty())?;
        chmod(&f, 0o6757)?;
    }
    let layers = [("lowerdir", &lower), ("upperdir", &upper), ("workdir", &work)];
    let layers: Vec<_> = layers.iter().map(|(name, dir)| format!("{name}={}", dir.display())).collect();
    let options = layers.join(",");
    let mut mount = Command::new("mount");
    mount.args(["-t", "overlay", "overlay", "-o", &options]).arg(&merged).stderr(Stdio::null());
    if !mount.status()?.success() {
        return Err(Failure::skip("no overlayfs"));
    }
    let outcome = (|| -> CaseResult {
        let has_capability = |f: &Path| rustix::fs::getxattr_query(f, CAPABILITY).is_ok();
        let touched = merged.join("touched");
        File::options().append(true).open(&touched)?;
        check!(exists(upper.join("touched")));
        same_mode(&touched, 0o6757)?;
        check!(has_capability(&touched));
        same!(stat(&touched)?.st_uid, ALICE.uid);
        let owned = merged.join("owned");
        chown(&owned, BOB.uid, BOB.gid)?;
        same_mode(&owned, 0o757)?;
        check!(!has_capability(&owned));
        let written = merged.join("written");
        BOB.run(|| Ok(writer(&written)?.write_all_at(b"x", 1)?))?;
        same_mode(&written, 0o757)?;
        check!(!has_capability(&written));
        same_mode(&lower.join("written"), 0o6757)
    })();
    let unmounted = Command::new("umount").arg(&merged).status()?.success();
    outcome?;
    check!(unmounted);
    Ok(())
}
