//! Random runs of decoupled namespaces: clients decouple directories, work in namespaces, crash and
//! merge while servers crash; another client finishes for them. What is left must be what the
//! level's sentence says, and be visible at once or not at all. Some namespaces are synced: others
//! see the state after some record, and what they have seen is not lost with the client.
//!
//! A namespace is a list of records here. That of durability `none` is in its client's memory, that
//! of `local` on its disk, and that of `global` a file of the cluster.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use espalier_client::{Answer, Call, Payload};
use espalier_meta::{
    Body, Change, DECOUPLE, Decouple, Decoupled, Directory, Event, Inode, Io, IoDone, MERGE, MergeBatch,
    MergeEnd, MergeRecord, Rare, decode, encode,
};
use espalier_policy::Durability;
use espalier_proto::{
    Access, Caller, Errno, FileType, Ino, Name, NewNode, OpenHow, Request, Time, XattrMode,
};
use espalier_sim::process::{Act, Program};
use espalier_sim::{Loss, Mutator, Nanos, Node, Observer, Random, Scenario, Seed, World};
use rand::Rng;
use rand::seq::IndexedRandom;

const WORKERS: u32 = 3;
const RANKS: u32 = 2;
const SECOND: u64 = 1_000_000_000;
/// End of faults.
const CALM: Nanos = Nanos(20 * SECOND);
/// A name that others make, at the latest when the merge is complete.
const OTHER: &str = "other";
const LEVELS: [Durability; 3] = [Durability::None, Durability::Local, Durability::Global];

/// A decoupled directory, and what the run knows of it.
#[derive(Debug)]
struct Job {
    level: Durability,
    /// It has namespace syncs.
    syncs: bool,
    /// The records, each with the time at which it was made.
    records: Vec<(MergeRecord, Nanos)>,
    /// Number of records that a sync has made durable.
    synced: usize,
    /// Number of records that the crash of the client has left on its disk.
    left: Option<usize>,
    /// A server has lost power since the job began: its part of the namespace's file may be lost.
    power: bool,
    ended: bool,
    /// Its decoupling was acknowledged, and the merge has not begun to end.
    blocks: bool,
    /// The end of the merge was acknowledged.
    merged: bool,
    /// Listings of the directory by others.
    seen: Vec<BTreeSet<Vec<u8>>>,
}

#[derive(Debug, Default)]
struct RunState {
    jobs: Vec<Job>,
    /// A mutant of clients: syncs send records that are not durable.
    hasty: bool,
    violation: Option<String>,
}

#[derive(Clone, Debug)]
struct SharedState(Arc<Mutex<RunState>>);

impl SharedState {
    fn lock(&self) -> MutexGuard<'_, RunState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn violated(&self, why: String) {
        self.lock().violation.get_or_insert(why);
    }
}

/// A program as a function on a thread of its own, which runs only while the world waits for it.
#[derive(Debug)]
struct Script {
    answers: Sender<(Nanos, Option<Result<Answer, Errno>>)>,
    acts: Receiver<Act>,
}

/// Names and inodes of a directory.
type Entries = Vec<(Vec<u8>, Ino)>;

/// The other side of a [`Script`]. `None` ends the program: the run is over.
struct Steps {
    acts: Sender<Act>,
    answers: Receiver<(Nanos, Option<Result<Answer, Errno>>)>,
    now: Nanos,
    random: Random,
}

impl Program for Script {
    fn step(&mut self, now: Nanos, _: &mut Random, answer: Option<Result<Answer, Errno>>) -> Act {
        if self.answers.send((now, answer)).is_err() {
            return Act::End;
        }
        self.acts.recv().unwrap_or(Act::End)
    }
}

fn script(random: Random, work: impl FnOnce(&mut Steps) -> Option<()> + Send + 'static) -> Box<dyn Program> {
    let (answers, from_world) = channel();
    let (to_world, acts) = channel();
    thread::spawn(move || {
        let mut steps = Steps { acts: to_world, answers: from_world, now: Nanos(0), random };
        steps.wait()?;
        work(&mut steps)
    });
    Box::new(Script { answers, acts })
}

impl Steps {
    fn wait(&mut self) -> Option<Option<Result<Answer, Errno>>> {
        let (now, answer) = self.answers.recv().ok()?;
        self.now = now;
        Some(answer)
    }

