//! Permission checks: mode bits, access control lists, owners, groups and sticky directories.

use std::collections::BTreeSet;
use std::sync::Arc;

use espalier_proto::{Access, Caller, Errno, FileType, Ino, Name, RenameFlags, mode};

use super::acl::{self, List};
use super::action::Action;
use super::outcome::ExpectedOutcome;
use super::privileges::{CAPABILITY, may_change_owner};
use super::quota;
use super::tree::{ModelInode, Tree};

/// Credentials of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerCreds {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    groups: Option<Arc<[u32]>>,
}

impl From<&Caller> for CallerCreds {
    fn from(caller: &Caller) -> Self {
        Self { groups: caller.groups.clone(), ..Self::new(caller.uid, caller.gid) }
    }
}

impl CallerCreds {
    pub const fn new(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: None }
    }

    pub fn is_of(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.iter().any(|groups| groups.contains(&gid))
    }

    pub fn may(&self, inode: &ModelInode, want: Access) -> bool {
        let of_mode = || List::of_mode(inode.perm);
        let list = inode.access_list.clone().unwrap_or_else(of_mode);
        self.uid == 0 || list.allows(self, (inode.uid, inode.gid), want.bits())
    }

    pub fn owns(&self, inode: &ModelInode) -> bool {
        self.uid == 0 || self.uid == inode.uid
    }
}

