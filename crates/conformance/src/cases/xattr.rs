//! Extended attributes, with the kernel's limits.

use rustix::fs::{XattrFlags, getxattr, lgetxattr, listxattr, lsetxattr, removexattr, setxattr};

use super::prelude::*;

const ANY: XattrFlags = XattrFlags::empty();

fn get(path: &Path, name: &str) -> rustix::io::Result<Vec<u8>> {
    let mut value = vec![0; 65_536];
    let len = getxattr(path, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

/// Sorted names, without those that the system adds (`security.selinux`).
fn list(path: &Path) -> rustix::io::Result<Vec<String>> {
    let mut buffer = vec![0; 65_536];
    let len = listxattr(path, &mut buffer[..])?;
    let mut names: Vec<_> = buffer[..len]
        .split(|b| *b == 0)
        .filter(|n| !n.is_empty())
        .map(|n| String::from_utf8_lossy(n).into_owned())
        .filter(|n| n != "security.selinux")
        .collect();
    names.sort();
    Ok(names)
}

pub(super) fn set_get_list(d: &Dir) -> CaseResult {
    let f = d.file("f", b"data")?;
    same!(list(&f)?.len(), 0);
    setxattr(&f, "user.a", b"one", ANY)?;
    setxattr(&f, "user.b", b"\0binary\xff", ANY)?;
    setxattr(&f, "user.empty", b"", ANY)?;
    same!(get(&f, "user.a")?, b"one");
    same!(get(&f, "user.b")?, b"\0binary\xff");
    same!(get(&f, "user.empty")?, b"");
    same!(list(&f)?, ["user.a", "user.b", "user.empty"]);
    setxattr(&f, "user.a", b"longer than before", ANY)?;
    same!(get(&f, "user.a")?, b"longer than before");
    removexattr(&f, "user.b")?;
    fails!(removexattr(&f, "user.b"), ENODATA);
    fails!(get(&f, "user.b"), ENODATA);
    same!(list(&f)?, ["user.a", "user.empty"]);
    fs::rename(&f, d.at("g"))?;
    same!(get(&d.at("g"), "user.a")?, b"longer than before");
    same!(fs::read(d.at("g"))?, b"data");
    Ok(())
}

pub(super) fn create_replace(d: &Dir) -> CaseResult {
    let f = d.file("f", b"")?;
    fails!(setxattr(&f, "user.a", b"1", XattrFlags::REPLACE), ENODATA);
    setxattr(&f, "user.a", b"1", XattrFlags::CREATE)?;
    fails!(setxattr(&f, "user.a", b"2", XattrFlags::CREATE), EEXIST);
    same!(get(&f, "user.a")?, b"1");
    setxattr(&f, "user.a", b"3", XattrFlags::REPLACE)?;
    same!(get(&f, "user.a")?, b"3");
    Ok(())
}

pub(super) fn sizes(d: &Dir) -> CaseResult {
    let f = d.file("f", b"")?;
    setxattr(&f, "user.abc", b"12345", ANY)?;
    setxattr(&f, "user.d", b"", ANY)?;
    same!(rustix::fs::getxattr_query(&f, "user.abc")?, 5);
    same!(rustix::fs::getxattr_query(&f, "user.d")?, 0);
    let mut small = [0; 4];
    fails!(getxattr(&f, "user.abc", &mut small), ERANGE);
    let size = rustix::fs::listxattr_query(&f)?;
    check!(size >= "user.abc\0user.d\0".len());
    let mut buffer = vec![0; size];
    same!(listxattr(&f, &mut buffer[..])?, size);
    let mut tiny = [0; 3];
    fails!(listxattr(&f, &mut tiny), ERANGE);
    Ok(())
}

pub(super) fn names_and_limits(d: &Dir) -> CaseResult {
    let f = d.file("f", b"")?;
    let longest = format!("user.{}", "n".repeat(250));
    setxattr(&f, &longest, b"v", ANY)?;
    same!(get(&f, &longest)?, b"v");
    same!(list(&f)?, [longest.as_str()]);
    fails!(setxattr(&f, format!("{longest}n"), b"v", ANY), ERANGE);
    fails!(setxattr(&f, "user.big", &vec![0; 65_537], ANY), E2BIG);
    fails!(setxattr(&f, "unknown.name", b"", ANY), EOPNOTSUPP);
    fails!(setxattr(&f, "noprefix", b"", ANY), EOPNOTSUPP);
    fails!(setxattr(&f, "user.", b"", ANY), EINVAL);
    fails!(setxattr(&f, "", b"", ANY), ERANGE);
    fails!(setxattr(d.at("none"), "user.a", b"", ANY), ENOENT);
    Ok(())
}

pub(super) fn namespaces(d: &Dir) -> CaseResult {
    let f = d.file("f", b"")?;
    chmod(&f, 0o666)?;
    for name in ["user.n", "trusted.n", "security.n"] {
        setxattr(&f, name, name.as_bytes(), ANY).context(name)?;
        same!(get(&f, name)?, name.as_bytes());
    }
    same!(list(&f)?, ["security.n", "trusted.n", "user.n"]);
    ALICE.run(|| {
        same!(get(&f, "user.n")?, b"user.n");
        setxattr(&f, "user.by-alice", b"", ANY)?;
        fails!(get(&f, "trusted.n"), ENODATA);
        fails!(setxattr(&f, "trusted.n", b"", ANY), EPERM);
        check!(!list(&f)?.contains(&"trusted.n".to_owned()), "trusted names are hidden from users");
        Ok(())
    })
}

pub(super) fn special_files(d: &Dir) -> CaseResult {
    rustix::fs::symlink("nowhere", d.at("l"))?;
    rustix::fs::mkfifoat(CWD, d.at("p"), Mode::from_raw_mode(0o644))?;
    for name in ["l", "p"] {
        fails!(lsetxattr(d.at(name), "user.a", b"", ANY), EPERM);
        lsetxattr(d.at(name), "trusted.a", b"v", ANY).context(name)?;
        let mut value = [0; 8];
        same!(lgetxattr(d.at(name), "trusted.a", &mut value)?, 1);
    }
    let mut value = [0; 8];
    fails!(lgetxattr(d.at("p"), "user.a", &mut value), EPERM | ENODATA);
    Ok(())
}

pub(super) fn large_values(d: &Dir) -> CaseResult {
    let f = d.file("f", b"")?;
    for len in [1000, 3000, 4096, 20_000, 65_536] {
        let value = pattern(len as u64, len);
        match setxattr(&f, "user.large", &value, ANY) {
            Ok(()) => same!(get(&f, "user.large")?, value),
            // ext4 stores all of them in one block.
            Err(e) => {
                check!(d.kind() != "fuse", "{len} bytes: {e}");
                check!([libc::ENOSPC, libc::E2BIG].contains(&e.raw_os_error()), "{len} bytes: {e}");
            }
        }
    }
    setxattr(&f, "user.large", b"small", ANY)?;
    same!(get(&f, "user.large")?, b"small");
    Ok(())
}

pub(super) fn many_names(d: &Dir) -> CaseResult {
    let f = d.file("f", b"")?;
    let mut want = Vec::new();
    for n in 0..60 {
        let name = format!("user.attribute{n:03}");
        setxattr(&f, &name, n.to_string().as_bytes(), ANY)?;
        want.push(name);
    }
    same!(list(&f)?, want);
    for name in want.iter().step_by(2) {
        removexattr(&f, name)?;
    }
    same!(list(&f)?.len(), 30);
    same!(get(&f, "user.attribute031")?, b"31");
    Ok(())
}

pub(super) fn directories(d: &Dir) -> CaseResult {
    let dir = d.mkdir("dir", 0o755)?;
    setxattr(&dir, "user.a", b"on a directory", ANY)?;
    same!(get(&dir, "user.a")?, b"on a directory");
    let inner = dir.join("f");
    fs::write(&inner, b"")?;
    same!(list(&inner)?.len(), 0);
    let file = d.open("dir/f")?;
    rustix::fs::fsetxattr(&file, "user.fd", b"x", ANY)?;
    same!(get(&inner, "user.fd")?, b"x");
    Ok(())
}

pub(super) fn permissions(d: &Dir) -> CaseResult {
    let f = d.file("f", b"")?;
    chmod(&f, 0o640)?;
    setxattr(&f, "user.a", b"1", ANY)?;
    let sticky = d.mkdir("sticky", 0o1777)?;
    BOB.run(|| {
        fails!(get(&f, "user.a"), EACCES);
        fails!(setxattr(&f, "user.a", b"2", ANY), EACCES);
        fails!(removexattr(&f, "user.a"), EACCES);
        fails!(setxattr(&sticky, "user.a", b"2", ANY), EPERM);
        Ok(())
    })?;
    chmod(&f, 0o644)?;
    BOB.run(|| {
        same!(get(&f, "user.a")?, b"1");
        fails!(setxattr(&f, "user.a", b"2", ANY), EACCES);
        Ok(())
    })
}

pub(super) fn ctime_changes(d: &Dir) -> CaseResult {
    let f = d.file("f", b"")?;
    let before = stat(&f)?;
    tick();
    setxattr(&f, "user.a", b"1", ANY)?;
    let set = stat(&f)?;
    check!(ctime(&set) > ctime(&before));
    same!(mtime(&set), mtime(&before));
    tick();
    removexattr(&f, "user.a")?;
    check!(ctime(&stat(&f)?) > ctime(&set));
    Ok(())
}