    fn call(&mut self, call: Call<'static>) -> Option<Result<Answer, Errno>> {
        let caller = Caller { uid: 0, gid: 0, pid: 1, groups: Some([].into()) };
        self.acts.send(Act::Call(caller, call)).ok()?;
        self.wait()?
    }

    fn ask(&mut self, request: Request) -> Option<Result<Answer, Errno>> {
        self.call(Call::Request(request))
    }

    fn pause(&mut self, time: Nanos) -> Option<()> {
        self.acts.send(Act::Pause(time)).ok()?;
        self.wait().map(drop)
    }

    fn pause_ms(&mut self, range: Range<u64>) -> Option<()> {
        let ms = self.random.random_range(range);
        self.pause(Nanos(ms * 1_000_000))
    }

    fn find(&mut self, dir: Ino, name: &str) -> Option<Result<Ino, Errno>> {
        Some(match self.ask(Request::Lookup { dir, name: name_of(name) })? {
            Ok(Answer::Entry(entry) | Answer::Unmeasured(entry)) => Ok(entry.attr.ino),
            Ok(_) => Err(Errno::ENOENT),
            Err(errno) => Err(errno),
        })
    }

    fn set_xattr(&mut self, ino: Ino, name: &str, value: Vec<u8>) -> Option<Result<Answer, Errno>> {
        let (name, value) = (name.as_bytes().into(), value.into());
        self.ask(Request::SetXattr { ino, name, value, mode: XattrMode::Any, kill_sgid: false })
    }

    /// The state of a directory; `None` within if it is not decoupled.
    fn decoupled(&mut self, dir: Ino) -> Option<Result<Option<Decoupled>, Errno>> {
        Some(match self.ask(Request::GetXattr { ino: dir, name: DECOUPLE.as_bytes().into() })? {
            Ok(Answer::Bytes(value)) => decode(&value).map(Some).map_err(|_| Errno::EIO),
            Err(Errno::ENODATA) => Ok(None),
            Ok(_) => Err(Errno::EIO),
            Err(errno) => Err(errno),
        })
    }

    fn list(&mut self, dir: Ino) -> Option<Result<Entries, Errno>> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            match self.ask(Request::ReadDir { dir, after, limit: 100, plus: false })? {
                Ok(Answer::Listing { entries, end, .. }) => {
                    after = entries.last().map_or(after, |last| last.cursor);
                    let is_end = end || entries.is_empty();
                    all.extend(entries.into_iter().map(|entry| (entry.name.to_vec(), entry.ino)));
                    if is_end {
                        return Some(Ok(all));
                    }
                }
                Ok(_) => return Some(Err(Errno::EIO)),
                Err(errno) => return Some(Err(errno)),
            }
        }
    }

    fn make(&mut self, name: &str, node: NewNode, open: Option<OpenHow>) -> Option<Result<Ino, Errno>> {
        let (dir, name, perm, umask) = (Ino::ROOT, name_of(name), 0o755, 0);
        let made = Request::Create { dir, name, node, perm, umask, open, exclusive: true, writeback: None };
        Some(match self.ask(made)? {
            Ok(Answer::Entry(entry) | Answer::Created(entry, _)) => Ok(entry.attr.ino),
            Ok(_) => Err(Errno::EIO),
            Err(errno) => Err(errno),
        })
    }
}

fn name_of(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn dir_name(job: usize) -> String {
    format!("job{job}")
}

fn file_name(job: usize) -> String {
    format!("namespace{job}")
}

/// The names in each directory of a namespace after these records.
fn replay<'a>(records: impl IntoIterator<Item = &'a MergeRecord>) -> BTreeMap<Ino, BTreeMap<Name, Ino>> {
    let mut dirs = BTreeMap::from([(Ino::ROOT, BTreeMap::new())]);
    for record in records {
        match record {
            MergeRecord::Create { dir, name, inode, .. } => {
                dirs.entry(*dir).or_default().insert(name.clone(), inode.ino);
                if inode.kind == FileType::Directory {
                    dirs.entry(inode.ino).or_default();
                }
            }
            MergeRecord::Remove { dir, name, .. } => {
                let removed = dirs.get_mut(dir).and_then(|names| names.remove(name));
                removed.and_then(|ino| dirs.remove(&ino));
            }
            MergeRecord::Move { from, to, .. } => {
                let moved = dirs.get_mut(&from.0).and_then(|names| names.remove(&from.1)).unwrap();
                dirs.entry(to.0).or_default().insert(to.1.clone(), moved);
            }
            _ => {}
        }
    }
    dirs
}

