//! Inodes follow their names: a rank that has got names of a directory pulls the files that these
//! refer to.
//!
//! A split or a move of names leaves the files at their ranks (`transfer.rs`). Afterwards the rank
//! of the names goes through them, in the background, and moves the files in batches. A batch is a
//! transaction of this rank with the files' rank, and with the homes of files that neither has made
//! (`crate::rank::location`). Only files with one name move, whose bytes lie with their inode, and
//! that no client knows: clients are asked to forget them. The others stay until a later pass.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use espalier_proto::{Caller, Errno, Ino, Name, Rank, Reply, Request, RequestId};

use crate::event::Event;
use crate::machine::{Cx, Final, Meta};
use crate::outbox::{Now, Outbox};
use crate::rank::{Edit, PeerAnswer, Question};
use crate::step::{Step, Stop, Wait};
use crate::task::Task;
use crate::trash::INTERNAL_CLIENT;

/// Maximum number of files that a transaction moves.
const MOST_FILES: usize = 256;
/// Maximum number of names that a step examines.
const MOST_NAMES: usize = 4096;
/// Maximum number of directory records that a rank works on at a time.
const MOST_PULLS: usize = 4;
/// Ticks before the second pass through a directory record, and the most before a later one.
const FIRST_PAUSE: u64 = 1;
const LONGEST_PAUSE: u64 = 256;

/// The directory records of this rank whose files are to move here; volatile, as far as
/// [`State::pulling`](crate::state::State) does not say it.
#[derive(Debug, Default)]
pub(crate) struct DuePulls {
    records: BTreeMap<Ino, Pull>,
    running: BTreeSet<Ino>,
    /// Those that were running at the last tick.
    slow: BTreeSet<Ino>,
    pub(crate) counts: PullCounts,
}

/// Counts since the start that concern files which follow their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PullCounts {
    /// Files that have come to this rank.
    pub pulled: u64,
    /// Files that have gone to other ranks.
    pub given: u64,
    /// Files that could not come yet, in use most likely; counted in each pass.
    pub deferred: u64,
    /// Requests of clients for inodes that are at another rank.
    pub redirected: u64,
}

/// A pass through a directory record.
#[derive(Debug)]
struct Pull {
    /// Cursor of the last name that has been examined.
    after: u64,
    /// Files have stayed in this pass.
    leaves: bool,
    /// Tick from which on the next step may begin.
    from_tick: u64,
    pause: u64,
}

impl Default for Pull {
    fn default() -> Self {
        Self { after: 0, leaves: false, from_tick: 0, pause: FIRST_PAUSE }
    }
}

/// The next names of a directory record.
#[derive(Default)]
struct Batch {
    /// Names of files at one other rank, and that rank.
    names: Vec<(Name, Ino)>,
    from: Option<Rank>,
    /// Cursor of the last name that has been examined.
    after: u64,
    is_end: bool,
}

impl Meta {
    /// Number of directory records that may have names of files which are to move here.
    pub(crate) fn unfinished_pulls(&self) -> usize {
        self.state.moves.pulling().len()
    }

    /// Starts the steps that are due.
    pub(crate) fn start_pulls(&mut self, now: Now, out: &mut Outbox) {
        if self.sessions.in_grace() || self.draining || self.config.read_only {
            return;
        }
        let DuePulls { records, running, .. } = &self.pulls;
        let is_due = |(dir, pull): &(&Ino, &Pull)| pull.from_tick <= self.ticks && !running.contains(dir);
        let free = MOST_PULLS.saturating_sub(running.len());
        let due: Vec<Ino> = records.iter().filter(is_due).map(|(dir, _)| *dir).take(free).collect();
        for dir in due {
            self.pulls.running.insert(dir);
            let request = Request::Pull { dir };
            self.run(now, Task::new(INTERNAL_CLIENT, RequestId(0), Caller::SERVER, request), None, out);
        }
    }

    pub(crate) fn pull_ended(&mut self, dir: Ino, result: &Result<Reply, Errno>) {
        self.pulls.running.remove(&dir);
        self.pulls.slow.remove(&dir);
        if !self.state.moves.pulling().contains(&dir) {
            self.pulls.records.remove(&dir);
        } else if result.is_err()
            && let Some(pull) = self.pulls.records.get_mut(&dir)
        {
            pull.pause_from(self.ticks);
        }
    }

    /// Called with each tick: takes up records whose names have come since, and withdraws
    /// transactions that wait long for another rank.
    pub(crate) fn retry_pulls(&mut self, out: &mut Outbox) {
        for dir in self.state.moves.pulling() {
            self.pulls.records.entry(*dir).or_default();
        }
        let slow = core::mem::replace(&mut self.pulls.slow, self.pulls.running.clone());
        let stuck = self.tasks.iter().filter_map(|(number, task)| match task.request {
            Request::Pull { dir } if slow.contains(&dir) => Some((*number, dir)),
            _ => None,
        });
        for (number, dir) in stuck.collect::<Vec<_>>() {
            if self.ranks.stop_waiting(|waiting| *waiting == number).is_some()
                && let Some(mut task) = self.tasks.remove(&number)
            {
                self.give_back(&mut task, out);
                self.pull_ended(dir, &Err(Errno::EAGAIN));
            }
        }
    }

