//! An operation in progress: it walks its paths, then makes its own calls.

use espalier_client::{Answer, Call};
use espalier_proto::{
    Access, Caller, END, Errno, FileType, Ino, NewNode, OpenHow, Reads, RenameFlags, Request, SetAttr, mode,
};

use super::files::ListingProgress;
use super::walk::{End, Found, Last, NameLookup, PathWalk, TargetName, WalkStep};
use super::{Frontend, Kernel};
use crate::Nanos;
use crate::source::{Op, OpKind, OpenFlags, Target};

/// Number of retries if an inode is forgotten between lookup and use.
const TRIES: u32 = 4;
/// Largest read or write in bytes.
const CHUNK: u64 = 1 << 20;
/// Interval for requests of the root's attributes, which no lookup renews.
const ROOT_RENEWAL: Nanos = Nanos(1_000_000_000);

/// Next step of an operation.
pub(super) enum TaskStep {
    Ask(Call<'static>),
    Done(Result<u64, Errno>),
}

#[derive(Debug)]
enum TaskStage {
    Start,
    /// Requesting the root's attributes.
    Root,
    Walk(PathWalk),
    /// Executing its own call, after `done` bytes.
    Own {
        done: u64,
    },
}

#[derive(Debug)]
pub(super) struct ProcessTask {
    op: Op,
    pub(super) begun: Nanos,
    tries: u32,
    stage: TaskStage,
    ends: Vec<End>,
}

impl ProcessTask {
    pub(super) fn new(op: Op, begun: Nanos) -> Self {
        Self { op, begun, tries: 0, stage: TaskStage::Start, ends: Vec::new() }
    }

    pub(super) fn kind(&self) -> OpKind {
        self.op.kind()
    }

    pub(super) fn step(
        &mut self,
        kernel: &mut Kernel,
        now: Nanos,
        answer: Option<Result<Answer, Errno>>,
    ) -> TaskStep {
        match self.try_step(kernel, now, answer) {
            Ok(step) => step,
            Err(errno) => {
                (self.tries, self.stage) = (self.tries + 1, TaskStage::Start);
                if errno != Errno::ESTALE || self.tries == TRIES || self.paths(kernel).is_empty() {
                    return TaskStep::Done(Err(errno));
                }
                self.step(kernel, now, None)
            }
        }
    }

    /// Credentials for the calls.
    pub(super) fn caller(&self, own: &Caller) -> Caller {
        match &self.op {
            Op::Recorded(call) => Caller { uid: call.uid, gid: call.gid, ..own.clone() },
            _ => own.clone(),
        }
    }

    fn try_step(
        &mut self,
        kernel: &mut Kernel,
        now: Nanos,
        answer: Option<Result<Answer, Errno>>,
    ) -> Result<TaskStep, Errno> {
        match &mut self.stage {
            TaskStage::Start => {
                self.ends.clear();
                if let Op::Open { file, .. } = self.op
                    && let Some(old) = kernel.files.close(file).filter(|old| old.is_held())
                {
                    return Ok(TaskStep::Ask(Call::Release { ino: old.ino }));
                }
                let renews = kernel.root_requested.is_none_or(|requested| now >= requested + ROOT_RENEWAL);
                let begins_there = |(path, _): &(Vec<u8>, Last)| kernel.files.origin(path) == Ino::ROOT;
                if renews && self.paths(kernel).iter().any(begins_there) {
                    kernel.root_requested = Some(now);
                    self.stage = TaskStage::Root;
                    return Ok(TaskStep::Ask(Call::Request(Request::GetAttr { ino: Ino::ROOT })));
                }
                self.walk(kernel)
            }
            TaskStage::Root => self.walk(kernel),
            TaskStage::Walk(walk) => match walk.step(answer.transpose()?) {
                WalkStep::Ask(request) => Ok(TaskStep::Ask(Call::Request(request))),
                WalkStep::End(end) => {
                    self.ends.push(end?);
                    self.walk(kernel)
                }
            },
            TaskStage::Own { done } => {
                let done = *done;
                self.answered(kernel, done, answer.unwrap_or(Err(Errno::EIO)))
            }
        }
    }

    /// The paths to walk, with the operation's use of each.
    fn paths(&self, kernel: &Kernel) -> Vec<(Vec<u8>, Last)> {
        let own = self.own_paths(kernel).into_iter().map(|(path, last)| (path.to_vec(), last));
        match &self.op {
            // Look up inodes that were forgotten.
            Op::Recorded(call) if self.tries > 0 => {
                let paths = kernel.files.inodes().paths(&call.recorded);
                paths.into_iter().map(|path| (path, Last::NoFollow)).collect()
            }
            _ => own.collect(),
        }
    }

