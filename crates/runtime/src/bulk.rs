//! Bulk operations of `espalier rm` and `espalier cp`: the commands use extended attributes of
//! directories. Unlike an ioctl, this passes the directory and the caller, and the kernel rejects
//! changes on a read-only mount. The attributes are not listed.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use espalier_meta::{decode, encode};
use espalier_proto::{Copied, CopyLevel, CopyTree, Errno, Ino};
use serde::{Deserialize, Serialize};

/// Setting it removes the directory with its contents.
pub const REMOVE_TREE: &str = "system.espalier.remove";
/// Reading it from a directory returns an empty value when the kernel has been notified of all
/// earlier changes. Setting an attribute cannot wait for that, since the kernel holds the
/// directory's lock, for which notifications may wait.
pub const NOTIFIED: &str = "system.espalier.notified";
/// Reading it from any file returns an empty value when all acknowledged changes are durable. It
/// does what `syncfs` does where the kernel forwards that.
pub const SYNC: &str = "system.espalier.sync";
/// Reading it from a directory, with a [`CopyKey`] appended, selects the directory as the source of
/// a copy.
const COPY_FROM: &str = "system.espalier.copy-from.";
/// Setting it on a directory, with the same key, copies a part of the source into it. Reading it
/// then returns a [`CopyReport`].
const COPY_TO: &str = "system.espalier.copy-to.";
/// Maximum number of copies in progress; beyond it, the oldest are dropped.
const MAX_COPIES: usize = 1024;

/// Identifies a copy in progress; known only to the copying process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyKey(pub u128);

impl CopyKey {
    pub fn from_name(self) -> String {
        format!("{COPY_FROM}{:032x}", self.0)
    }

    pub fn to_name(self) -> String {
        format!("{COPY_TO}{:032x}", self.0)
    }

    fn parse(name: &[u8], prefix: &str) -> Option<Self> {
        let digits = name.strip_prefix(prefix.as_bytes())?;
        let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() == 32)?;
        u128::from_str_radix(digits, 16).ok().map(Self)
    }
}

/// Options of a copy.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CopyHow {
    /// Preserve owners, permissions, times, links and extended attributes, as far as the caller may
    /// set them.
    pub preserve: bool,
    pub umask: u32,
}

impl CopyHow {
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

/// The result of a step of a copy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CopyReport {
    /// The copy is complete.
    pub done: bool,
    /// Paths below the directory that the caller must copy itself before the next step.
    pub left: Vec<Vec<u8>>,
}

impl CopyReport {
    /// Maximum encoded size in bytes.
    pub const MAX_BYTES: usize = 64 << 10;

    /// `None` if the bytes are no report.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        decode(bytes).ok()
    }
}

/// True if a process has root's capabilities for operations that the kernel does not check; a
/// container's root may lack them. Also true for a process that is not visible, as in another PID
/// namespace.
pub(crate) fn is_capable(pid: u32) -> bool {
    // CHOWN, DAC_OVERRIDE, FOWNER and FSETID.
    const NEEDED: u64 = 0b11011;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    effective.is_some_and(|effective| effective & NEEDED == NEEDED)
}

/// The copies in progress.
#[derive(Debug, Default)]
pub(crate) struct Copies(Mutex<VecDeque<(CopyKey, Copying)>>);

#[derive(Debug)]
struct Copying {
    uid: u32,
    from: Ino,
    /// The target and the position, once copying has begun.
    to: Option<(Ino, Vec<CopyLevel>)>,
    report: Option<CopyReport>,
}

impl Copies {
    /// Handles the read of a directory's attribute. `None`: the attribute is not one of these.
    pub(crate) fn get(&self, uid: u32, dir: Ino, name: &[u8], room: usize) -> Option<Result<Vec<u8>, Errno>> {
        if let Some(key) = CopyKey::parse(name, COPY_FROM) {
            let mut all = self.lock();
            if all.iter().any(|(other, _)| *other == key) {
                return Some(Err(Errno::EEXIST));
            }
            if all.len() == MAX_COPIES {
                all.pop_front();
            }
            all.push_back((key, Copying { uid, from: dir, to: None, report: None }));
            return Some(Ok(Vec::new()));
        }
        CopyKey::parse(name, COPY_TO).map(|key| self.report(key, uid, dir, room))
    }

    fn report(&self, key: CopyKey, uid: u32, dir: Ino, room: usize) -> Result<Vec<u8>, Errno> {
        let mut all = self.lock();
        let (at, copying) = find(&mut all, key, uid)?;
        if copying.to.as_ref().is_none_or(|(to, _)| *to != dir) {
            return Err(Errno::EINVAL);
        }
        let report = copying.report.as_ref().ok_or(Errno::ENODATA)?;
        let (bytes, done) = (encode(report), report.done);
        if bytes.len() > room {
            return Err(Errno::ERANGE);
        }
        copying.report = None;
        if done {
            all.remove(at);
        }
        Ok(bytes)
    }