/// A random record that changes what earlier ones have made; `None` if there is nothing to change.
fn change(records: &[(MergeRecord, Nanos)], random: &mut Random) -> Option<MergeRecord> {
    let dirs = replay(records.iter().map(|(record, _)| record));
    let is_dir = |ino: &Ino| dirs.contains_key(ino);
    let names = |(dir, names): (&Ino, &BTreeMap<Name, Ino>)| {
        let dir = *dir;
        names.iter().map(move |(name, ino)| (dir, name.clone(), *ino)).collect::<Vec<_>>()
    };
    let all: Vec<_> = dirs.iter().flat_map(names).collect();
    let (dir, name, ino) = all.choose(random)?.clone();
    let is_empty = dirs.get(&ino).is_none_or(BTreeMap::is_empty);
    match random.random_range(0..3) {
        0 if is_empty => Some(MergeRecord::Remove { dir, name, ino: Some(ino) }),
        1 => {
            // A directory in the root cannot be below itself.
            let new_dir = if is_dir(&ino) {
                Ino::ROOT
            } else {
                *dirs.keys().copied().collect::<Vec<_>>().choose(random)?
            };
            let onto =
                all.choose(random).filter(|(_, _, other)| !is_dir(&ino) && !is_dir(other) && *other != ino);
            let new = (new_dir, name_of(&format!("n{}", records.len())));
            let to = onto.map_or(new, |(dir, name, _)| (*dir, name.clone()));
            Some(MergeRecord::Move { from: (dir, name), to, ino: Some(ino) })
        }
        _ => {
            let created = records.iter().find_map(|(record, _)| match record {
                MergeRecord::Create { inode, .. } if inode.ino == ino => Some(inode.clone()),
                _ => None,
            });
            let mut inode = created?;
            let mut bytes = Vec::new();
            if inode.kind == FileType::Regular {
                bytes = vec![8; random.random_range(0..40)];
                let length = bytes.len() as u32;
                inode.body = Body::Stuffed { size: length.into(), stored: length };
            }
            inode.perm = 0o700 + random.random_range(0..8);
            Some(MergeRecord::Update { inode, bytes, xattrs: Vec::new() })
        }
    }
}

/// A random record of a namespace: a file or a directory in the root or in another directory.
fn record(decoupled: &Decoupled, records: &[(MergeRecord, Nanos)], random: &mut Random) -> MergeRecord {
    let dirs: Vec<Ino> = replay(records.iter().map(|(record, _)| record)).into_keys().collect();
    let dir = *dirs.choose(random).unwrap();
    let is_dir = random.random_range(0..4) == 0;
    let bytes = if is_dir { Vec::new() } else { vec![7; random.random_range(0..40)] };
    let length = bytes.len() as u32;
    let (kind, body) = match is_dir {
        true => (FileType::Directory, Body::Directory(Directory::empty(Ino::ROOT))),
        false => (FileType::Regular, Body::Stuffed { size: length.into(), stored: length }),
    };
    let number = records.len() as u64;
    let time = Time::new(500 + number as i64, 0);
    let inode = Inode {
        ino: Ino(decoupled.first.0 + number),
        kind,
        perm: 0o755,
        uid: 0,
        gid: 0,
        nlink: 1,
        rdev: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        body,
        acl: None,
        default_acl: None,
        has_xattrs: false,
        rare: Rare::default(),
    };
    let (name, inode) = (name_of(&format!("n{number}")), Box::new(inode));
    MergeRecord::Create { dir, name, inode, bytes, xattrs: Vec::new() }
}