    fn own_paths(&self, kernel: &Kernel) -> Vec<(&[u8], Last)> {
        let place = match kernel.identity.frontend {
            Frontend::Mount => Last::Look,
            Frontend::Library => Last::TargetName,
        };
        match &self.op {
            Op::Open { path, flags, .. } if flags.contains(OpenFlags::CREATE) => vec![(path, place)],
            Op::Open { path, flags, .. } if flags.contains(OpenFlags::NO_FOLLOW) => {
                vec![(path, Last::NoFollow)]
            }
            Op::Open { path, .. } | Op::Access { path, .. } | Op::Enter { path } => {
                vec![(path, Last::Follow)]
            }
            Op::MkDir { path, .. }
            | Op::MkNod { path, .. }
            | Op::Symlink { path, .. }
            | Op::Unlink { path }
            | Op::RmDir { path } => vec![(path, place)],
            // Only directories may be named with a trailing slash.
            Op::Rename { from, to, .. } if from.ends_with(b"/") || to.ends_with(b"/") => {
                vec![(from, Last::Look), (to, place)]
            }
            Op::Rename { from, to, .. } => vec![(from, place), (to, place)],
            Op::Link { from, to } => vec![(from, Last::NoFollow), (to, place)],
            Op::ReadLink { path } => vec![(path, Last::NoFollow)],
            Op::Stat { target } | Op::SetAttr { target, .. } => match target {
                Target::Path(path) => vec![(path, Last::Follow)],
                Target::Link(path) => vec![(path, Last::NoFollow)],
                Target::File(_) => Vec::new(),
            },
            Op::Read { .. }
            | Op::Write { .. }
            | Op::Seek { .. }
            | Op::Close { .. }
            | Op::Sync { .. }
            | Op::List { .. }
            | Op::Recorded(_) => Vec::new(),
        }
    }

    /// Starts the walk of the next path, or the operation's own call after the last one.
    fn walk(&mut self, kernel: &mut Kernel) -> Result<TaskStep, Errno> {
        let next = self
            .paths(kernel)
            .get(self.ends.len())
            .map(|(path, last)| PathWalk::new(kernel.files.origin(path), path, *last));
        match next {
            Some(walk) => {
                self.stage = TaskStage::Walk(walk?);
                self.try_step(kernel, Nanos::ZERO, None)
            }
            None => {
                self.stage = TaskStage::Own { done: 0 };
                self.own(kernel, 0)
            }
        }
    }

