//! A process with random calls. It names inodes by numbers from earlier replies, as the caches and
//! working directories of a kernel do, including inodes that were removed or moved meanwhile. Each
//! write has unique contents.

use std::collections::BTreeMap;

use espalier_client::{Answer, Call};
use espalier_proto::{
    Access, Caller, END, Entry, Errno, FileType, Ino, Name, NewNode, OpenHow, Reads, RenameFlags, Request,
    SetAttr, XattrMode, mode,
};
use rand::Rng;

use super::acls::{self, Lists};
use super::exclusive::ExclusiveDir;
use super::handles::{self, Exported, Handles};
use super::locks::{self, Locker};
use super::looks;
use super::policies::{Live, Policies};
use super::privileges::{self, Privileges};
use super::quotas;
use super::reads::RandomReader;
use super::streaks::Streak;
use super::walks::Walker;
use crate::process::{Act, Program};
use crate::{Nanos, Random};

/// A caller with all permissions.
pub const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1, groups: None };
/// Number of calls on the final file of a process.
const LAST: u32 = 3;
pub(super) const UNWELL: Nanos = Nanos(500_000_000);
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const XATTRS: [&str; 2] = ["user.x", "user.y"];

/// Distribution of random calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Habits {
    pub calls: u32,
    /// Longest pause between calls; sometimes a process rests a hundred times as long.
    pub pause: Nanos,
    /// Strip size in bytes; files get several strips.
    pub strip: u64,
    /// Percentage of calls that read or write data.
    pub bytes: u32,
    /// Percentage of renames among the others.
    pub moves: u32,
    /// Some callers are not the superuser.
    pub users: bool,
    pub quotas: Option<quotas::Habit>,
    pub acls: Option<acls::Habit>,
    pub handles: Option<handles::Habit>,
    pub privileges: Option<privileges::Habit>,
    /// Files are locked.
    pub locks: bool,
    /// Processes sometimes use exclusive directories.
    pub exclusive: bool,
    /// Most calls are reads.
    pub looks: bool,
    /// Files are read repeatedly.
    pub reads: bool,
    /// Processes with exclusive directories sometimes write streaks to big files.
    pub streaks: bool,
    /// Processes sometimes walk trees.
    pub walks: bool,
}

/// See the module description.
#[derive(Debug)]
pub struct RandomCaller {
    /// Number of the process, unique in the run.
    number: u32,
    habits: Habits,
    left: u32,
    caller: Caller,
    rests: bool,
    dirs: Vec<Ino>,
    files: Vec<Ino>,
    links: Vec<Ino>,
    open: BTreeMap<Ino, u32>,
    /// Number of final calls made so far.
    finished: u32,
    pending_call: Option<Call<'static>>,
    /// Directory and cursor of the current listing.
    listing: Option<(Ino, u64)>,
    written: u32,
    policies: Option<Policies>,
    lists: Option<Lists>,
    handles: Option<Handles>,
    privileges: Option<Privileges>,
    locker: Locker,
    exclusive: Option<ExclusiveDir>,
    reader: Option<RandomReader>,
    streak: Option<Streak>,
    walker: Option<Walker>,
}

impl RandomCaller {
    pub fn new(number: u32, habits: Habits, live: Option<Live>, exported: &Exported) -> Self {
        Self {
            number,
            habits,
            left: habits.calls,
            caller: match (habits.users, number % 3) {
                (false, _) | (_, 0) => CALLER,
                (_, user) => {
                    let groups = habits.acls.and_then(|_| acls::groups(number));
                    Caller { uid: 1000 + user, gid: 100 + number / 3 % 2, groups, ..CALLER }
                }
            },
            rests: false,
            dirs: vec![Ino::ROOT],
            files: Vec::new(),
            links: Vec::new(),
            open: BTreeMap::new(),
            finished: 0,
            pending_call: None,
            listing: None,
            written: 0,
            policies: live.map(|live| Policies::new(live, number)),
            lists: habits.acls.map(|habit| Lists::new(habit, number)),
            handles: habits.handles.map(|habit| Handles::new(habit, number, exported.clone())),
            privileges: habits.privileges.map(|habit| Privileges::new(habit, number, habits.strip)),
            locker: Locker::new(number),
            exclusive: habits.exclusive.then(|| ExclusiveDir::new(number)),
            reader: habits.reads.then(RandomReader::default),
            streak: habits.streaks.then(Streak::default),
            walker: habits.walks.then(Walker::default),
        }
    }

