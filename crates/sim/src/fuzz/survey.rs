//! A process that examines the whole tree when all others have ended.

use std::collections::BTreeSet;

use espalier_client::{Answer, Call};
use espalier_proto::{Access, Errno, FileType, Ino, OpenHow, Request};

use super::handles::Exported;
use super::quotas::Trials;
use super::random_calls::{CALLER, Habits};
use crate::check::{ACCESS_LIST, DEFAULT_LIST, EFFECTIVE, LAYOUT, QUOTAS, QUOTAS_LATE, USAGES};
use crate::process::{Act, Program};
use crate::{Nanos, Random};

/// Time until the sessions of crashed clients have ended and ranks have exchanged usage deltas.
const LATE: Nanos = Nanos(60_000_000_000);

/// See the module description.
#[derive(Debug)]
pub struct Surveyor {
    /// Start: the end of faults.
    from: Nanos,
    has_waited: bool,
    /// Remaining calls, last first.
    left: Vec<Call<'static>>,
    /// Calls for the usage of directories, made when it is known everywhere.
    last: Vec<Call<'static>>,
    /// Inodes that are looked up by number first.
    exported: Exported,
    /// Policies of directories have changed.
    live: bool,
    /// The run has access control lists.
    listed: bool,
    seen: BTreeSet<Ino>,
    /// Final tests of quotas.
    trials: Option<Trials>,
    pending_call: Option<Call<'static>>,
}

impl Surveyor {
    /// `live`: policies of directories have changed.
    pub fn new(from: Nanos, live: bool, habits: &Habits, exported: Exported) -> Self {
        let (limited, listed) = (habits.quotas.is_some(), habits.acls.is_some());
        let left = vec![list(Ino::ROOT, 0), attr(Ino::ROOT)];
        let last = usages(Ino::ROOT, limited).collect();
        let trials = limited.then(Trials::default);
        let (seen, pending_call) = (BTreeSet::new(), None);
        Self { from, has_waited: false, left, last, exported, live, listed, seen, trials, pending_call }
    }

    fn learn(&mut self, answer: &Result<Answer, Errno>) {
        let Some(pending_call) = self.pending_call.take() else { return };
        if let Some(trials) = &mut self.trials {
            trials.learn(&pending_call, answer);
        }
        match (pending_call, answer) {
            (Call::Request(Request::ReadDir { dir, .. }), Ok(Answer::Listing { entries, end, .. })) => {
                let last = entries.last().filter(|_| !end);
                self.left.extend(last.map(|last| list(dir, last.cursor)));
                for entry in entries {
                    let ino = entry.ino;
                    self.left.push(attr(ino));
                    self.left.push(Call::Request(Request::ListXattr { ino }));
                    if self.live && matches!(entry.kind, FileType::Directory | FileType::Regular) {
                        self.left.extend([EFFECTIVE, LAYOUT].map(|name| xattr(ino, name)));
                    }
                    if self.listed {
                        self.left.extend([ACCESS_LIST, DEFAULT_LIST].map(|name| xattr(ino, name)));
                    }
                    match entry.kind {
                        FileType::Directory if self.seen.insert(ino) => {
                            self.left.push(list(ino, 0));
                            self.last.extend(usages(ino, self.trials.is_some()));
                        }
                        FileType::Symlink => self.left.push(Call::Request(Request::ReadLink { ino })),
                        FileType::Regular => {
                            let how = OpenHow { access: Access::READ, ..OpenHow::default() };
                            self.left.push(Call::Request(Request::Open { ino, how }));
                        }
                        _ => {}
                    }
                    // Look the entry up first, so that the servers know that the client knows it.
                    self.left.push(Call::Request(Request::Lookup { dir, name: entry.name.clone() }));
                }
            }
            (_, Ok(Answer::Opened(opening))) => {
                let ino = opening.ino;
                self.left.push(Call::Release { ino });
                self.left.push(Call::read(ino, 0, 1 << 20, true));
            }
            _ => {}
        }
    }
}

fn list(dir: Ino, after: u64) -> Call<'static> {
    Call::Request(Request::ReadDir { dir, after, limit: 100, plus: false })
}

fn usages(ino: Ino, limited: bool) -> impl Iterator<Item = Call<'static>> {
    let limits = QUOTAS.into_iter().filter(move |_| limited);
    USAGES.into_iter().chain(limits).map(move |name| xattr(ino, name))
}

fn xattr(ino: Ino, name: &[u8]) -> Call<'static> {
    Call::Request(Request::GetXattr { ino, name: name.into() })
}

fn attr(ino: Ino) -> Call<'static> {
    Call::Request(Request::GetAttr { ino })
}

impl Program for Surveyor {
    fn step(&mut self, now: Nanos, _: &mut Random, answer: Option<Result<Answer, Errno>>) -> Act {
        if let Some(answer) = answer {
            self.learn(&answer);
        }
        if !self.has_waited {
            // No other process has barriers, so this one ends when the others have ended.
            self.has_waited = true;
            return Act::Barrier(0);
        }
        if now < self.from {
            return Act::Pause(self.from - now);
        }
        self.left.extend(self.exported.take().into_iter().map(Call::Request));
        match self.left.pop() {
            Some(call) => {
                self.pending_call = Some(call.clone());
                Act::Call(CALLER, call)
            }
            None if self.last.is_empty() => {
                let Some(call) = self.trials.as_mut().and_then(Trials::next) else { return Act::End };
                self.left.push(call);
                Act::Pause(QUOTAS_LATE)
            }
            None => {
                std::mem::swap(&mut self.left, &mut self.last);
                Act::Pause(LATE)
            }
        }
    }
}