    /// Takes a step: moves the next files of a directory record here, or ends the pass.
    pub(crate) fn pull(&mut self, cx: &mut Cx<'_>, dir: Ino) -> Step<Final<'_>> {
        self.growable()?;
        let is_gone = match self.state.dir_even_if_locked(dir) {
            Ok(inode) if inode.decoupled().is_some() => return Err(Errno::EAGAIN.into()),
            Ok(inode) => inode.nlink == 0,
            Err(Stop::Fail(_)) => true,
            Err(stop) => return Err(stop),
        };
        if is_gone {
            self.append_loaded(&Event::Pulled { dir });
            return Ok(Final::of(Reply::Done));
        }
        if self.state.moves.ceding().contains(&dir) || self.is_ceding(dir) {
            return Err(Errno::EAGAIN.into());
        }
        if let Some(locks) = &self.state.locks {
            locks.check_whole(dir)?;
        }
        let Some(after) = self.pulls.records.get(&dir).map(|pull| pull.after) else {
            return Ok(Final::of(Reply::Done));
        };
        let batch = self.next_batch(cx, dir, after)?;
        let Some(from) = batch.from else {
            self.passed(dir, &batch, 0);
            return if batch.is_end { Ok(Final::of(Reply::Done)) } else { Err(Stop::Wait(Wait::While)) };
        };
        let question = Question::Movable { dir, names: batch.names.clone() };
        let PeerAnswer::Movable { inodes } = self.query_rank(cx, from, question)? else {
            return Err(Errno::EIO.into());
        };
        let named = |ino: &Ino| batch.names.iter().any(|(_, named)| named == ino);
        if !inodes.iter().all(named) {
            return Err(Errno::EAGAIN.into());
        }
        if inodes.is_empty() {
            self.passed(dir, &batch, batch.names.len());
            return Ok(Final::of(Reply::Done));
        }
        self.state.load_above(dir)?;
        self.prepare_edits(cx, &self.giving(dir, from, &inodes))?;
        let files: Vec<_> = self
            .given_files(cx)
            .into_iter()
            .filter_map(|file| {
                let (name, _) = batch.names.iter().find(|(_, ino)| *ino == file.inode.ino)?;
                Some((name.clone(), file))
            })
            .collect();
        if files.len() != inodes.len() {
            return Err(Errno::EIO.into());
        }
        self.commit_edits(cx, [Edit::AdoptFiles { dir, files }].into(), |meta, _| {
            meta.pulls.counts.pulled += inodes.len() as u64;
            // A transaction does not take all files of a batch if they are large.
            if batch.names.len() == inodes.len() {
                meta.passed(dir, &batch, 0);
            }
            Reply::Done
        })
    }

    /// The edits of other ranks that give files to this one.
    fn giving(&self, dir: Ino, from: Rank, inodes: &[Ino]) -> Vec<Edit> {
        let mut homes: BTreeMap<Rank, Vec<Ino>> = BTreeMap::new();
        for ino in inodes.iter().filter(|ino| ino.rank() != from && !self.state.is_home_of(**ino)) {
            homes.entry(ino.rank()).or_default().push(*ino);
        }
        let to = self.config.rank;
        let give = Edit::GiveFiles { at: from, dir, inodes: inodes.to_vec() };
        let relocate = |(home, inodes)| Edit::Relocate { home, from, to, inodes };
        core::iter::once(give).chain(homes.into_iter().map(relocate)).collect()
    }

    /// Notes that names have been examined, of which this number refer to files that stay. At the
    /// end of a pass that leaves none there is nothing more to do.
    fn passed(&mut self, dir: Ino, batch: &Batch, left: usize) {
        let ticks = self.ticks;
        self.pulls.counts.deferred += left as u64;
        let Some(pull) = self.pulls.records.get_mut(&dir) else { return };
        pull.leaves |= left > 0;
        pull.after = batch.after;
        if batch.is_end {
            if pull.leaves {
                pull.pause_from(ticks);
            } else {
                self.append_loaded(&Event::Pulled { dir });
            }
        }
    }

    /// The names of files at the next other rank after a cursor.
    fn next_batch(&self, cx: &Cx<'_>, dir: Ino, after: u64) -> Step<Batch> {
        let mut batch = Batch { after, ..Batch::default() };
        for _ in 0..MOST_NAMES {
            let found = self.entries_after(cx, dir, batch.after)?;
            let Some(last) = found.last().map(|(slot, _)| slot.hash) else {
                batch.is_end = true;
                break;
            };
            for (slot, target) in found {
                let Some(file) = target.at_other_rank(self.config.rank).filter(|file| !file.is_dir()) else {
                    continue;
                };
                if batch.names.len() >= MOST_FILES || batch.from.is_some_and(|from| from != file.at) {
                    return Ok(batch);
                }
                batch.from = Some(file.at);
                batch.names.push((slot.name, file.ino));
            }
            batch.after = last;
        }
        Ok(batch)
    }
}

impl Pull {
    /// Starts the next pass later, and the one after that later still.
    fn pause_from(&mut self, ticks: u64) {
        self.from_tick = ticks + self.pause;
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        (self.after, self.leaves) = (0, false);
    }
}