    /// The operation's own call, after `done` bytes.
    fn own(&mut self, kernel: &mut Kernel, done: u64) -> Result<TaskStep, Errno> {
        if let Op::Recorded(call) = &self.op {
            let found: Vec<_> =
                self.ends.iter().map(|end| Ok(found(end)?.ino)).collect::<Result<_, Errno>>()?;
            kernel.files.inodes().relearn(&call.recorded, &found);
            let requested = kernel.files.inodes().translate(&call.recorded)?;
            return Ok(ask_call(requested.call(|size| kernel.stamp(size))));
        }
        let is_user = !kernel.identity.caller.is_superuser();
        let mut ends = self.ends.iter();
        let mut end = || ends.next().ok_or(Errno::EIO);
        Ok(match &self.op {
            Op::MkDir { mode, .. } => {
                let place = new(end()?)?;
                create(kernel, place, NewNode::Directory, *mode)
            }
            Op::MkNod { mode, .. } => {
                let place = new(end()?)?;
                if place.is_dir {
                    return Err(Errno::ENOENT);
                }
                create(kernel, place, NewNode::Regular, *mode)
            }
            Op::Symlink { target, .. } => {
                let place = new(end()?)?;
                if target.is_empty() || place.is_dir {
                    return Err(Errno::ENOENT);
                }
                create(kernel, place, NewNode::Symlink(target.as_slice().into()), 0o777)
            }
            Op::Open { file, flags, .. } if flags.contains(OpenFlags::PATH) => {
                let Found { ino, kind, .. } = *found(end()?)?;
                if flags.contains(OpenFlags::DIRECTORY) && kind != FileType::Directory {
                    return Err(Errno::ENOTDIR);
                }
                kernel.files.opened(*file, ino, *flags, kind == FileType::Directory);
                TaskStep::Done(Ok(0))
            }
            Op::Open { flags, mode, .. } => open(kernel, end()?, *flags, *mode)?,
            Op::Read { file, offset, size } => {
                let file = kernel.files.get(*file)?;
                if file.is_dir {
                    return Err(Errno::EISDIR);
                }
                if !file.flags.contains(OpenFlags::READ) {
                    return Err(Errno::EBADF);
                }
                let from = offset.unwrap_or(file.offset).saturating_add(done);
                let size = (size - done).min(CHUNK) as u32;
                ask_call(Call::read(file.ino, from, size, false))
            }
            Op::Write { file, offset, size } => {
                let file = kernel.files.get(*file)?;
                if !file.flags.contains(OpenFlags::WRITE) {
                    return Err(Errno::EBADF);
                }
                let appends = file.flags.contains(OpenFlags::APPEND);
                let from = if appends { END } else { offset.unwrap_or(file.offset).saturating_add(done) };
                let (ino, size) = (file.ino, (size - done).min(CHUNK));
                let data = kernel.stamp(size as usize).into();
                ask_call(Call::write(ino, from, data, is_user))
            }
            Op::Seek { file, offset } => {
                kernel.files.get(*file)?;
                kernel.files.update(*file, |file| {
                    (file.offset, file.listed) = (*offset, ListingProgress::UpTo(*offset));
                });
                TaskStep::Done(Ok(*offset))
            }
            Op::Close { file } => {
                let file = kernel.files.close(*file).ok_or(Errno::EBADF)?;
                if !file.is_held() {
                    return Ok(TaskStep::Done(Ok(0)));
                }
                ask_call(Call::Release { ino: file.ino })
            }
            Op::Sync { file } => ask(Request::Fsync { ino: kernel.files.get(*file)?.ino }),
            Op::List { file, limit, plus } => {
                let dir = kernel.files.get(*file)?;
                if !dir.is_dir {
                    return Err(Errno::ENOTDIR);
                }
                let ListingProgress::UpTo(after) = dir.listed else { return Ok(TaskStep::Done(Ok(0))) };
                ask(Request::ReadDir { dir: dir.ino, after, limit: *limit, plus: *plus })
            }
            Op::Stat { target: Target::File(file) } => {
                ask(Request::GetAttr { ino: kernel.files.get(*file)?.ino })
            }
            Op::Stat { .. } => {
                let found = found(end()?)?;
                match found.attr {
                    Some(attr) => TaskStep::Done(Ok(attr.size)),
                    None => ask(Request::GetAttr { ino: found.ino }),
                }
            }
            Op::SetAttr { target, set } => {
                let changes = is_user && (set.size.is_some() || set.uid.is_some() || set.gid.is_some());
                let set = SetAttr { kill_suid_gid: changes, ..*set };
                match target {
                    Target::File(file) => {
                        let file = kernel.files.get(*file)?;
                        if set.size.is_some() && !file.flags.contains(OpenFlags::WRITE) {
                            return Err(Errno::EINVAL);
                        }
                        let set = SetAttr { through_handle: set.size.is_some(), ..set };
                        ask(Request::SetAttr { ino: file.ino, set })
                    }
                    _ => ask(Request::SetAttr { ino: found(end()?)?.ino, set }),
                }
            }
            Op::Access { want, .. } => {
                let ino = found(end()?)?.ino;
                if want.is_empty() {
                    return Ok(TaskStep::Done(Ok(0)));
                }
                ask(Request::Access { ino, want: *want })
            }
            Op::Unlink { .. } => {
                let place = there(end()?, Errno::EISDIR)?;
                if place.is_dir {
                    return Err(Errno::ENOTDIR);
                }
                ask(Request::Unlink { dir: place.dir, name: place.name.clone(), time: None })
            }
            Op::RmDir { .. } => {
                let place = there(end()?, Errno::EBUSY)?;
                ask(Request::RmDir { dir: place.dir, name: place.name.clone(), time: None })
            }
            Op::Rename { flags, .. } => rename(there(end()?, Errno::EBUSY)?, end()?, *flags)?,
            Op::Link { .. } => {
                let ino = found(end()?)?.ino;
                let place = new(end()?)?;
                if place.is_dir {
                    return Err(Errno::ENOENT);
                }
                ask(Request::Link { ino, dir: place.dir, name: place.name.clone() })
            }
            Op::Enter { path } => {
                kernel.files.inodes().enter(path, found(end()?)?.ino);
                TaskStep::Done(Ok(0))
            }
            // Handled above.
            Op::Recorded(_) => return Err(Errno::EIO),
            Op::ReadLink { .. } => {
                let found = found(end()?)?;
                if found.kind != FileType::Symlink {
                    return Err(Errno::EINVAL);
                }
                ask(Request::ReadLink { ino: found.ino })
            }
        })
    }