/// Merges records, from where an earlier merge has stopped. Returns why it failed.
fn merge(
    steps: &mut Steps,
    shared: &SharedState,
    job: usize,
    dir: Ino,
    records: &[MergeRecord],
    ends: bool,
) -> Option<Result<(), String>> {
    let (all, syncs) = (records.len() as u64, shared.lock().jobs[job].syncs);
    loop {
        let (mut at, base) = match steps.decoupled(dir)? {
            Ok(Some(decoupled)) => (decoupled.merged, decoupled.digest),
            Ok(None) => return Some(Ok(())),
            Err(errno) => return Some(Err(format!("no state: {errno}"))),
        };
        loop {
            let next = all.min(at + steps.random.random_range(1..6));
            let end = (ends && next == all).then(|| MergeEnd { records: all, change: Change::default() });
            if end.is_some() {
                shared.lock().jobs[job].blocks = false;
            }
            let sent = records.get(at as usize..next as usize).unwrap_or_default().to_vec();
            let batch = MergeBatch {
                id: job as u128 + 1,
                digest: all + 1,
                base,
                after: at,
                records: sent,
                shows: syncs,
                end,
            };
            match steps.set_xattr(dir, MERGE, encode(&batch))? {
                Ok(_) if next == all => return Some(Ok(())),
                Ok(_) => {
                    at = next;
                    steps.pause_ms(0..100)?;
                }
                // A restarted server may have lost the last batches, or a lost reply was the end's.
                Err(Errno::EINVAL | Errno::ESTALE) => break,
                Err(errno) => return Some(Err(format!("records {at} to {next}: {errno}"))),
            }
        }
        match steps.decoupled(dir)? {
            Ok(Some(decoupled)) if decoupled.merged >= at => {
                return Some(Err(format!("record {at} is invalid after {}", decoupled.merged)));
            }
            _ => {}
        }
    }
}

/// Decouples a directory, works in its namespace, and maybe merges it.
fn worker(steps: &mut Steps, shared: &SharedState, job: usize) -> Option<()> {
    let level = shared.lock().jobs[job].level;
    steps.pause_ms(0..3000)?;
    let mut file = None;
    if level == Durability::Global {
        let open = OpenHow { access: Access::READ | Access::WRITE, ..OpenHow::default() };
        // A failed creation may have made it.
        let ino = loop {
            let made = match steps.make(&file_name(job), NewNode::Regular, Some(open))? {
                Err(Errno::EEXIST) => match steps.find(Ino::ROOT, &file_name(job))? {
                    Ok(ino) => steps.ask(Request::Open { ino, how: open })?.map(|_| ino),
                    Err(errno) => Err(errno),
                },
                made => made,
            };
            if let Ok(ino) = made {
                break ino;
            }
            steps.pause_ms(50..200)?;
        };
        file = Some(ino);
    }
    // A loss of power may lose the new directory.
    let (dir, decoupled) = loop {
        let dir = match steps.make(&dir_name(job), NewNode::Directory, None)? {
            Err(Errno::EEXIST) => steps.find(Ino::ROOT, &dir_name(job))?,
            made => made,
        };
        if let Ok(dir) = dir {
            let value = encode(&Decouple { id: job as u128 + 1, inodes: 100 });
            steps.set_xattr(dir, DECOUPLE, value)?.ok();
            if let Ok(Some(decoupled)) = steps.decoupled(dir)? {
                break (dir, decoupled);
            }
        }
        steps.pause_ms(50..200)?;
    };
    shared.lock().jobs[job].blocks = true;
    let (mut written, count) = (0, steps.random.random_range(1..40));
    for number in 0..count {
        let made = {
            let mut state = shared.lock();
            let job = &mut state.jobs[job];
            let changes = job.syncs && steps.random.random_range(0..3) == 0;
            let changed = if changes { change(&job.records, &mut steps.random) } else { None };
            let made = changed.unwrap_or_else(|| record(&decoupled, &job.records, &mut steps.random));
            job.records.push((made.clone(), steps.now));
            made
        };
        if let Some(ino) = file {
            let body = encode(&made);
            let bytes = [&(body.len() as u32).to_le_bytes()[..], &body].concat();
            let (offset, length) = (written, bytes.len() as u64);
            let data = Payload::Shared(bytes.into());
            if let Err(errno) = steps.call(Call::write(ino, offset, data, false))? {
                shared.violated(format!("job {job} cannot write: {errno}"));
            }
            written += length;
        }
        let is_last = number + 1 == count;
        let (syncs, hasty) = {
            let state = shared.lock();
            (state.jobs[job].syncs && !is_last && steps.random.random_range(0..6) == 0, state.hasty)
        };
        if is_last || (syncs && !hasty) || steps.random.random_range(0..6) == 0 {
            if let Some(ino) = file
                && let Err(errno) = steps.ask(Request::Fsync { ino })?
            {
                shared.violated(format!("job {job} cannot sync: {errno}"));
            }
            shared.lock().jobs[job].synced = number + 1;
        }
        if syncs {
            let records: Vec<MergeRecord> =
                shared.lock().jobs[job].records.iter().map(|(record, _)| record.clone()).collect();
            if let Err(why) = merge(steps, shared, job, dir, &records, false)? {
                shared.violated(format!("job {job} cannot be synced: {why}"));
            }
        }
        steps.pause_ms(0..300)?;
    }
    if steps.random.random_range(0..3) > 0 {
        let records: Vec<MergeRecord> =
            shared.lock().jobs[job].records.iter().map(|(record, _)| record.clone()).collect();
        match merge(steps, shared, job, dir, &records, true)? {
            Ok(()) => shared.lock().jobs[job].merged = true,
            Err(why) => shared.violated(format!("job {job} cannot be merged: {why}")),
        }
    }
    shared.lock().jobs[job].ended = true;
    Some(())
}