impl Tree<'_> {
    /// As [`Self::perform`], with a permission check first.
    pub fn attempt(
        &mut self,
        action: &Action,
        creds: &CallerCreds,
        call: u64,
        strip: u64,
    ) -> ExpectedOutcome {
        let refusal = if creds.uid == 0 { None } else { self.refusal(action, creds) };
        let Some(refusal) = refusal else { return self.perform(action, creds, call, strip) };
        let outcome = self.clone().perform(action, creds, call, strip);
        match action {
            // Kernels check these permissions: a client answers from its cache without a check.
            Action::Lookup { .. } | Action::List { .. } => ExpectedOutcome::OrRefused(Box::new(outcome)),
            // Renaming a name to itself has no effect.
            Action::Rename { .. } if outcome == ExpectedOutcome::Done && self.is_same(action) => {
                ExpectedOutcome::OrRefused(Box::new(outcome))
            }
            _ => refused(outcome, refusal),
        }
    }

    fn is_same(&self, action: &Action) -> bool {
        let Action::Rename { from, to, .. } = action else { return false };
        let node = |(dir, name): &(Ino, Name)| self.name(self.numbered(*dir)?, name);
        node(from) == node(to)
    }

    fn refusal(&self, action: &Action, creds: &CallerCreds) -> Option<Errno> {
        let inode = |ino: &Ino| self.numbered(*ino).and_then(|node| self.inode(node));
        let lacks =
            |ino: &Ino, want| inode(ino).filter(|inode| !creds.may(inode, want)).map(|_| Errno::EACCES);
        let change = Access::WRITE | Access::EXEC;
        match action {
            Action::Lookup { dir, .. } => lacks(dir, Access::EXEC),
            Action::List { dir } => lacks(dir, Access::READ),
            // Access control lists and capabilities are readable by everyone.
            Action::GetXattr { name, .. } if acl::is_list(name) || **name == *CAPABILITY => None,
            Action::GetXattr { ino, .. } => lacks(ino, Access::READ),
            Action::Open { ino, access } | Action::Truncate { ino, by: Some(access), .. } => {
                lacks(ino, *access)
            }
            Action::SetXattr { name, .. } | Action::RemoveXattr { name, .. } if quota::is_limit(name) => {
                Some(Errno::EPERM)
            }
            Action::SetXattr { name, .. } if **name == *CAPABILITY => Some(Errno::EPERM),
            Action::SetXattr { ino, .. } | Action::RemoveXattr { ino, .. } => {
                let is_foreign =
                    |it: &&ModelInode| it.is_dir() && it.perm & mode::STICKY != 0 && !creds.owns(it);
                inode(ino).filter(is_foreign).map(|_| Errno::EPERM).or(lacks(ino, Access::WRITE))
            }
            Action::SetAttr { ino, perm: Some(_), .. } | Action::SetList { ino, .. } => {
                inode(ino).filter(|inode| !creds.owns(inode)).map(|_| Errno::EPERM)
            }
            Action::ChangeOwner { ino, uid, gid, .. } => {
                inode(ino).filter(|inode| !may_change_owner(creds, inode, (*uid, *gid))).map(|_| Errno::EPERM)
            }
            Action::Create { dir, name, open, exclusive, .. } => {
                lacks(dir, Access::EXEC).or_else(|| match self.entry(*dir, name) {
                    None => lacks(dir, change),
                    Some(there) => {
                        let access = Access::READ | Access::WRITE;
                        let is_regular = there.kind == FileType::Regular.bits();
                        let is_opened = open.is_some() && !exclusive && is_regular;
                        (is_opened && !creds.may(there, access)).then_some(Errno::EACCES)
                    }
                })
            }
            Action::Link { dir, .. } => lacks(dir, change),
            Action::Unlink { dir, name } | Action::RmDir { dir, name } => {
                lacks(dir, change).or(self.sticky(*dir, name, creds))
            }
            Action::Rename { from, to, flags } => self.refusal_to_move(from, to, *flags, creds),
            _ => None,
        }
    }

    fn refusal_to_move(
        &self,
        from: &(Ino, Name),
        to: &(Ino, Name),
        flags: RenameFlags,
        creds: &CallerCreds,
    ) -> Option<Errno> {
        let (moved, target) = (self.entry(from.0, &from.1), self.entry(to.0, &to.1));
        let lacks = |dir: Ino| {
            let inode = self.numbered(dir).and_then(|node| self.inode(node))?;
            (!creds.may(inode, Access::WRITE | Access::EXEC)).then_some(Errno::EACCES)
        };
        // A move to another parent changes the directory's `..`.
        let stays = |inode: Option<&ModelInode>| {
            inode
                .filter(|it| it.is_dir() && from.0 != to.0 && !creds.may(it, Access::WRITE))
                .map(|_| Errno::EACCES)
        };
        let first = lacks(from.0).or(lacks(to.0)).or(self.sticky(from.0, &from.1, creds)).or(stays(moved));
        let is_replaced = !flags.contains(RenameFlags::NOREPLACE)
            && target.is_some_and(|target| !moved.is_some_and(|moved| std::ptr::eq(moved, target)));
        first.or_else(|| {
            let second = is_replaced.then(|| self.sticky(to.0, &to.1, creds)).flatten();
            second.or(flags.contains(RenameFlags::EXCHANGE).then(|| stays(target)).flatten())
        })
    }

    fn entry(&self, dir: Ino, name: &Name) -> Option<&ModelInode> {
        self.name(self.numbered(dir)?, name).and_then(|node| self.inode(node))
    }

    /// In a sticky directory, only the owner of the directory or the entry may remove the entry.
    fn sticky(&self, dir: Ino, name: &Name, creds: &CallerCreds) -> Option<Errno> {
        let parent = self.numbered(dir).and_then(|node| self.inode(node))?;
        let entry = self.entry(dir, name)?;
        let is_foreign = parent.perm & mode::STICKY != 0 && !creds.owns(parent) && !creds.owns(entry);
        is_foreign.then_some(Errno::EPERM)
    }
}

/// The outcome of a refused action that would otherwise have had an effect: any of the applicable
/// errors is right.
fn refused(outcome: ExpectedOutcome, refusal: Errno) -> ExpectedOutcome {
    let fails = |more: &[Errno]| {
        let errnos: BTreeSet<i32> = more.iter().chain([&refusal]).map(|errno| errno.raw()).collect();
        ExpectedOutcome::Fails(errnos)
    };
    match outcome {
        ExpectedOutcome::Unknown => ExpectedOutcome::Unknown,
        ExpectedOutcome::Fails(mut errnos) => {
            errnos.insert(refusal.raw());
            // Several permissions may be missing.
            errnos.extend([Errno::EACCES.raw(), Errno::EPERM.raw()]);
            ExpectedOutcome::Fails(errnos)
        }
        ExpectedOutcome::Gone => fails(&[Errno::ESTALE, Errno::ENOENT]),
        ExpectedOutcome::OrGone(outcome) => ExpectedOutcome::OrGone(Box::new(refused(*outcome, refusal))),
        _ => fails(&[Errno::EACCES, Errno::EPERM]),
    }
}