    /// Handles the reply to its own call, after `done` bytes.
    fn answered(
        &mut self,
        kernel: &mut Kernel,
        done: u64,
        answer: Result<Answer, Errno>,
    ) -> Result<TaskStep, Errno> {
        let moved = match (&self.op, answer) {
            // Report partial success first, as POSIX requires.
            (Op::Read { .. } | Op::Write { .. }, Err(_)) if done > 0 => None,
            // Open the target of a symbolic link; do not create it.
            (Op::Open { .. }, Err(Errno::ELOOP)) => return self.reopen(kernel),
            (_, Err(errno)) => return Err(errno),
            (Op::Recorded(_), Ok(Answer::Absent { .. })) => return Err(Errno::ENOENT),
            (Op::Recorded(call), Ok(answer)) => {
                kernel.files.inodes().learn(&call.recorded, &call.observed, &answer);
                return Ok(TaskStep::Done(Ok(0)));
            }
            (Op::Read { .. }, Ok(Answer::Bytes(bytes))) => Some(bytes.len() as u64),
            (Op::Write { .. }, Ok(Answer::Written(written))) => Some(u64::from(written)),
            (Op::Open { .. }, Ok(Answer::Created(_, opening))) => {
                return self.created(kernel, opening.ino);
            }
            (Op::Open { file, flags, .. }, Ok(Answer::Opened(opening))) => {
                let is_dir =
                    matches!(self.ends.last(), Some(End::Found(Found { kind: FileType::Directory, .. })));
                kernel.files.opened(*file, opening.ino, *flags, is_dir);
                return Ok(TaskStep::Done(Ok(0)));
            }
            (Op::List { file, .. }, Ok(Answer::Listing { entries, end, .. })) => {
                let listed = match entries.last() {
                    Some(last) if !end => ListingProgress::UpTo(last.cursor),
                    _ => ListingProgress::All,
                };
                kernel.files.update(*file, |dir| dir.listed = listed);
                return Ok(TaskStep::Done(Ok(entries.len() as u64)));
            }
            (Op::Stat { .. }, Ok(Answer::Attr(attr))) => return Ok(TaskStep::Done(Ok(attr.size))),
            (Op::ReadLink { .. }, Ok(Answer::Bytes(target))) => {
                return Ok(TaskStep::Done(Ok(target.len() as u64)));
            }
            (_, Ok(Answer::Done | Answer::Entry(_) | Answer::Attr(_))) => return Ok(TaskStep::Done(Ok(0))),
            (_, Ok(_)) => return Err(Errno::EIO),
        };
        let (Op::Read { file, offset, size } | Op::Write { file, offset, size }) = self.op else {
            return Err(Errno::EIO);
        };
        let requested = (size - done).min(CHUNK);
        let moved = moved.map(|moved| moved.min(requested));
        let total = done + moved.unwrap_or(0);
        if moved == Some(requested) && total < size {
            self.stage = TaskStage::Own { done: total };
            return self.own(kernel, total);
        }
        if offset.is_none() {
            kernel.files.update(file, |file| file.offset = file.offset.saturating_add(total));
        }
        Ok(TaskStep::Done(Ok(total)))
    }

    fn created(&mut self, kernel: &mut Kernel, ino: Ino) -> Result<TaskStep, Errno> {
        let Op::Open { file, flags, .. } = self.op else { return Err(Errno::EIO) };
        kernel.files.opened(file, ino, flags, false);
        Ok(TaskStep::Done(Ok(0)))
    }