/// Lists the directories, and tries to make files there, until all workers have ended.
fn watcher(steps: &mut Steps, shared: &SharedState) -> Option<()> {
    while shared.lock().jobs.iter().any(|job| !job.ended && job.left.is_none()) || steps.now < CALM {
        let job = steps.random.random_range(0..WORKERS as usize);
        if let Ok(dir) = steps.find(Ino::ROOT, &dir_name(job))? {
            let before = shared.lock().jobs[job].blocks;
            if before && steps.random.random_range(0..4) == 0 {
                let (name, node) = (name_of(OTHER), NewNode::Regular);
                let made = steps.ask(Request::Create {
                    dir,
                    name,
                    node,
                    perm: 0o644,
                    umask: 0,
                    open: None,
                    exclusive: true,
                    writeback: None,
                })?;
                if shared.lock().jobs[job].blocks && !matches!(made, Err(Errno::EBUSY)) {
                    shared.violated(format!("job {job} does not block others: {made:?}"));
                }
            }
            if let Ok(listed) = steps.list(dir)? {
                let names = listed.into_iter().map(|(name, ..)| name);
                let names = names.filter(|name| *name != *OTHER.as_bytes()).collect();
                shared.lock().jobs[job].seen.push(names);
            }
        }
        steps.pause_ms(10..400)?;
    }
    Some(())
}

/// The records in a file of the cluster.
fn persisted(steps: &mut Steps, job: usize) -> Option<Option<Vec<MergeRecord>>> {
    let Ok(ino) = steps.find(Ino::ROOT, &file_name(job))? else { return Some(None) };
    let how = OpenHow { access: Access::READ, ..OpenHow::default() };
    let Ok(_) = steps.ask(Request::Open { ino, how })? else { return Some(None) };
    let Ok(Answer::Bytes(bytes)) = steps.call(Call::read(ino, 0, 1 << 20, true))? else {
        return Some(None);
    };
    let _ = steps.call(Call::Release { ino })?;
    let (mut records, mut rest) = (Vec::new(), &bytes[..]);
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        let Some((body, after)) = after.split_at_checked(length) else { break };
        // The end may be torn.
        let Ok(record) = decode(body) else { break };
        records.push(record);
        rest = after;
    }
    Some(Some(records))
}

/// Merges or aborts what workers have left, and checks all directories.
fn finisher(steps: &mut Steps, shared: &SharedState) -> Option<()> {
    steps.pause(CALM)?;
    while shared.lock().jobs.iter().any(|job| !job.ended && job.left.is_none()) {
        steps.pause_ms(500..1000)?;
    }
    for job in 0..WORKERS as usize {
        if let Err(why) = finish(steps, shared, job)? {
            shared.violated(format!("job {job}: {why}; {:?}", shared.lock_level(job)));
        }
    }
    Some(())
}

impl SharedState {
    fn lock_level(&self, job: usize) -> (Durability, Option<usize>, usize) {
        let state = self.lock();
        let job = &state.jobs[job];
        (job.level, job.left, job.synced)
    }
}

fn abort(steps: &mut Steps, shared: &SharedState, job: usize, dir: Ino) -> Option<Result<Answer, Errno>> {
    shared.lock().jobs[job].blocks = false;
    steps.ask(Request::RemoveXattr { ino: dir, name: DECOUPLE.as_bytes().into() })
}