    fn learn(&mut self, answer: &Result<Answer, Errno>) {
        let pending_call = self.pending_call.take();
        pending_call.iter().for_each(|pending_call| self.locker.learn(pending_call, answer));
        if let (Some(walker), Some(pending_call)) = (&mut self.walker, &pending_call) {
            walker.learn(pending_call, answer);
        }
        if let (Some(exclusive), Some(pending_call)) = (&mut self.exclusive, &pending_call) {
            exclusive.learn(pending_call, answer);
        }
        if let (Some(reader), Some(pending_call)) = (&mut self.reader, &pending_call)
            && reader.learn(pending_call, answer)
        {
            return;
        }
        match (pending_call, answer) {
            (_, Ok(Answer::Entry(entry) | Answer::Unmeasured(entry))) => {
                self.know(entry.attr.ino, entry.attr.kind)
            }
            (_, Ok(Answer::Created(Entry { attr, .. }, _))) => {
                self.know(attr.ino, attr.kind);
                if attr.kind == FileType::Regular {
                    *self.open.entry(attr.ino).or_default() += 1;
                }
            }
            (_, Ok(Answer::Opened(opening))) => *self.open.entry(opening.ino).or_default() += 1,
            (Some(Call::Request(Request::ReadDir { dir, .. })), Ok(Answer::Listing { entries, end, .. })) => {
                // The servers do not know that the client knows the other entries.
                let reported = entries.iter().filter(|entry| entry.entry.is_some());
                reported.for_each(|entry| self.know(entry.ino, entry.kind));
                let last = entries.last().filter(|_| !end);
                self.listing = last.map(|last| (dir, last.cursor));
            }
            // The session may have ended, and its open files with it.
            (Some(call), Err(Errno::EIO | Errno::ESTALE | Errno::EBADF)) => {
                if let Some(ino) = call.stream() {
                    self.open.remove(&ino);
                    self.reader.iter_mut().for_each(|reader| reader.lose(ino));
                }
            }
            _ => {}
        }
    }

    fn know(&mut self, ino: Ino, kind: FileType) {
        self.handles.iter().for_each(|handles| handles.know(ino, kind == FileType::Directory));
        let known = match kind {
            FileType::Directory => &mut self.dirs,
            FileType::Symlink => &mut self.links,
            _ => &mut self.files,
        };
        if !known.contains(&ino) {
            known.push(ino);
        }
    }

