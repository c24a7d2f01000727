//! Derives the order between operations of different processes that a replay must keep to get the
//! same results: operations on the same names and open files keep their order if they did not
//! overlap.

use std::collections::BTreeMap;

use espalier_proto::{Ino, Name, Request};
use espalier_recording::RecordedRequest;

use super::before::{Before, Observed};
use super::{Act, RecordedOp, Trace};
use crate::Nanos;
use crate::source::{Op, OpenFlags, RecordedCall};

/// An entry with its start and end time.
#[derive(Debug)]
pub(super) struct Timed {
    pub(super) entry: RecordedOp,
    pub(super) begun: Nanos,
    pub(super) ended: Nanos,
    pub(super) observed: Option<Observed>,
}

/// An object that operations share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SharedResource {
    Name(Vec<u8>),
    File(u32),
    /// An inode of a recording.
    Inode(Ino),
    Entry(Ino, Name),
}

/// An access to an object: process, index of the entry, end time.
type Visit = (usize, usize, Nanos);

#[derive(Debug, Default)]
struct Visits {
    change: Option<Visit>,
    /// Last read of each process since the last change.
    looks: BTreeMap<usize, Visit>,
}

/// Completes a trace. `before`: files known to exist before, in addition to those that operations
/// on paths imply.
pub(super) fn finish(
    mut processes: Vec<Vec<Timed>>,
    before: Vec<Op>,
    skipped: BTreeMap<String, u64>,
) -> Trace {
    let all = |processes: &[Vec<Timed>]| -> Vec<(usize, usize)> {
        let entries =
            |(process, entries): (usize, &Vec<Timed>)| (0..entries.len()).map(move |at| (process, at));
        processes.iter().enumerate().flat_map(entries).collect()
    };
    let mut by_end = all(&processes);
    by_end.sort_by_key(|(process, at)| processes[*process][*at].ended);
    let mut found = Before::default();
    for (process, at) in &by_end {
        let timed = &mut processes[*process][*at];
        if let Act::Do(op, expected) = &timed.entry.act {
            found.see(op, *expected, timed.observed.take());
        }
    }

    let mut by_begin = all(&processes);
    by_begin.sort_by_key(|(process, at)| processes[*process][*at].begun);
    let mut places: BTreeMap<SharedResource, Visits> = BTreeMap::new();
    for (process, at) in by_begin {
        let timed = &mut processes[process][at];
        let Act::Do(op, _) = &timed.entry.act else { continue };
        let visit = (process, at, timed.ended);
        let mut after = BTreeMap::new();
        for (place, changes) in meets(op) {
            let visits = places.entry(place).or_default();
            let looks = visits.looks.values().filter(|_| changes);
            for (other, number, ended) in visits.change.iter().chain(looks) {
                if *other != process && *ended <= timed.begun {
                    let last: &mut usize = after.entry(*other).or_default();
                    *last = (*last).max(*number);
                }
            }
            if changes {
                *visits = Visits { change: Some(visit), looks: BTreeMap::new() };
            } else {
                visits.looks.insert(process, visit);
            }
        }
        timed.entry.after.extend(after);
    }
    let processes =
        processes.into_iter().map(|entries| entries.into_iter().map(|timed| timed.entry).collect());
    let before = before.into_iter().chain(found.into_ops()).collect();
    Trace { processes: processes.collect(), before, skipped, is_local: true }
}

/// The objects that an operation uses; true for those that it changes.
fn meets(op: &Op) -> Vec<(SharedResource, bool)> {
    let mut places = Vec::new();
    if let Op::Recorded(call) = op {
        recorded(call, &mut places);
        return places;
    }
    let changes = match op {
        Op::Stat { .. } | Op::Access { .. } | Op::ReadLink { .. } | Op::Enter { .. } => false,
        Op::Open { flags, .. } => flags.intersects(OpenFlags::CREATE | OpenFlags::TRUNCATE),
        _ => true,
    };
    for path in op.clone().paths() {
        name(path, changes, &mut places);
    }
    places.extend(op.file().map(|file| (SharedResource::File(file), true)));
    places
}

/// A name and the directories on its path.
fn name(path: &[u8], changes: bool, places: &mut Vec<(SharedResource, bool)>) {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    places.push((SharedResource::Name(path.to_vec()), changes));
    let slashes = path.iter().enumerate().filter(|(at, byte)| *at > 0 && **byte == b'/');
    places.extend(slashes.map(|(at, _)| (SharedResource::Name(path[..at].to_vec()), false)));
}

/// The inodes that a call uses, and those whose numbers its reply contains: other calls can use
/// these only afterwards.
fn recorded(call: &RecordedCall, places: &mut Vec<(SharedResource, bool)>) {
    let mut look = |ino: &mut Ino| places.push((SharedResource::Inode(*ino), false));
    call.recorded.clone().each_inode(&mut look);
    let observed = call.observed.inode.iter().chain(call.observed.entries.iter().map(|(_, inode)| inode));
    places.extend(observed.map(|inode| (SharedResource::Inode(inode.ino), true)));
    let mut entry =
        |dir: &Ino, name: &Name, changes| places.push((SharedResource::Entry(*dir, name.clone()), changes));
    match &call.recorded {
        RecordedRequest::Request(request) => match request {
            Request::Lookup { dir, name } => entry(dir, name, false),
            Request::Create { dir, name, .. }
            | Request::Link { dir, name, .. }
            | Request::Unlink { dir, name, .. }
            | Request::RmDir { dir, name, .. } => entry(dir, name, true),
            Request::Rename { from_dir, from, to_dir, to, .. } => {
                entry(from_dir, from, true);
                entry(to_dir, to, true);
            }
            Request::Open { ino, .. } | Request::SetAttr { ino, .. } | Request::RemoveTree { dir: ino } => {
                places.push((SharedResource::Inode(*ino), true));
            }
            _ => {}
        },
        RecordedRequest::Release { ino } => places.push((SharedResource::Inode(*ino), true)),
        _ => {}
    }
}