fn finish(steps: &mut Steps, shared: &SharedState, job: usize) -> Option<Result<(), String>> {
    let Ok(dir) = steps.find(Ino::ROOT, &dir_name(job))? else {
        let (_, left, _) = shared.lock_level(job);
        // A crash may precede the answer, or lose the request.
        return Some(if left.is_some() { Ok(()) } else { Err("its directory is lost".into()) });
    };
    let (level, left, synced) = shared.lock_level(job);
    let (was_merged, power, mut records) = {
        let state = shared.lock();
        let job = &state.jobs[job];
        let records: Vec<MergeRecord> = job.records.iter().map(|(record, _)| record.clone()).collect();
        (job.merged, job.power, records)
    };
    let state = match steps.decoupled(dir)? {
        Ok(state) => state,
        Err(errno) => return Some(Err(format!("no state: {errno}"))),
    };
    // Records that others see stay.
    let shown = state.as_ref().map_or(0, |state| if state.shows { state.merged as usize } else { 0 });
    match state {
        Some(_) if was_merged => return Some(Err("it is decoupled although its merge was complete".into())),
        Some(_) if level == Durability::None && left.is_some() => {
            // The memory of the client is lost.
            if let Err(errno) = abort(steps, shared, job, dir)? {
                return Some(Err(format!("cannot abort: {errno}")));
            }
            records.truncate(shown);
        }
        Some(state) => {
            match (level, left) {
                (Durability::Local, Some(left)) if left < shown => {
                    return Some(Err(format!("{shown} records were synced, but {left} are left")));
                }
                (Durability::Local, Some(left)) => records.truncate(left),
                (Durability::Global, Some(_)) => {
                    let found = persisted(steps, job)?.unwrap_or_default();
                    let is_begin = records.starts_with(&found);
                    if !is_begin || (found.len() < synced && !power) {
                        return Some(Err(format!("{} of {synced} synced records are left", found.len())));
                    }
                    let (has_changed, found_count) = (found.len() < records.len(), found.len());
                    let all = std::mem::replace(&mut records, found);
                    if found_count < shown || (state.merged > 0 && has_changed && !state.shows) {
                        if !power && state.shows {
                            return Some(Err(format!(
                                "{shown} records were synced, but {found_count} are left"
                            )));
                        }
                        // The merge cannot continue.
                        records = all;
                        records.truncate(shown);
                        if let Err(errno) = abort(steps, shared, job, dir)? {
                            return Some(Err(format!("cannot abort: {errno}")));
                        }
                        return check(steps, shared, job, dir, &records);
                    }
                }
                // The client writes everything when it unmounts the namespace.
                _ => {}
            }
            if let Err(why) = merge(steps, shared, job, dir, &records, true)? {
                return Some(Err(format!("cannot be merged: {why}")));
            }
        }
        // Without records the decoupling itself may not have been acknowledged.
        None if was_merged || !records.is_empty() => {}
        None => records.clear(),
    }
    check(steps, shared, job, dir, &records)
}

/// Checks that a directory has exactly these entries, and that others have seen all or none.
fn check(
    steps: &mut Steps,
    shared: &SharedState,
    job: usize,
    top: Ino,
    records: &[MergeRecord],
) -> Option<Result<(), String>> {
    let expected: BTreeMap<Ino, BTreeSet<(Vec<u8>, Ino)>> = replay(records)
        .into_iter()
        .map(|(dir, names)| (dir, names.into_iter().map(|(name, ino)| (name.to_vec(), ino)).collect()))
        .collect();
    for (dir, entries) in &expected {
        let at = if *dir == Ino::ROOT { top } else { *dir };
        // A client must have looked up what it lists.
        if *dir != Ino::ROOT && steps.ask(Request::Find { ino: at, kind: None, open: None })?.is_err() {
            return Some(Err(format!("directory {dir} is lost")));
        }
        match steps.list(at)? {
            Ok(listed) => {
                let listed = listed.into_iter().filter(|(name, ..)| *name != *OTHER.as_bytes());
                let found: BTreeSet<_> = listed.collect();
                if found != *entries {
                    return Some(Err(format!("directory {dir} has {found:?} instead of {entries:?}")));
                }
            }
            Err(errno) => return Some(Err(format!("directory {dir} cannot be listed: {errno}"))),
        }
    }
    let whole: BTreeSet<Vec<u8>> = expected[&Ino::ROOT].iter().map(|(name, _)| name.clone()).collect();
    let state = shared.lock();
    let job = &state.jobs[job];
    let mut states = BTreeSet::from([BTreeSet::new(), whole]);
    if job.syncs {
        states.extend((0..=job.records.len()).map(|count| {
            let dirs = replay(job.records[..count].iter().map(|(record, _)| record));
            dirs[&Ino::ROOT].keys().map(|name| name.to_vec()).collect()
        }));
    }
    let partial = job.seen.iter().find(|seen| !states.contains(*seen));
    Some(match partial {
        Some(partial) => Err(format!("others have seen {partial:?} instead of one of {states:?}")),
        None => Ok(()),
    })
}

