//! `open` with `O_CREAT`, `mkdir`, `mknod` and `symlink`.

use alloc::boxed::Box;

use espalier_proto::{Access, Errno, FileType, Ino, Name, NewNode, OpenHow, Opened, Reply, mode};

use crate::acl::Acl;
use crate::event::Event;
use crate::machine::{Cx, Final, Meta};
use crate::no_metafile::NoMetafile;
use crate::permission::check_interference;
use crate::record::{Body, Directory, Inode, Rare};
use crate::session::TokenKind;
use crate::state::Target;
use crate::step::Step;

/// The error of a create that finds an inode of this type; `None` for a regular file. The caller
/// expected a regular file, and needs the type to open anything else. The errors are those of
/// `open` with `O_NOFOLLOW`.
fn refusal(kind: FileType) -> Option<Errno> {
    match kind {
        FileType::Regular => None,
        FileType::Directory => Some(Errno::EISDIR),
        FileType::Symlink => Some(Errno::ELOOP),
        FileType::Fifo | FileType::Socket | FileType::CharDevice | FileType::BlockDevice => {
            Some(Errno::ENXIO)
        }
    }
}

/// A name with a new inode (`open` with `O_CREAT`, `mkdir`, `mknod`, `symlink`).
pub(crate) struct Creation<'a> {
    pub dir: Ino,
    pub name: &'a Name,
    pub node: &'a NewNode,
    /// The requested permissions.
    pub perm: u32,
    pub umask: u32,
    /// Opens the file too; unless `exclusive`, it may exist, if it is a regular one.
    pub open: Option<OpenHow>,
    pub exclusive: bool,
    /// The inode number that the client has already given its caller (write-back); the client then
    /// has no step left to do.
    pub writeback: Option<Ino>,
}