    fn next(&mut self, random: &mut Random) -> Call<'static> {
        if let Some((dir, after)) = self.listing.take() {
            return Call::Request(Request::ReadDir { dir, after, limit: 2, plus: random.random() });
        }
        if let Some(walker) = &mut self.walker {
            let dir = recent(random, &self.dirs);
            if let Some(request) = walker.next(random, dir) {
                return Call::Request(request);
            }
        }
        if self.habits.looks {
            let (dir, name) = (recent(random, &self.dirs), any_name(random));
            let node = self.any_file(random).unwrap_or(dir);
            let request = looks::next(random, dir, name, node);
            if let Some(request) = request {
                return Call::Request(request);
            }
        }
        let file = if self.habits.reads { self.any_file(random) } else { None };
        if let Some(call) = self.reader.as_mut().and_then(|reader| reader.next(random, file)) {
            return call;
        }
        let is_open = |ino: &Ino| self.open.contains_key(ino);
        if let Some(ino) = self.exclusive.as_mut().and_then(|exclusive| exclusive.file(random, is_open)) {
            return self.about_new_file(random, ino);
        }
        // Open files of the exclusive directory may be read and written meanwhile.
        let exclusive = self.exclusive.as_mut().filter(|_| random.random_range(0..4) > 0);
        if let Some(request) = exclusive.and_then(|exclusive| exclusive.next(random)) {
            return Call::Request(request);
        }
        if let Some(habit) = self.habits.quotas {
            // Callers other than the superuser are refused.
            let dir = recent(random, &self.dirs);
            let request = habit.next(random, dir);
            if let Some(request) = request {
                return Call::Request(request);
            }
        }
        if self.habits.locks && random.random_range(0..100) < locks::OFTEN {
            return self.about_locks(random);
        }
        if random.random_range(0..100) < self.habits.bytes {
            return self.about_bytes(random);
        }
        Call::Request(self.about_names(random))
    }

    fn about_names(&self, random: &mut Random) -> Request {
        let (dir, other) = (recent(random, &self.dirs), recent(random, &self.dirs));
        let (name, new) = (any_name(random), any_name(random));
        let node = if random.random() { dir } else { self.any_file(random).unwrap_or(dir) };
        if random.random_range(0..100) < self.habits.moves {
            let flags = match random.random_range(0..6) {
                0 | 1 => RenameFlags::EXCHANGE,
                2 => RenameFlags::NOREPLACE,
                _ => RenameFlags::empty(),
            };
            return Request::Rename { from_dir: dir, from: name, to_dir: other, to: new, flags, time: None };
        }
        let any_perm =
            if self.habits.users { 0o777 | (mode::STICKY * random.random_range(0..2)) } else { 0o755 };
        let umask = [0, 0, 0o022, 0o077][random.random_range(0..4)];
        let create = |node, open, exclusive| {
            let (name, perm) = (name.clone(), any_perm);
            Request::Create { dir, name, node, perm, umask, open, exclusive, writeback: None }
        };
        match random.random_range(0..100) {
            0..12 => create(NewNode::Directory, None, true),
            12..18 => create(NewNode::Regular, None, true),
            18..26 => create(NewNode::Regular, Some(how(random)), random.random()),
            26..28 => {
                let target = format!("to {} {}", self.number, self.left);
                create(NewNode::Symlink(target.into_bytes().into()), None, true)
            }
            28..42 => Request::Lookup { dir, name },
            42..53 => Request::GetAttr { ino: node },
            53..60 => {
                let limit = if random.random_range(0..4) == 0 { 2 } else { 100 };
                Request::ReadDir { dir, after: 0, limit, plus: random.random() }
            }
            60..67 => match self.any_file(random) {
                Some(ino) => Request::Link { ino, dir, name },
                None => Request::Lookup { dir, name },
            },
            67..78 => Request::Unlink { dir, name, time: None },
            78..85 => Request::RmDir { dir, name, time: None },
            85..88 => {
                let perm = Some([0o700, 0o750, 0o755, 0o777, 0o1777][random.random_range(0..5)]);
                Request::SetAttr { ino: node, set: SetAttr { perm, ..SetAttr::default() } }
            }
            88..91 => Request::Fsync { ino: node },
            91..93 => match self.links.as_slice() {
                [] => Request::Lookup { dir, name },
                links => Request::ReadLink { ino: recent(random, links) },
            },
            _ => self.about_xattrs(random, node),
        }
    }

    fn about_xattrs(&self, random: &mut Random, ino: Ino) -> Request {
        let name: Box<[u8]> = XATTRS[random.random_range(0..XATTRS.len())].as_bytes().into();
        match random.random_range(0..5) {
            0 | 1 => {
                let value = format!("{} {}", self.number, self.left).into_bytes().into();
                let mode = [XattrMode::Any, XattrMode::Create, XattrMode::Replace][random.random_range(0..3)];
                Request::SetXattr { ino, name, value, mode, kill_sgid: false }
            }
            2 => Request::GetXattr { ino, name },
            3 => Request::ListXattr { ino },
            _ => Request::RemoveXattr { ino, name },
        }
    }

    fn about_locks(&mut self, random: &mut Random) -> Call<'static> {
        let open: Vec<Ino> = self.open.keys().copied().collect();
        // Most processes use the same file.
        let one = if random.random_range(0..4) == 0 { random.random_range(0..open.len().max(1)) } else { 0 };
        Call::Request(match open.get(one) {
            Some(ino) => self.locker.next(random, *ino),
            None => {
                let (dir, name, node) = (Ino::ROOT, any_name(random), NewNode::Regular);
                let (perm, umask, open, exclusive) = (0o777, 0, Some(how(random)), false);
                Request::Create { dir, name, node, perm, umask, open, exclusive, writeback: None }
            }
        })
    }

    fn about_bytes(&mut self, random: &mut Random) -> Call<'static> {
        let open: Vec<Ino> = self.open.keys().copied().collect();
        let Some(ino) = open.get(random.random_range(0..open.len().max(1))).copied() else {
            return Call::Request(match self.any_file(random) {
                Some(ino) => Request::Open { ino, how: how(random) },
                None => self.about_names(random),
            });
        };
        // Few files get large.
        let strip = self.habits.strip;
        let most = if ino.0.is_multiple_of(3) { 3 * strip } else { strip };
        let (offset, length) = (random.random_range(0..most), random.random_range(1..=most));
        match random.random_range(0..100) {
            0..40 => {
                let length = length.min(most - offset).max(1);
                Call::write(ino, offset, self.new_bytes(length).into(), false)
            }
            40..50 => {
                let length = length.min(strip / 4).max(1);
                Call::write(ino, END, self.new_bytes(length).into(), false)
            }
            50..80 => Call::read(ino, offset, length as u32, random.random()),
            80..84 => {
                let size = Some(if random.random() { 0 } else { offset });
                let set = SetAttr { size, through_handle: true, ..SetAttr::default() };
                Call::Request(Request::SetAttr { ino, set })
            }
            84..90 => Call::Request(Request::Fsync { ino }),
            90..93 => Call::Request(Request::GetAttr { ino }),
            93..95 => match self.any_file(random) {
                Some(ino) if self.open.contains_key(&ino) && random.random() => {
                    let how = OpenHow { access: Access::READ, reads: Reads::Whole, ..OpenHow::default() };
                    Call::Request(Request::Open { ino, how })
                }
                Some(ino) => Call::Request(Request::Open { ino, how: how(random) }),
                None => Call::Request(Request::GetAttr { ino }),
            },
            _ => self.close(ino),
        }
    }

    /// The next call on a file that was just made in an exclusive directory; most stay small.
    fn about_new_file(&mut self, random: &mut Random, ino: Ino) -> Call<'static> {
        let streak = self.streak.as_mut().and_then(|streak| streak.next(random, ino, self.habits.strip));
        if let Some((offset, length)) = streak {
            return Call::write(ino, offset, self.new_bytes(length).into(), false);
        }
        let most = if random.random_range(0..8) == 0 { 2 * self.habits.strip } else { self.habits.strip / 4 };
        let length = random.random_range(1..=most.max(1));
        match random.random_range(0..10) {
            0..3 => Call::write(ino, END, self.new_bytes(length).into(), false),
            3..5 => {
                let offset = random.random_range(0..most.max(1));
                Call::write(ino, offset, self.new_bytes(length).into(), false)
            }
            5 => Call::read(ino, 0, most as u32, random.random()),
            6 => Call::Request(Request::GetAttr { ino }),
            7 => Call::Request(Request::Fsync { ino }),
            _ => self.close(ino),
        }
    }

    /// Closes a file, after unlocking it.
    fn close(&mut self, ino: Ino) -> Call<'static> {
        if let Some(unlock) = self.locker.leave(ino) {
            return Call::Request(unlock);
        }
        if let Some(opens) = self.open.get_mut(&ino) {
            *opens -= 1;
            if *opens == 0 {
                self.open.remove(&ino);
            }
        }
        Call::Release { ino }
    }

    /// The final calls: create a file of its own, write it and make it durable, so that later
    /// faults show whether it is; then close all files.
    fn finish(&mut self) -> Option<Call<'static>> {
        self.finished += 1;
        let newest = self.files.last().copied().filter(|ino| self.open.contains_key(ino));
        match (self.finished, newest) {
            (1, _) => {
                let name = Name::new(format!("last {}", self.number).as_bytes()).ok()?;
                let access = Access::READ | Access::WRITE;
                let how = OpenHow { access, ..OpenHow::default() };
                let (node, open) = (NewNode::Regular, Some(how));
                let (dir, perm, umask, exclusive) = (Ino::ROOT, 0o644, 0, true);
                Some(Call::Request(Request::Create {
                    dir,
                    name,
                    node,
                    perm,
                    umask,
                    open,
                    exclusive,
                    writeback: None,
                }))
            }
            (2, Some(ino)) => {
                let data = self.new_bytes(2 * self.habits.strip).into();
                Some(Call::write(ino, 0, data, false))
            }
            (LAST, Some(ino)) => Some(Call::Request(Request::Fsync { ino })),
            _ => {
                let unlock = self.locker.give_up().map(Call::Request);
                let read = self.reader.as_mut().and_then(RandomReader::close);
                let next = unlock.or(read);
                next.or_else(|| self.open.keys().next().copied().map(|ino| self.close(ino)))
            }
        }
    }

    fn any_file(&self, random: &mut Random) -> Option<Ino> {
        (!self.files.is_empty()).then(|| recent(random, &self.files))
    }

    /// Contents that identify the write.
    fn new_bytes(&mut self, length: u64) -> Vec<u8> {
        self.written += 1;
        let tag = (u64::from(self.number) << 32 | u64::from(self.written)).to_le_bytes();
        let tag = [tag[0], tag[4], tag[1]];
        (0..length as usize).map(|at| tag[at % tag.len()]).collect()
    }
}