/// Notes what crashes of clients leave.
struct Eyes {
    shared: SharedState,
    random: Random,
}

impl Observer for Eyes {
    fn crashed(&mut self, now: Nanos, node: Node, loss: Loss, _: Option<espalier_sim::Left>) {
        let mut state = self.shared.lock();
        if node.0 < RANKS && matches!(loss, Loss::Power(_)) {
            state.jobs.iter_mut().for_each(|job| job.power = true);
        }
        let Some(job) = node.0.checked_sub(RANKS).and_then(|client| state.jobs.get_mut(client as usize))
        else {
            return;
        };
        if !job.merged {
            let second_ago = Nanos(now.0.saturating_sub(SECOND));
            let old = job.records.iter().filter(|(_, made)| *made < second_ago).count();
            let durable = old.max(job.synced);
            job.left = Some(self.random.random_range(durable..=job.records.len()));
        }
    }
}

fn scenario(seed: u64) -> String {
    let mut random = Seed(seed).random("decoupled scenario", 0);
    let mut one_of = |choices: &[&str]| choices.choose(&mut random).unwrap().to_string();
    let durability = one_of(&["written", "durable"]);
    let memory = one_of(&["0 B", "20 KiB", "1 GiB"]);
    let (crash, power) = (one_of(&["2 s", "6 s", "100 s"]), one_of(&["4 s", "100 s"]));
    let cut = one_of(&["3 s", "100 s"]);
    let mut text = format!(
        "seed = {seed}\n[cluster]\nranks = {RANKS}\nclients = {}\ndurability = \"{durability}\"\nsession = \"30 s\"\nlease = \"1 s\"\n\
         strip = \"64 B\"\njournal = \"2 MiB\"\nmemory = \"{memory}\"\n[network]\nlatency = \"200 us\"\n[disk]\nlatency = \"500 us\"\n\
         sync = \"5 ms\"\n[faults]\nuntil = \"20 s\"\ncrash = {{ every = {{ exponential = \"{crash}\" }}, for = \"300 ms\" }}\n\
         power = {{ every = {{ exponential = \"{power}\" }}, for = \"300 ms\" }}\ncut = {{ every = {{ exponential = \"{cut}\" }}, for = \"10 ms\" }}\n",
        WORKERS + 2
    );
    let crashes = random.random_range(0..=WORKERS);
    let times: Vec<String> =
        (0..crashes).map(|_| format!("\"{} ms\"", random.random_range(500..12_000))).collect();
    if !times.is_empty() {
        let nodes: Vec<String> = (0..times.len()).map(|node| node.to_string()).collect();
        text += &format!(
            "client_crash = {{ at = [{}], for = \"10 ms\", nodes = [{}] }}\n",
            times.join(", "),
            nodes.join(", ")
        );
    }
    text
}

/// Executes the run of a seed. Returns the jobs, or what is wrong.
fn run(seed: u64, mutator: &mut dyn Mutator) -> Result<Vec<Job>, String> {
    run_with(seed, mutator, false)
}