impl Meta {
    pub(crate) fn create(&mut self, cx: &mut Cx<'_>, new: &Creation<'_>) -> Step<Final<'_>> {
        let parent = self.state.dir(new.dir)?;
        cx.check(parent, Access::EXEC)?;
        check_interference(parent)?;
        let slot = self.state.slot(new.name);
        let target = self.state.target(new.dir, &slot)?;
        // A file that this operation has truncated is opened even if its name refers to another one
        // since.
        match cx.truncated().filter(|ino| self.state.inode(*ino).is_ok()).or(target.ino()) {
            Some(ino) => self.open_existing(cx, new, (slot.hash, target), ino).map(Final::of),
            None => self.create_new(cx, new, slot.hash),
        }
    }

    /// Opens an existing file; `target`: what the name with this hash refers to.
    fn open_existing(
        &mut self,
        cx: &mut Cx<'_>,
        new: &Creation<'_>,
        (hash, target): (u64, Target),
        ino: Ino,
    ) -> Step<Reply> {
        let (Some(how), false) = (new.open, new.exclusive) else { return Err(Errno::EEXIST.into()) };
        let cacheable = self.state.dir(new.dir)?.searchable_by_all();
        let place = (new.dir, hash);
        let kind = match target {
            Target::Remote(remote) if remote.ino == ino => remote.kind,
            _ => self.state.inode(ino)?.kind,
        };
        if let Some(errno) = refusal(kind) {
            return Err(errno.into());
        }
        if let Some(referent) = target.at_other_rank(self.config.rank).filter(|referent| referent.ino == ino)
        {
            return Ok(self.reply_remote(cx, place, cacheable, referent));
        }
        let mut attr = self.attr(cx, self.state.inode(ino)?)?;
        let opened = self.open_as(cx, ino, how)?;
        if !attr.streamed {
            // The open may have truncated the file.
            attr = self.state.inode(ino)?.attr(None);
        } else if how.truncate {
            (attr.size, attr.blocks, attr.mtime, attr.ctime) = (0, 0, cx.now, cx.now);
        }
        let is_named = target.ino() == Some(ino);
        self.opened(ino);
        Ok(Reply::Created(self.entry(cx, is_named.then_some(place), cacheable && is_named, attr), opened))
    }

    fn create_new(&mut self, cx: &mut Cx<'_>, new: &Creation<'_>, hash: u64) -> Step<Final<'_>> {
        let Creation { dir, name, open, .. } = *new;
        let mut inode = self.new_inode(cx, dir, new.node, (new.perm, new.umask), new.writeback)?;
        let parent = self.state.dir(dir)?;
        let cacheable = parent.searchable_by_all();
        if new.writeback.is_none() {
            if matches!(new.node, NewNode::Regular) && self.wants_no_metafile(parent) {
                inode.strip_to(parent);
            }
            if let Some(rank) = self.remote_home(cx, &inode) {
                return self.mkdir_remote(cx, rank, (dir, name), inode);
            }
        }
        self.allow_if_acknowledged(cx, dir, self.state.admit(&[(dir, inode.weight())], &[]))?;
        let limited = inode.is_streamed() && self.state.limits_below(dir)?.bytes.is_some();
        let mut delegation = None;
        if inode.has_no_metafile() {
            delegation = self.grant_datafile(cx, &inode)?;
        } else if new.writeback.is_none() && self.is_made_by_client(cx, &inode) {
            return self.make(cx, inode, limited);
        }
        let (attr, announced) = (inode.attr(None), self.announces(&inode));
        self.note_pool_use(&inode);
        let event = match NoMetafile::of(&inode) {
            Some(NoMetafile { ino, server, time, .. }) => {
                Event::CreateNoMetafile { dir, name: name.clone(), ino, server, time }
            }
            None => Event::Create { dir, name: name.clone(), inode },
        };
        self.commit(cx, &event, |meta, cx| {
            let entry = meta.entry(cx, Some((dir, hash)), cacheable, attr);
            let token_kind = match open {
                _ if delegation.is_some() => TokenKind::OpenedToWrite,
                Some(how) => TokenKind::opened(how.access),
                None => return Reply::Entry(entry),
            };
            meta.opened(attr.ino);
            let reclaim_token = meta.reclaim_token(cx.client, attr.ino, token_kind);
            let (streamed, accessed, shared) = (attr.streamed, false, false);
            let opened = Opened { streamed, accessed, limited, shared, announced, reclaim_token };
            Reply::Created(entry, opened).unless_unmeasured(delegation)
        })
    }

    /// The inode that the caller may create in a directory, with what it inherits.
    pub(crate) fn new_inode(
        &self,
        cx: &Cx<'_>,
        dir: Ino,
        node: &NewNode,
        modes: (u32, u32),
        writeback: Option<Ino>,
    ) -> Step<Inode> {
        self.growable()?;
        let parent = self.state.dir(dir)?;
        if self.state.is_removed(dir)? {
            return Err(Errno::ENOENT.into());
        }
        // A decoupled directory has files without a name: the big ones of its namespace.
        cx.check(parent, Access::WRITE | Access::EXEC)?;
        let (ino, file) = match (node, writeback) {
            (NewNode::Regular, Some(ino)) => (self.given_ino(cx.client, ino)?, Body::STUFFED),
            (NewNode::Regular, None) => self.new_file(parent)?,
            (NewNode::Symlink(_) | NewNode::Directory, Some(ino)) => {
                (self.given_ino(cx.client, ino)?, Body::Node)
            }
            (_, Some(_)) => return Err(Errno::EINVAL.into()),
            (_, None) => (self.new_ino()?, Body::Node),
        };
        let (kind, rdev, body) = match node {
            NewNode::Regular => (FileType::Regular, 0, file),
            NewNode::Directory => (FileType::Directory, 0, Body::Directory(Directory::empty(dir))),
            NewNode::Symlink(target) => (FileType::Symlink, 0, Body::Symlink(target.clone())),
            NewNode::Fifo => (FileType::Fifo, 0, Body::Node),
            NewNode::Socket => (FileType::Socket, 0, Body::Node),
            NewNode::CharDevice(rdev) => (FileType::CharDevice, *rdev, Body::Node),
            NewNode::BlockDevice(rdev) => (FileType::BlockDevice, *rdev, Body::Node),
        };
        let is_dir = kind == FileType::Directory;
        let rights = new_rights(cx, parent, kind, modes)?;
        // Policies concern only files and directories.
        let policy = match kind {
            FileType::Directory => self.inherited_policy(parent),
            FileType::Regular => parent.rare.policy.clone(),
            _ => None,
        };
        let time = cx.now;
        Ok(Inode {
            ino,
            kind,
            perm: rights.perm,
            uid: cx.caller.uid,
            gid: rights.gid,
            nlink: if is_dir { 2 } else { 1 },
            rdev,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            body,
            acl: rights.acl,
            default_acl: rights.default_acl,
            has_xattrs: false,
            rare: Rare { policy, ..Rare::default() },
        })
    }
}

/// The rights that a new inode inherits from its directory.
struct NewRights {
    perm: u32,
    gid: u32,
    acl: Option<Box<Acl>>,
    default_acl: Option<Box<Acl>>,
}

/// `modes`: the requested permissions and the umask.
fn new_rights(cx: &Cx<'_>, parent: &Inode, kind: FileType, modes: (u32, u32)) -> Step<NewRights> {
    let is_dir = kind == FileType::Directory;
    let (perm, umask) = (modes.0 & mode::PERMISSIONS, modes.1);
    let mut rights = NewRights { perm, gid: cx.caller.gid, acl: None, default_acl: None };
    match &parent.default_acl {
        _ if kind == FileType::Symlink => rights.perm = 0o777,
        None => rights.perm &= !umask,
        Some(default) => {
            let inherited = default.inherit(perm);
            rights.perm = perm & !0o777 | inherited.perm();
            rights.acl = (!inherited.is_minimal()).then(|| Box::new(inherited));
            rights.default_acl = is_dir.then(|| default.clone());
        }
    }
    if parent.perm & mode::SET_GID != 0 {
        rights.gid = parent.gid;
        if is_dir {
            rights.perm |= mode::SET_GID;
        } else if rights.perm & mode::GROUP_EXEC != 0 {
            rights.perm = cx.without_foreign_sgid(rights.perm, rights.gid)?;
        }
    }
    Ok(rights)
}
