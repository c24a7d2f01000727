//! Set-user-id and set-group-id: when they go away, and what they mean on a directory.

use super::prelude::*;

/// A program of Alice's in her own group, or in a group that she is not in.
fn program(d: &Dir, name: &str, bits: u32, gid: u32) -> Result<PathBuf, Failure> {
    let path = d.file(name, b"program")?;
    chown(&path, ALICE.uid, gid)?;
    chmod(&path, bits)?;
    same_mode(&path, bits)?;
    Ok(path)
}

fn same_mode(path: &Path, bits: u32) -> Outcome {
    let found = mode(path)?;
    check!(found == bits, "mode is {found:o}, not {bits:o}");
    Ok(())
}

pub(super) fn cleared_by_write(d: &Dir) -> Outcome {
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
    // Without group execution the bit is not a set-group-id and stays.
    let f = program(d, "h", 0o2767, ALICE.gid)?;
    ALICE.run(|| {
        OpenOptions::new().write(true).open(&f)?.write_all_at(b"x", 0)?;
        same_mode(&f, 0o2767)
    })
}

pub(super) fn cleared_by_chown(d: &Dir) -> Outcome {
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

pub(super) fn cleared_by_truncate(d: &Dir) -> Outcome {
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

pub(super) fn chmod_by_outsider(d: &Dir) -> Outcome {
    // The owner who is not in the file's group cannot give it the set-group-id bit.
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

pub(super) fn directory_group(d: &Dir) -> Outcome {
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

pub(super) fn directory_group_of_outsider(d: &Dir) -> Outcome {
    use std::os::unix::fs::OpenOptionsExt;
    let dir = d.mkdir("dir", 0o755)?;
    chown(&dir, 0, STAFF)?;
    chmod(&dir, 0o2777)?;
    // A user could otherwise make a program that runs as a group that is not the user's.
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

pub(super) fn kept_for_root(d: &Dir) -> Outcome {
    let f = program(d, "f", 0o6755, ALICE.gid)?;
    OpenOptions::new().write(true).open(&f)?.write_all_at(b"root", 0)?;
    same_mode(&f, 0o6755)?;
    fs::rename(&f, d.at("g"))?;
    same_mode(&d.at("g"), 0o6755)
}

/// Also for root, and through an opening that is older than the capability.
pub(super) fn capabilities_cleared_by_write(d: &Dir) -> Outcome {
    const NAME: &str = "security.capability";
    // Version 2, CAP_NET_RAW permitted.
    const VALUE: [u8; 20] = *b"\0\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    for (len, read) in [(10, false), (10, true), (100_000, false), (100_000, true)] {
        let f = d.file(format!("f{len}{read}"), &pattern(1, len))?;
        let set = || rustix::fs::setxattr(&f, NAME, &VALUE, rustix::fs::XattrFlags::empty());
        let file = OpenOptions::new().read(read).write(true).open(&f)?;
        set()?;
        same!(rustix::fs::getxattr_query(&f, NAME)?, VALUE.len());
        file.write_all_at(b"x", 1)?;
        fails!(rustix::fs::getxattr_query(&f, NAME), ENODATA);
        set()?;
        file.set_len(5)?;
        fails!(rustix::fs::getxattr_query(&f, NAME), ENODATA);
    }
    Ok(())
}