impl Program for RandomCaller {
    fn step(&mut self, _: Nanos, random: &mut Random, answer: Option<Result<Answer, Errno>>) -> Act {
        if let Some(answer) = answer {
            self.learn(&answer);
            if matches!(answer, Err(Errno::EIO)) {
                // A server has failed. Further calls would fail with unknown effects, which makes
                // checking expensive.
                self.rests = true;
                return Act::Pause(UNWELL);
            }
        }
        let hurries =
            self.streak.as_ref().is_some_and(|streak| streak.goes_on(|ino| self.open.contains_key(ino)));
        if !self.rests && !hurries && (self.left > 0 || self.finished < LAST) {
            self.rests = true;
            let most = self.habits.pause.0;
            let pause = random.random_range(0..=most) * if random.random_range(0..50) == 0 { 100 } else { 1 };
            return Act::Pause(self.locker.rest(random).unwrap_or(Nanos(pause)));
        }
        self.rests = false;
        let mut call = if self.left > 0 {
            let of_policy = self.policies.as_mut().and_then(|it| it.next(&self.dirs, &self.files));
            let lists = &mut self.lists;
            let of_list = || lists.as_mut().and_then(|it| it.next(&self.dirs, &self.files, &self.links));
            let by_handle = || self.handles.as_mut().and_then(Handles::next);
            let request = of_policy.or_else(of_list).or_else(by_handle).map(Call::Request);
            let privileges = &mut self.privileges;
            let of_privileges =
                || privileges.as_mut()?.next(&self.caller, &self.dirs, &self.files, &self.open);
            match request.or_else(of_privileges) {
                Some(call) => call,
                None => {
                    self.left -= 1;
                    self.next(random)
                }
            }
        } else {
            let Some(call) = self.finish() else { return Act::End };
            call
        };
        if self.privileges.is_some() && !self.caller.is_superuser() {
            privileges::lack(&mut call);
        }
        self.pending_call = Some(call.clone());
        match Locker::patience(random, &call) {
            Some(patience) => Act::CallFor(self.caller.clone(), call, patience),
            None => Act::Call(self.caller.clone(), call),
        }
    }
}

/// A random known inode, with preference for recent ones.
fn recent(random: &mut Random, known: &[Ino]) -> Ino {
    let newest = if random.random_range(0..3) == 0 { 0 } else { known.len().saturating_sub(5) };
    known[random.random_range(newest..known.len())]
}

fn any_name(random: &mut Random) -> Name {
    let text = NAMES[random.random_range(0..NAMES.len())];
    // Cannot fail: the name is valid.
    Name::new(text.as_bytes()).unwrap_or_else(|_| Name::lowest())
}

fn how(random: &mut Random) -> OpenHow {
    let access = Access::READ | Access::WRITE;
    OpenHow { access, truncate: random.random_range(0..4) == 0, ..OpenHow::default() }
}
