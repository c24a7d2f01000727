//! Permission checks from cached attributes. If the result is uncertain, the server is asked.

use espalier_proto::{
    Access, Attr, Caller, Ino, ModeClass, Request, SetAttr, SetTime, Time, XattrPresence, mode,
};

use super::Sessions;
use crate::Call;

impl<T> Sessions<T> {
    /// True if the caller certainly has this access to the directory, so that cached entries may be
    /// returned.
    pub(super) fn may(&self, caller: &Caller, dir: Ino, access: Access, now: u64) -> bool {
        let certainly = |dir: &Attr| certainly_may(dir, caller, access, false);
        self.is_checked || self.cache.rights(dir, now).is_some_and(certainly)
    }

    /// The attributes of a directory whose contents this client and others change, so that no lease
    /// on them is granted to it. They are true as far as permissions go; the caller must need no
    /// others and may not cache them. Otherwise each change would cost a request, and the sum of
    /// all fragments: a kernel checks permissions anew after each change that it makes.
    pub fn rights_of_contended(&self, now: u64, call: &Call<'_>) -> Option<Attr> {
        let Call::Request(Request::GetAttr { ino }) = call else { return None };
        let dir = self.real(*ino);
        let is_contended =
            |fragment| self.cache.rights(fragment, now).is_some_and(|attr| !attr.contents_leased);
        let attr = *self.cache.rights(dir, now)?;
        self.any_fragment(dir, is_contended).then_some(Attr { ino: *ino, ..attr })
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
    attr.xattrs != XattrPresence::Acl && by_class && is_free
}

/// The attributes after a change of owner, permissions or times that the server certainly makes at
/// `time`; otherwise `None`. The server trusts the client's superuser.
pub(super) fn certainly_sets(attr: &Attr, caller: &Caller, set: &SetAttr, time: Time) -> Option<Attr> {
    let SetAttr { perm, uid, gid, size, atime, mtime, ctime, flags, .. } = *set;
    let is_owner = caller.uid == attr.uid;
    let keeps_owner = uid.is_none_or(|uid| uid == attr.uid);
    let may_set_group = gid.is_none_or(|gid| gid == attr.gid || gid == caller.gid);
    let may = caller.is_superuser() || is_owner && keeps_owner && may_set_group;
    // The server removes set-id bits by rules that depend on all of the caller's groups.
    let has_privileges = (attr.perm | perm.unwrap_or(0)) & (mode::SET_UID | mode::SET_GID) != 0;
    // A change of owner also removes file capabilities, which are extended attributes.
    let has_xattrs = attr.xattrs != XattrPresence::None;
    let is_plain = size.is_none() && flags.is_none() && attr.flags.is_empty() && !has_xattrs;
    if !may || has_privileges || !is_plain {
        return None;
    }
    let resolve = |time_set: SetTime| match time_set {
        SetTime::Now => time,
        SetTime::To(time) => time,
    };
    let mut changed = *attr;
    changed.perm = perm.map_or(attr.perm, |perm| perm & mode::PERMISSIONS);
    (changed.uid, changed.gid) = (uid.unwrap_or(attr.uid), gid.unwrap_or(attr.gid));
    changed.atime = atime.map_or(attr.atime, resolve);
    changed.mtime = mtime.map_or(attr.mtime, resolve);
    let is_change = perm.or(uid).or(gid).is_some() || atime.or(mtime).is_some() || ctime.is_some();
    changed.ctime = if is_change { time } else { attr.ctime };
    Some(changed)
}

#[cfg(test)]
mod tests {
    use espalier_proto::{FileType, InodeFlags};

    use super::*;

    #[test]
    fn only_certain_permissions_are_decided_locally() {
        let read = |perm, uid, gid, caller: (u32, u32), as_said| {
            let attr = Attr::new(Ino(1), FileType::Regular, perm, Time::new(0, 0));
            let attr = Attr { uid, gid, ..attr };
            let caller = Caller { uid: caller.0, gid: caller.1, pid: 1, groups: None };
            let certainly = certainly_may(&attr, &caller, Access::READ, as_said);
            let with = |xattrs| certainly_may(&Attr { xattrs, ..attr }, &caller, Access::READ, as_said);
            assert_eq!((with(XattrPresence::Acl), with(XattrPresence::NoAcl)), (false, certainly));
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

    #[test]
    fn only_certain_changes_are_decided_locally() {
        let (old, now) = (Time::new(1, 0), Time::new(9, 0));
        let attr = Attr { uid: 5, gid: 6, ..Attr::new(Ino(1), FileType::Regular, 0o640, old) };
        let set_by = |attr: &Attr, uid, gid, set: SetAttr| {
            certainly_sets(attr, &Caller { uid, gid, pid: 1, groups: None }, &set, now)
        };
        let set = SetAttr::default();
        let chmod = SetAttr { perm: Some(0o600), ..set };
        let chown = SetAttr { uid: Some(7), gid: Some(8), ..set };
        let chgrp = |gid| SetAttr { gid: Some(gid), ..set };
        let utimes = SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::To(Time::new(3, 3))), ..set };
        assert_eq!(set_by(&attr, 5, 6, chmod), Some(Attr { perm: 0o600, ctime: now, ..attr }));
        assert_eq!(set_by(&attr, 0, 0, chown), Some(Attr { uid: 7, gid: 8, ctime: now, ..attr }));
        assert_eq!(set_by(&attr, 5, 8, chgrp(8)), Some(Attr { gid: 8, ctime: now, ..attr }));
        let times = Attr { atime: now, mtime: Time::new(3, 3), ctime: now, ..attr };
        assert_eq!(set_by(&attr, 5, 6, utimes), Some(times));
        assert_eq!(set_by(&attr, 5, 6, SetAttr { kill_suid_gid: true, ..set }), Some(attr));
        for (why, of, uid, set) in [
            ("another user", attr, 7, chmod),
            ("the owner gives the file away", attr, 5, chown),
            ("the caller may be in the group", attr, 5, chgrp(9)),
            ("a truncation", attr, 5, SetAttr { size: Some(0), ..set }),
            ("flags", attr, 0, SetAttr { flags: Some(InodeFlags::IMMUTABLE), ..set }),
            ("an immutable file", Attr { flags: InodeFlags::IMMUTABLE, ..attr }, 0, chmod),
            ("an access control list", Attr { xattrs: XattrPresence::Acl, ..attr }, 0, chmod),
            ("perhaps a file capability", Attr { xattrs: XattrPresence::NoAcl, ..attr }, 0, chown),
            ("set-id bits are removed", Attr { perm: 0o4755, ..attr }, 0, chown),
            ("the caller may be outside the group", attr, 5, SetAttr { perm: Some(0o2755), ..set }),
        ] {
            assert_eq!(set_by(&of, uid, 6, set), None, "{why}");
        }
    }
}
