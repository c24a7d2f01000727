//! Names of arbitrary bytes, and paths of the kernel's maximum length.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::prelude::*;

pub(super) fn every_byte(d: &Dir) -> CaseResult {
    let bytes: Vec<u8> = (1..=255).filter(|b| *b != b'/').collect();
    for b in &bytes {
        d.file(OsStr::from_bytes(&[b'x', *b]), &[*b])?;
    }
    d.file(OsStr::from_bytes(&bytes), b"all of them")?;
    same!(crate::sys::names(d.path())?.len(), bytes.len() + 1);
    for b in &bytes {
        same!(fs::read(d.at(OsStr::from_bytes(&[b'x', *b])))?, [*b]);
    }
    same!(fs::read(d.at(OsStr::from_bytes(&bytes)))?, b"all of them");
    Ok(())
}

pub(super) fn lengths(d: &Dir) -> CaseResult {
    for len in [1, 127, 128, 254, 255] {
        let name = "n".repeat(len);
        d.file(&name, b"x")?;
        fs::rename(d.at(&name), d.at("m".repeat(len)))?;
        check!(exists(d.at("m".repeat(len))));
    }
    let long = d.at("n".repeat(256));
    d.file("f", b"")?;
    fails!(File::create(&long), ENAMETOOLONG);
    fails!(fs::create_dir(&long), ENAMETOOLONG);
    fails!(fs::metadata(&long), ENAMETOOLONG);
    fails!(fs::rename(d.at("f"), &long), ENAMETOOLONG);
    fails!(fs::hard_link(d.at("f"), &long), ENAMETOOLONG);
    fails!(rustix::fs::symlink("f", &long), ENAMETOOLONG);
    fails!(fs::remove_file(&long), ENAMETOOLONG);
    Ok(())
}

pub(super) fn deep_chain(d: &Dir) -> CaseResult {
    const DEPTH: usize = 500;
    let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut handles = vec![open(d.path(), directory)?];
    for n in 0..DEPTH {
        let name = format!("level{n:03}-{}", "d".repeat(40));
        rustix::fs::mkdirat(&handles[n], &name, Mode::from_raw_mode(0o755))?;
        handles.push(rustix::fs::openat(&handles[n], &name, directory, Mode::empty())?.into());
    }
    let bottom = &handles[DEPTH];
    let create = OFlags::CREATE | OFlags::WRONLY;
    let file = rustix::fs::openat(bottom, "f", create, Mode::from_raw_mode(0o600))?;
    rustix::io::write(&file, b"deep")?;
    // Return to the top by `..`.
    let mut at = rustix::fs::openat(bottom, "..", directory, Mode::empty())?;
    for _ in 1..DEPTH {
        at = rustix::fs::openat(&at, "..", directory, Mode::empty())?;
    }
    same!(rustix::fs::fstat(&at)?.st_ino, stat(d.path())?.st_ino);
    // Moving the top directory moves everything below.
    fs::create_dir(d.at("elsewhere"))?;
    let top = format!("level000-{}", "d".repeat(40));
    fs::rename(d.at(&top), d.at("elsewhere").join(&top))?;
    same!(rustix::fs::statat(bottom, "f", AtFlags::empty())?.st_size, 4);
    Ok(())
}

pub(super) fn long_path(d: &Dir) -> CaseResult {
    let mut path = d.path().to_path_buf();
    while path.as_os_str().len() < 4095 - 260 {
        path.push("p".repeat(200));
        fs::create_dir(&path)?;
    }
    // PATH_MAX is 4095 bytes and the terminating NUL.
    let rest = 4095 - path.as_os_str().len() - 1;
    let (first, last) = (rest / 2, rest - rest / 2 - 1);
    path.push("q".repeat(first));
    fs::create_dir(&path)?;
    path.push("r".repeat(last));
    same!(path.as_os_str().len(), 4095);
    fs::write(&path, b"x")?;
    same!(fs::read(&path)?, b"x");
    path.set_file_name("r".repeat(last + 1));
    fails!(fs::write(&path, b"x"), ENAMETOOLONG);
    Ok(())
}

pub(super) fn case_and_normal_forms(d: &Dir) -> CaseResult {
    let names = ["a", "A", "é", "e\u{301}", "ß", "ss", " ", "  ", "a.", "a ", "-", "\n", "con", "a:b", "\\"];
    for (n, name) in names.iter().enumerate() {
        d.file(name, &[n as u8])?;
    }
    same!(crate::sys::names(d.path())?.len(), names.len());
    for (n, name) in names.iter().enumerate() {
        same!(fs::read(d.at(name))?, [n as u8]);
    }
    Ok(())
}

pub(super) fn dot_names(d: &Dir) -> CaseResult {
    for name in ["...", ".hidden", "..x", ".. ", ".wh.x", ".fuse_hidden0001"] {
        d.file(name, b"x")?;
        same!(fs::read(d.at(name))?, b"x");
    }
    fails!(fs::create_dir(d.at(".")), EEXIST);
    fails!(fs::create_dir(d.at("..")), EEXIST);
    fails!(rustix::fs::unlink(d.at(".")), EISDIR | EPERM | EINVAL | EBUSY);
    fails!(rustix::fs::rmdir(d.at(".")), EINVAL);
    Ok(())
}
