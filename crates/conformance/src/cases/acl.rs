//! POSIX access control lists, encoded by hand so that no library is tested too.

use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};

use super::prelude::*;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const NO_ID: u32 = u32::MAX;

/// Tag, permissions, id, as in `linux/posix_acl.h`.
type AclEntry = (u16, u16, u32);
const fn owner(perm: u16) -> AclEntry {
    (1, perm, NO_ID)
}
const fn user(principal: User, perm: u16) -> AclEntry {
    (2, perm, principal.uid)
}
const fn group(perm: u16) -> AclEntry {
    (4, perm, NO_ID)
}
const fn named_group(gid: u32, perm: u16) -> AclEntry {
    (8, perm, gid)
}
const fn mask(perm: u16) -> AclEntry {
    (16, perm, NO_ID)
}
const fn other(perm: u16) -> AclEntry {
    (32, perm, NO_ID)
}

fn encode(entries: &[AclEntry]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(perm.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

fn set(path: &Path, name: &str, entries: &[AclEntry]) -> rustix::io::Result<()> {
    setxattr(path, name, &encode(entries), XattrFlags::empty())
}

fn get(path: &Path, name: &str) -> rustix::io::Result<Vec<AclEntry>> {
    let mut buffer = vec![0; 4096];
    let len = getxattr(path, name, &mut buffer[..])?;
    let short = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    Ok(buffer[4..len]
        .chunks(8)
        .map(|e| (short(e), short(&e[2..]), u32::from_le_bytes([e[4], e[5], e[6], e[7]])))
        .collect())
}

pub(super) fn minimal_is_mode(d: &Dir) -> CaseResult {
    let f = d.file("f", b"")?;
    set(&f, ACCESS, &[owner(7), group(5), other(1)])?;
    same!(mode(&f)?, 0o751);
    fails!(get(&f, ACCESS), ENODATA);
    chmod(&f, 0o640)?;
    fails!(get(&f, ACCESS), ENODATA);
    Ok(())
}

pub(super) fn masked(d: &Dir) -> CaseResult {
    let f = d.file("f", b"")?;
    let entries = [owner(6), user(ALICE, 7), group(4), named_group(STAFF, 6), mask(5), other(0)];
    set(&f, ACCESS, &entries)?;
    // The group bits of the mode are the mask.
    same!(mode(&f)?, 0o650);
    same!(get(&f, ACCESS)?, entries);
    fs::rename(&f, d.at("g"))?;
    same!(get(&d.at("g"), ACCESS)?, entries);
    Ok(())
}

fn may(principal: User, groups: &[u32], path: &Path, read: bool, write: bool) -> CaseResult {
    principal.run_in(groups, || {
        same!(File::open(path).is_ok(), read, "{principal:?} {groups:?} reads");
        same!(OpenOptions::new().write(true).open(path).is_ok(), write, "{principal:?} {groups:?} writes");
        Ok(())
    })
}

pub(super) fn checked_for_users(d: &Dir) -> CaseResult {
    let f = d.file("f", b"")?;
    set(&f, ACCESS, &[owner(6), user(ALICE, 6), group(0), named_group(STAFF, 4), mask(6), other(0)])?;
    may(ALICE, &[], &f, true, true)?;
    may(BOB, &[], &f, false, false)?;
    may(BOB, &[STAFF], &f, true, false)?;
    // The mask limits named users and groups, but not the owner and others.
    set(&f, ACCESS, &[owner(6), user(ALICE, 6), group(6), named_group(STAFF, 6), mask(4), other(6)])?;
    may(ALICE, &[], &f, true, false)?;
    may(BOB, &[STAFF], &f, true, false)?;
    may(BOB, &[], &f, true, true)?;
    // The entry of a named user applies even if a group entry grants more.
    set(&f, ACCESS, &[owner(6), user(BOB, 0), group(6), named_group(STAFF, 6), mask(6), other(6)])?;
    may(BOB, &[STAFF], &f, false, false)?;
    chown(&f, BOB.uid, 0)?;
    may(BOB, &[], &f, true, true)?;
    // One matching group entry is sufficient.
    chown(&f, 0, BOB.gid)?;
    set(&f, ACCESS, &[owner(6), group(0), named_group(STAFF, 4), mask(6), other(0)])?;
    may(BOB, &[STAFF], &f, true, false)
}

pub(super) fn inherited(d: &Dir) -> CaseResult {
    let dir = d.mkdir("dir", 0o755)?;
    let defaults = [owner(7), user(ALICE, 7), group(5), mask(7), other(0)];
    set(&dir, DEFAULT, &defaults)?;
    same!(get(&dir, DEFAULT)?, defaults);
    same!(mode(&dir)?, 0o755);
    fs::write(dir.join("f"), b"")?;
    // Mode 0666 removes execute permission from the owner and from the mask, not from the group
    // entry.
    same!(get(&dir.join("f"), ACCESS)?, [owner(6), user(ALICE, 7), group(5), mask(6), other(0)]);
    same!(mode(dir.join("f"))?, 0o660);
    fails!(get(&dir.join("f"), DEFAULT), ENODATA | EACCES);
    fs::create_dir(dir.join("sub"))?;
    same!(get(&dir.join("sub"), ACCESS)?, defaults);
    same!(get(&dir.join("sub"), DEFAULT)?, defaults);
    same!(mode(dir.join("sub"))?, 0o770);
    rustix::fs::symlink("f", dir.join("l"))?;
    same!(mode(dir.join("l"))?, 0o777);
    rustix::fs::mkfifoat(CWD, dir.join("p"), Mode::from_raw_mode(0o600))?;
    same!(get(&dir.join("p"), ACCESS)?, [owner(6), user(ALICE, 7), group(5), mask(0), other(0)]);
    may(ALICE, &[], &dir.join("f"), true, true)
}

pub(super) fn inherited_with_umask(d: &Dir) -> CaseResult {
    let dir = d.mkdir("dir", 0o777)?;
    umask(0o077);
    fs::write(dir.join("before"), b"")?;
    same!(mode(dir.join("before"))?, 0o600);
    set(&dir, DEFAULT, &[owner(6), group(6), other(4)])?;
    // A default list replaces the umask.
    fs::write(dir.join("after"), b"")?;
    umask(0o022);
    same!(mode(dir.join("after"))?, 0o664);
    fails!(get(&dir.join("after"), ACCESS), ENODATA);
    Ok(())
}

pub(super) fn chmod_sets_mask(d: &Dir) -> CaseResult {
    let f = d.file("f", b"")?;
    set(&f, ACCESS, &[owner(6), user(ALICE, 6), group(4), mask(6), other(0)])?;
    // Others get nothing either: Linux ignores the list if the mask is empty.
    chmod(&f, 0o700)?;
    same!(get(&f, ACCESS)?, [owner(7), user(ALICE, 6), group(4), mask(0), other(0)]);
    may(ALICE, &[], &f, false, false)?;
    chmod(&f, 0o664)?;
    same!(get(&f, ACCESS)?, [owner(6), user(ALICE, 6), group(4), mask(6), other(4)]);
    may(ALICE, &[], &f, true, true)?;
    // Setting a list clears the set-group-id bit if the caller may not set it.
    chown(&f, BOB.uid, STAFF)?;
    chmod(&f, 0o2775)?;
    BOB.run(|| Ok(set(&f, ACCESS, &[owner(7), user(ALICE, 7), group(5), mask(7), other(5)])?))?;
    same!(mode(&f)? & 0o2000, 0);
    Ok(())
}

pub(super) fn removed(d: &Dir) -> CaseResult {
    let dir = d.mkdir("dir", 0o755)?;
    set(&dir, ACCESS, &[owner(7), user(ALICE, 7), group(5), mask(7), other(0)])?;
    set(&dir, DEFAULT, &[owner(7), group(5), other(0)])?;
    removexattr(&dir, DEFAULT)?;
    fails!(get(&dir, DEFAULT), ENODATA);
    removexattr(&dir, ACCESS)?;
    fails!(get(&dir, ACCESS), ENODATA);
    // The mode keeps the permissions of the mask.
    same!(mode(&dir)?, 0o770);
    set(&dir, DEFAULT, &[owner(7), group(5), other(0)])?;
    setxattr(&dir, DEFAULT, b"", XattrFlags::empty()).or_else(|_| removexattr(&dir, DEFAULT))?;
    fails!(get(&dir, DEFAULT), ENODATA);
    Ok(())
}

pub(super) fn errors(d: &Dir) -> CaseResult {
    let f = d.file("f", b"")?;
    fails!(set(&f, ACCESS, &[owner(7), other(0)]), EINVAL);
    fails!(set(&f, ACCESS, &[owner(7), user(ALICE, 7), group(5), other(0)]), EINVAL);
    fails!(set(&f, ACCESS, &[owner(15), group(5), other(0)]), EINVAL);
    fails!(set(&f, ACCESS, &[other(7), group(5), owner(0)]), EINVAL);
    fails!(setxattr(&f, ACCESS, b"\x07\0\0\0", XattrFlags::empty()), EINVAL | EOPNOTSUPP);
    fails!(setxattr(&f, ACCESS, b"xx", XattrFlags::empty()), EINVAL);
    fails!(set(&f, DEFAULT, &[owner(7), group(5), other(0)]), EACCES | EINVAL);
    BOB.run(|| {
        fails!(set(&f, ACCESS, &[owner(7), group(7), other(7)]), EPERM);
        Ok(())
    })
}

pub(super) fn symlink_refused(d: &Dir) -> CaseResult {
    rustix::fs::symlink("nowhere", d.at("l"))?;
    let value = encode(&[owner(7), group(5), other(0)]);
    fails!(rustix::fs::lsetxattr(d.at("l"), ACCESS, &value, XattrFlags::empty()), EOPNOTSUPP);
    Ok(())
}