    /// Looks up and opens the existing file.
    fn reopen(&mut self, kernel: &mut Kernel) -> Result<TaskStep, Errno> {
        if let Op::Open { flags, .. } = &mut self.op {
            flags.remove(OpenFlags::CREATE);
        }
        self.ends.clear();
        self.walk(kernel)
    }
}

impl Kernel {
    /// Data to write, marked with the process and its number of writes.
    fn stamp(&mut self, size: usize) -> Vec<u8> {
        self.writes = self.writes.wrapping_add(1);
        let stamp = u64::from(self.identity.number) << 32 | u64::from(self.writes);
        stamp.to_le_bytes().into_iter().cycle().take(size).collect()
    }
}

fn ask(request: Request) -> TaskStep {
    TaskStep::Ask(Call::Request(request))
}

fn ask_call(call: Call<'static>) -> TaskStep {
    TaskStep::Ask(call)
}

fn create(kernel: &Kernel, place: &TargetName, node: NewNode, perm: u32) -> TaskStep {
    let (dir, name, perm, umask) =
        (place.dir, place.name.clone(), perm & mode::PERMISSIONS, kernel.identity.umask);
    ask(Request::Create { dir, name, node, perm, umask, open: None, exclusive: true, writeback: None })
}

fn open(kernel: &Kernel, end: &End, flags: OpenFlags, perm: u32) -> Result<TaskStep, Errno> {
    let mut access = Access::empty();
    access.set(Access::READ, flags.contains(OpenFlags::READ));
    access.set(Access::WRITE, flags.contains(OpenFlags::WRITE));
    let kill_suid_gid = !kernel.identity.caller.is_superuser();
    let how = OpenHow {
        access,
        kill_suid_gid,
        truncate: flags.contains(OpenFlags::TRUNCATE),
        sync: false,
        append: flags.contains(OpenFlags::APPEND),
        reads: Reads::Whole,
    };
    let creates = flags.contains(OpenFlags::CREATE);
    let exclusive = flags.contains(OpenFlags::EXCLUSIVE);
    let found = match end {
        End::Found(found) => found,
        End::TargetName(place) if place.is_dir => return Err(Errno::EISDIR),
        End::TargetName(TargetName { known: NameLookup::Is(_), .. }) if exclusive => {
            return Err(Errno::EEXIST);
        }
        End::TargetName(TargetName { known: NameLookup::Is(found), .. })
            if found.kind != FileType::Symlink =>
        {
            found
        }
        // The lookup also shows symbolic links.
        End::TargetName(place) => {
            let (dir, name, umask) = (place.dir, place.name.clone(), kernel.identity.umask);
            let (node, open, perm) = (NewNode::Regular, Some(how), perm & mode::PERMISSIONS);
            return Ok(ask(Request::Create {
                dir,
                name,
                node,
                perm,
                umask,
                open,
                exclusive,
                writeback: None,
            }));
        }
    };
    match found.kind {
        FileType::Directory if creates || flags.contains(OpenFlags::WRITE) => Err(Errno::EISDIR),
        FileType::Regular if flags.contains(OpenFlags::DIRECTORY) => Err(Errno::ENOTDIR),
        FileType::Regular | FileType::Directory => Ok(ask(Request::Open { ino: found.ino, how })),
        FileType::Symlink => Err(Errno::ELOOP),
        // The simulated kernel cannot open special files.
        _ => Err(Errno::ENXIO),
    }
}

fn rename(from: &TargetName, to: &End, flags: RenameFlags) -> Result<TaskStep, Errno> {
    let End::TargetName(to) = to else { return Err(Errno::EBUSY) };
    if (from.is_dir || to.is_dir)
        && !matches!(from.known, NameLookup::Is(Found { kind: FileType::Directory, .. }))
    {
        return Err(Errno::ENOTDIR);
    }
    if flags.contains(RenameFlags::NOREPLACE) && matches!(to.known, NameLookup::Is(_)) {
        return Err(Errno::EEXIST);
    }
    let (from_dir, from, to_dir, to) = (from.dir, from.name.clone(), to.dir, to.name.clone());
    Ok(ask(Request::Rename { from_dir, from, to_dir, to, flags, time: None }))
}

fn found(end: &End) -> Result<&Found, Errno> {
    match end {
        End::Found(found) => Ok(found),
        End::TargetName(_) => Err(Errno::EIO),
    }
}

/// The place of a name that must not exist.
fn new(end: &End) -> Result<&TargetName, Errno> {
    match end {
        End::TargetName(place) if !matches!(place.known, NameLookup::Is(_)) => Ok(place),
        _ => Err(Errno::EEXIST),
    }
}

/// The place of a name that may exist. `otherwise`: the error for the root.
fn there(end: &End, otherwise: Errno) -> Result<&TargetName, Errno> {
    match end {
        End::TargetName(place) if !matches!(place.known, NameLookup::Absent) => Ok(place),
        End::TargetName(_) => Err(Errno::ENOENT),
        End::Found(_) => Err(otherwise),
    }
}