    /// Handles the setting of a directory's attribute; returns the step to execute. `None`: the
    /// attribute is not one of these.
    pub(crate) fn set(
        &self,
        uid: u32,
        dir: Ino,
        name: &[u8],
        how: &[u8],
    ) -> Option<Result<(CopyTree, CopyKey), Errno>> {
        CopyKey::parse(name, COPY_TO).map(|key| Ok((self.step(key, uid, dir, how)?, key)))
    }

    fn step(&self, key: CopyKey, uid: u32, dir: Ino, how: &[u8]) -> Result<CopyTree, Errno> {
        let CopyHow { preserve, umask } = decode(how).map_err(|_| Errno::EINVAL)?;
        let mut all = self.lock();
        let (_, copying) = find(&mut all, key, uid)?;
        let first = CopyLevel { from: copying.from, to: dir, after: 0 };
        let (to, levels) = copying.to.get_or_insert_with(|| (dir, vec![first]));
        if *to != dir {
            return Err(Errno::EINVAL);
        }
        if copying.report.is_some() {
            return Err(Errno::EBUSY);
        }
        Ok(CopyTree { levels: levels.clone(), preserve, umask })
    }

    /// Records the result of a step.
    pub(crate) fn made(&self, key: CopyKey, copied: &mut Copied) {
        let mut all = self.lock();
        if let Some((_, copying)) = all.iter_mut().find(|(other, _)| *other == key) {
            let (levels, left) = (mem::take(&mut copied.levels), mem::take(&mut copied.left));
            copying.report = Some(CopyReport { done: levels.is_empty(), left });
            if let Some((_, before)) = &mut copying.to {
                *before = levels;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(CopyKey, Copying)>> {
        // Each update is a single statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find(
    all: &mut VecDeque<(CopyKey, Copying)>,
    key: CopyKey,
    uid: u32,
) -> Result<(usize, &mut Copying), Errno> {
    let at = all.iter().position(|(other, copying)| *other == key && copying.uid == uid);
    let at = at.ok_or(Errno::ENOENT)?;
    Ok((at, &mut all[at].1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOW: CopyHow = CopyHow { preserve: true, umask: 0o22 };

    #[test]
    fn a_copy_is_led_through_its_steps() {
        let (copies, key) = (Copies::default(), CopyKey(7));
        let (from, to) = (key.from_name(), key.to_name());
        let set = |dir, uid| copies.set(uid, Ino(dir), to.as_bytes(), &HOW.encode()).expect("ours");
        assert!(copies.get(5, Ino(1), b"user.other", 9).is_none());
        assert_eq!(set(3, 5), Err(Errno::ENOENT), "no source was selected");
        assert_eq!(copies.get(5, Ino(2), from.as_bytes(), 0), Some(Ok(vec![])));
        assert_eq!(copies.get(5, Ino(2), from.as_bytes(), 0), Some(Err(Errno::EEXIST)));
        assert_eq!(set(3, 6), Err(Errno::ENOENT), "another's");
        let first = CopyLevel { from: Ino(2), to: Ino(3), after: 0 };
        let step = CopyTree { levels: vec![first], preserve: true, umask: 0o22 };
        assert_eq!(set(3, 5), Ok((step, key)));
        assert_eq!(set(4, 5), Err(Errno::EINVAL), "the copy has another target");
        let next = CopyLevel { after: 9, ..first };
        let mut copied = Copied { levels: vec![next], left: vec![b"a/b".to_vec()], ..Copied::default() };
        copies.made(key, &mut copied);
        assert_eq!(set(3, 5), Err(Errno::EBUSY), "the report must be read first");
        let get = |room| copies.get(5, Ino(3), to.as_bytes(), room).expect("ours");
        assert_eq!(get(1), Err(Errno::ERANGE));
        let report = CopyReport::decode(&get(99).expect("a report")).expect("a report");
        assert!(!report.done && report.left == [b"a/b"]);
        assert_eq!(set(3, 5).map(|(step, _)| step.levels), Ok(vec![next]));
        copies.made(key, &mut Copied::default());
        assert!(CopyReport::decode(&get(99).expect("a report")).expect("a report").done);
        assert_eq!(set(3, 5), Err(Errno::ENOENT), "the copy is complete");
    }

    #[test]
    fn too_many_copies_forget_the_first() {
        let copies = Copies::default();
        for key in 0..=MAX_COPIES as u128 {
            let name = CopyKey(key).from_name();
            assert_eq!(copies.get(5, Ino(2), name.as_bytes(), 0), Some(Ok(vec![])));
        }
        let set = |key| copies.set(5, Ino(3), CopyKey(key).to_name().as_bytes(), &HOW.encode());
        assert_eq!(set(0), Some(Err(Errno::ENOENT)));
        assert!(matches!(set(1), Some(Ok(_))));
    }
}
