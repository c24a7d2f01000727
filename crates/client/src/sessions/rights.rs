//! Permission checks from cached attributes. If the result is uncertain, the server is asked.

use espalier_proto::{Access, Attr, Caller, Ino, ModeClass};

use super::Sessions;

impl<T> Sessions<T> {
    /// True if the caller certainly has this access to the directory, so that cached entries may be
    /// returned.
    pub(super) fn may(&self, caller: &Caller, dir: Ino, access: Access, now: u64) -> bool {
        let certainly = |dir: Attr| certainly_may(&dir, caller, access, false);
        self.is_checked || self.cache.attr(dir, now).is_some_and(certainly)
    }
}

/// True if the caller certainly has this access; only one of its groups is known. `as_said`: the
/// server trusts the client's superuser. Otherwise it may map uid and gid 0 to nobody.
pub(super) fn certainly_may(attr: &Attr, caller: &Caller, access: Access, as_said: bool) -> bool {
    let grants = |rights: u32| rights & access.bits() == access.bits();
    let permissions = attr.permissions();
    let [owner, group, other] = permissions.mode_bits().map(grants);
    let by_class = match permissions.mode_class(caller) {
        _ if caller.is_superuser() => as_said || owner && group && other,
        ModeClass::Owner(_) => owner,
        ModeClass::Group(_) if as_said || caller.gid != 0 => group,
        ModeClass::Group(_) | ModeClass::GroupOrOther { .. } => group && other,
    };
    let is_free = attr.flags.is_empty() || !access.contains(Access::WRITE);
    attr.no_xattrs && by_class && is_free
}

#[cfg(test)]
mod tests {
    use espalier_proto::{FileType, InodeFlags, Time};

    use super::*;
    use crate::cache::new_inode;

    #[test]
    fn only_certain_permissions_are_decided_locally() {
        let read = |perm, uid, gid, caller: (u32, u32), as_said| {
            let attr = new_inode(Ino(1), FileType::Regular, (perm, uid, gid), Time::new(0, 0));
            let caller = Caller { uid: caller.0, gid: caller.1, pid: 1, groups: None };
            let certainly = certainly_may(&attr, &caller, Access::READ, as_said);
            assert!(!certainly_may(&Attr { no_xattrs: false, ..attr }, &caller, Access::READ, as_said));
            let immutable = Attr { flags: InodeFlags::IMMUTABLE, perm: 0o777, ..attr };
            assert!(!certainly_may(&immutable, &caller, Access::WRITE, as_said));
            certainly
        };
        assert!(read(0o400, 5, 6, (5, 7), false), "the owner is allowed");
        assert!(!read(0o044, 5, 6, (5, 7), false), "other classes do not apply to the owner");
        assert!(read(0o040, 5, 6, (7, 6), false), "the group is allowed");
        assert!(!read(0o004, 5, 6, (7, 7), false), "the caller may be in the group");
        assert!(read(0o044, 5, 6, (7, 7), false), "both classes are allowed");
        assert!(read(0o000, 5, 6, (0, 0), true), "the superuser is allowed");
        assert!(!read(0o440, 5, 6, (0, 0), false), "the superuser may be mapped to nobody");
        assert!(read(0o444, 5, 6, (0, 0), false));
        assert!(!read(0o040, 5, 0, (7, 0), false), "root's group may be mapped to nobody");
    }
}