/// `hasty`: see [`RunState`].
fn run_with(seed: u64, mutator: &mut dyn Mutator, hasty: bool) -> Result<Vec<Job>, String> {
    let scenario = Scenario::parse(&scenario(seed), Path::new("a test")).unwrap();
    let shared = SharedState(Arc::default());
    shared.lock().hasty = hasty;
    let mut random = Seed(seed).random("decoupled jobs", 0);
    for _ in 0..WORKERS {
        let level = *LEVELS.choose(&mut random).unwrap();
        let syncs = random.random();
        let (records, seen) = (Vec::new(), Vec::new());
        let (synced, left, power, ended, blocks, merged) = (0, None, false, false, false, false);
        shared.lock().jobs.push(Job {
            level,
            syncs,
            records,
            synced,
            left,
            power,
            ended,
            blocks,
            merged,
            seen,
        });
    }
    let mut eyes = Eyes { shared: shared.clone(), random: Seed(seed).random("decoupled crashes", 0) };
    let mut world = World::empty(&scenario, &mut eyes, mutator).map_err(|error| error.to_string())?;
    world.keep_lookups();
    let mut programs: Vec<(u32, Box<dyn Program>)> = Vec::new();
    for job in 0..WORKERS {
        let shared = shared.clone();
        let random = Seed(seed).random("decoupled worker", job.into());
        programs.push((job, script(random, move |steps| worker(steps, &shared, job as usize))));
    }
    let (for_watcher, for_finisher) = (shared.clone(), shared.clone());
    let random = |what| Seed(seed).random(what, 0);
    programs.push((WORKERS, script(random("watcher"), move |steps| watcher(steps, &for_watcher))));
    programs.push((WORKERS + 1, script(random("finisher"), move |steps| finisher(steps, &for_finisher))));
    world.add_processes(programs);
    loop {
        let progress = world.advance(200).map_err(|error| error.to_string())?;
        if let Some(violation) = shared.lock().violation.take() {
            return Err(violation);
        }
        if progress.is_over {
            break;
        }
        if progress.now > Nanos(1000 * SECOND) {
            return Err(world.endless().to_string());
        }
    }
    let findings = world.fsck().map_err(|error| error.to_string())?;
    if !findings.is_empty() {
        return Err(format!("fsck finds {findings:?}"));
    }
    drop(world);
    let jobs = std::mem::take(&mut shared.lock().jobs);
    Ok(jobs)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
fn crashes_leave_what_the_level_says() {
    let (first, count) = (number("SIM_SEED"), number("SIM_SEEDS"));
    let count = count.unwrap_or(if first.is_some() { 1 } else { 300 });
    let first = first.unwrap_or(0);
    let (mut merged, mut crashed, mut unmerged, mut failed) = (0, 0, 0, 0);
    for seed in first..first + count {
        match run(seed, &mut ()) {
            Ok(jobs) => {
                merged += jobs.iter().filter(|job| job.merged).count();
                crashed += jobs.iter().filter(|job| job.left.is_some()).count();
                unmerged += jobs.iter().filter(|job| !job.merged && job.left.is_none()).count();
            }
            Err(why) => {
                failed += 1;
                eprintln!("seed {seed}: {why}\n{}", scenario(seed));
            }
        }
    }
    eprintln!("{merged} merged by their clients, {crashed} clients crashed, {unmerged} left for others");
    assert_eq!(failed, 0);
    assert!(count < 100 || (merged > 100 && crashed > 100 && unmerged > 50));
}

#[test]
fn run_is_a_function_of_its_seed() {
    let seen = || format!("{:?}", run(3, &mut ()).unwrap());
    assert_eq!(seen(), seen());
}

/// A fault of a server's journal.
#[derive(Clone, Copy, Debug)]
enum JournalMutation {
    /// It lacks the number of merged records.
    Uncounted,
    /// It has the number before the last record.
    Advanced,
    /// It lacks the end of the merge.
    Unfinished,
    /// It lacks the decoupling.
    Undecoupled,
}

impl Mutator for JournalMutation {
    fn io(&mut self, _: Node, io: &mut Io) -> Option<Result<IoDone, Errno>> {
        if let Io::Journal { frame, .. } = io
            && let Some((first, mut rest)) = frame.split_first_chunk::<8>()
        {
            let mut changed = first.to_vec();
            while let Ok((mut event, after)) = Event::decode(rest) {
                if let Event::Decouple { decoupled, .. } = &mut event {
                    match (*self, &mut *decoupled) {
                        (Self::Uncounted, Some(decoupled)) => {
                            (decoupled.merged, decoupled.next) = (0, decoupled.first);
                        }
                        (Self::Advanced, Some(decoupled)) if decoupled.merged > 0 => decoupled.merged += 1,
                        (Self::Unfinished, None) => event = Event::Began,
                        (Self::Undecoupled, Some(decoupled)) if decoupled.merged == 0 => event = Event::Began,
                        _ => {}
                    }
                }
                event.encode(&mut changed);
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            *frame = changed;
        }
        None
    }
}

#[test]
fn every_mutant_is_detected() {
    let hasty = (0..100).find(|seed| run_with(*seed, &mut (), true).is_err() && run(*seed, &mut ()).is_ok());
    eprintln!("a client that syncs what is not durable is detected by seed {hasty:?}");
    assert!(hasty.is_some());
    use JournalMutation::{Advanced, Uncounted, Undecoupled, Unfinished};
    for what in [Uncounted, Advanced, Unfinished, Undecoupled] {
        let is_detected = |seed: &u64| run(*seed, &mut { what }).is_err() && run(*seed, &mut ()).is_ok();
        let detected = (0..100).find(is_detected);
        eprintln!("{what:?} is detected by seed {detected:?}");
        assert!(detected.is_some(), "{what:?}");
    }
}
