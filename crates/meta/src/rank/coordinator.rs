//! Two-phase commit: the coordinator, and requests to other ranks.
//!
//! The coordinator locks nothing at its own rank. When all participants have prepared, the
//! operation starts over and determines its edits again. If they are the same, it commits at once;
//! otherwise it withdraws the proposal and makes another.

use alloc::vec::Vec;

use espalier_proto::{Caller, Errno, FileType, Ino, Rank, Time};

use super::edit::{Edit, Part};
use super::location::WholeFile;
use super::message::{Age, PeerAnswer, PeerMessage, Question, TransactionId};
use crate::event::Event;
use crate::journal::HeldOutput;
use crate::machine::{Cx, Final, Meta};
use crate::outbox::{Now, Outbox};
use crate::record::Referent;
use crate::step::{Step, Stop, Wait};
use crate::task::Task;

/// Number of restarts after which an operation gives up: names and inodes are inconsistent, and
/// `fsck` reports how.
const MAX_SURPRISES: u32 = 20;

type Named = Option<(Ino, FileType)>;

/// An operation's state of requests and transactions with other ranks, while it waits.
#[derive(Debug, Default)]
pub(crate) struct Coordinator {
    /// Time of the operation's first attempt; orders transactions by age.
    pub since: Option<Time>,
    /// Rank at which the directory is made.
    pub home: Option<Rank>,
    questions: Vec<PeerQuestion>,
    /// The proposed edits of other ranks, with their time.
    proposal: Option<(TransactionId, Time, Vec<Edit>)>,
    move_lock: Option<TransactionId>,
    /// The lock of an inode at this rank that the operation holds.
    frozen: Option<Age>,
    /// Where inodes are, as other ranks have said; those that are not here are at home until then.
    located: Vec<(Ino, Rank)>,
    /// Times that the operation has started over because other ranks' answers were outdated.
    surprises: u32,
}

#[derive(Debug)]
struct PeerQuestion {
    id: TransactionId,
    rank: Rank,
    caller: Caller,
    question: Question,
    answer: Option<PeerAnswer>,
}

impl PeerQuestion {
    fn message(&self) -> PeerMessage {
        PeerMessage::Ask { id: self.id, caller: self.caller.clone(), question: self.question.clone() }
    }

    fn is_part(&self) -> bool {
        matches!(self.question, Question::Prepare { .. })
    }
}

impl Cx<'_> {
    pub(crate) fn coordinator(&mut self) -> &mut Coordinator {
        self.coordinator.get_or_insert_default()
    }

    /// Where another rank has said that an inode is.
    pub(crate) fn located(&self, ino: Ino) -> Option<Rank> {
        let located = &self.coordinator.as_ref()?.located;
        located.iter().rev().find(|(one, _)| *one == ino).map(|(_, at)| *at)
    }

    pub(crate) fn note_location(&mut self, ino: Ino, at: Rank) {
        self.coordinator().located.push((ino, at));
    }

    /// The caller with all its groups, which other ranks cannot query.
    pub(crate) fn whole_caller(&self) -> Step<Caller> {
        if !self.caller.is_superuser() && self.caller.groups.is_none() {
            return Err(Stop::Wait(Wait::Groups));
        }
        Ok(self.caller.clone())
    }
}

impl Meta {
    /// Allocates a transaction number. The number contains the sequence number of a durable event
    /// of this incarnation, so no number is used twice.
    fn next_transaction(&mut self) -> Step<TransactionId> {
        let began = match self.ranks.began {
            Some(began) => began,
            None => {
                self.append_loaded(&Event::Began);
                *self.ranks.began.insert(self.state.sequence)
            }
        };
        if self.journal.durable < began {
            return Err(Stop::Wait(Wait::Durable));
        }
        self.ranks.number += 1;
        Ok(TransactionId { began, number: self.ranks.number, rank: self.config.rank })
    }

    /// The answer of another rank to a question; sends the question first if needed.
    ///
    /// # Errors
    /// `EAGAIN` if the rank reports that its state has changed, or the error with which it refuses.
    pub(crate) fn query_rank(&mut self, cx: &mut Cx<'_>, rank: Rank, question: Question) -> Step<PeerAnswer> {
        if let Some(peer_question) =
            cx.coordinator().questions.iter().find(|it| (it.rank, &it.question) == (rank, &question))
        {
            return match &peer_question.answer {
                None => Err(Stop::Wait(Wait::Peers)),
                Some(PeerAnswer::Refused(errno)) => Err((*errno).into()),
                Some(PeerAnswer::Changed) => Err(Errno::EAGAIN.into()),
                Some(PeerAnswer::Relocated { ino, at }) => {
                    let (ino, at) = (*ino, *at);
                    cx.note_location(ino, at);
                    Err(Errno::EAGAIN.into())
                }
                Some(answer) => Ok(answer.clone()),
            };
        }
        if cx.coordinator().proposal.is_some() {
            // The edits will differ, and the locks of the proposal would make the other rank wait.
            self.withdraw(cx.coordinator());
            return Err(Stop::Wait(Wait::Others));
        }
        // Locations do not depend on the caller.
        let is_anybodys = !matches!(question, Question::Look { .. } | Question::Prepare { .. });
        let caller = if is_anybodys { Caller::SERVER } else { cx.whole_caller()? };
        let id = self.next_transaction()?;
        self.send_question(cx, PeerQuestion { id, rank, caller, question, answer: None });
        Err(Stop::Wait(Wait::Peers))
    }

    fn send_question(&mut self, cx: &mut Cx<'_>, peer_question: PeerQuestion) {
        self.send_to_rank(peer_question.rank, peer_question.message());
        cx.coordinator().questions.push(peer_question);
    }

    /// Has the other ranks prepare exactly these edits. Returns the inode that is made or linked,
    /// if any.
    pub(crate) fn prepare_edits(&mut self, cx: &mut Cx<'_>, edits: &[Edit]) -> Step<Named> {
        let (now, coordinator) = (cx.now, cx.coordinator());
        if coordinator.proposal.as_ref().is_some_and(|(_, _, proposed)| proposed != edits) {
            // Answers to earlier questions may be outdated too.
            self.withdraw(coordinator);
            return Err(Stop::Wait(Wait::Others));
        }
        let id = match &cx.coordinator().proposal {
            Some((id, ..)) => *id,
            None => {
                let (id, caller) = (self.next_transaction()?, cx.whole_caller()?);
                let since = *cx.coordinator().since.get_or_insert(now);
                cx.coordinator().proposal = Some((id, now, edits.to_vec()));
                for (rank, edits) in by_rank(edits) {
                    let question = Question::Prepare { edits, time: now, since };
                    self.send_question(
                        cx,
                        PeerQuestion { id, rank, caller: caller.clone(), question, answer: None },
                    );
                }
                id
            }
        };
        self.is_prepared(cx, id)
    }

    fn is_prepared(&mut self, cx: &mut Cx<'_>, id: TransactionId) -> Step<Named> {
        let (mut inode, mut refused, mut is_busy, mut is_awaited) = (None, None, false, false);
        for peer_question in cx.coordinator().questions.iter().filter(|peer_question| peer_question.id == id)
        {
            match &peer_question.answer {
                Some(PeerAnswer::Ready { named, .. }) => inode = inode.or(*named),
                // Another participant may yet report that the name refers to something else.
                Some(PeerAnswer::Refused(errno)) => refused = refused.or(Some(*errno)),
                Some(PeerAnswer::Changed) => return Err(Errno::EAGAIN.into()),
                Some(PeerAnswer::Relocated { ino, at }) => {
                    let (ino, at) = (*ino, *at);
                    cx.note_location(ino, at);
                    return Err(Errno::EAGAIN.into());
                }
                Some(_) => is_busy = true,
                None => is_awaited = true,
            }
        }
        if is_busy {
            self.withdraw(cx.coordinator());
            return Err(Stop::Wait(Wait::While));
        }
        match (is_awaited, refused) {
            (true, _) => Err(Stop::Wait(Wait::Peers)),
            (false, Some(errno)) => Err(errno.into()),
            (false, None) => Ok(inode),
        }
    }

    /// The files that the participants of the prepared transaction give away.
    pub(crate) fn given_files(&self, cx: &mut Cx<'_>) -> Vec<WholeFile> {
        let coordinator = cx.coordinator();
        let id = coordinator.proposal.as_ref().map(|(id, ..)| *id);
        let questions = coordinator.questions.iter().filter(|question| Some(question.id) == id);
        let files = questions.filter_map(|question| match &question.answer {
            Some(PeerAnswer::Ready { files, .. }) => Some(files),
            _ => None,
        });
        files.flatten().cloned().collect()
    }

    /// Takes the lock on moving directories, which serialises such moves in the whole namespace
    /// until the operation ends.
    pub(crate) fn lock_moves(&mut self, cx: &mut Cx<'_>) -> Step<()> {
        let id = match cx.coordinator().move_lock {
            Some(id) => id,
            None => {
                let (id, now) = (self.next_transaction()?, cx.now);
                let since = *cx.coordinator().since.get_or_insert(now);
                cx.coordinator().move_lock = Some(id);
                let question = Question::Prepare { edits: [Edit::MoveLock].into(), time: now, since };
                let (rank, caller) = (Ino::ROOT.rank(), Caller::SERVER);
                self.send_question(cx, PeerQuestion { id, rank, caller, question, answer: None });
                id
            }
        };
        self.is_prepared(cx, id).map(drop)
    }

    /// Locks a directory record of this rank until the operation commits or is withdrawn: other
    /// operations on it wait.
    pub(crate) fn freeze(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<()> {
        if cx.coordinator().frozen.is_some() || self.ranks.never_freezes {
            return Ok(());
        }
        if let Some(locks) = &self.state.locks {
            locks.check_whole(ino)?;
        }
        let (id, now) = (self.next_transaction()?, cx.now);
        let since = *cx.coordinator().since.get_or_insert(now);
        let age = *cx.coordinator().frozen.insert(Age { since, id });
        self.state.freeze(ino, age);
        Ok(())
    }

    /// Omits the locks of [`Self::freeze`]: a mutant, to test that random runs detect it.
    pub fn never_freeze(&mut self) {
        self.ranks.never_freezes = true;
    }

    pub(crate) fn unfreeze(&mut self, coordinator: &mut Coordinator) {
        if let Some(age) = coordinator.frozen.take() {
            self.state.unlock(age);
            self.ranks.unfrozen = true;
        }
    }

    /// Revokes other clients' leases on what edits change.
    pub(crate) fn revoke_edits(&mut self, cx: &mut Cx<'_>, edits: &[Edit]) -> Step<()> {
        for edit in edits {
            if let Edit::SetRights { ino, .. } = edit
                && let Some(held) = self.revoke_dependents(cx, *ino)
            {
                return Err(Stop::Wait(Wait::Lease(held)));
            }
        }
        self.revoke_all(cx, &|state, see| {
            edits.iter().for_each(|edit| edit.touched(state, see));
            Ok(())
        })
    }

    /// As [`Self::commit`]: applies this rank's edits with the decision, after all participants
    /// have prepared theirs.
    pub(crate) fn commit_edits<T>(
        &mut self,
        cx: &mut Cx<'_>,
        edits: Vec<Edit>,
        rest: impl FnOnce(&mut Self, &mut Cx<'_>) -> T,
    ) -> Step<Final<'_, T>> {
        self.revoke_edits(cx, &edits)?;
        self.state.load_edits(&edits)?;
        if cx.coordinator().proposal.is_none() {
            // No other rank takes part.
            self.prepare_edits(cx, &[])?;
        }
        let Some((id, time)) = cx.coordinator().proposal.as_ref().map(|(id, time, _)| (*id, *time)) else {
            return Err(Errno::EIO.into());
        };
        let of_proposal = cx.coordinator().questions.iter().filter(|peer_question| peer_question.id == id);
        let ranks = of_proposal.filter_map(|peer_question| match peer_question.answer {
            Some(PeerAnswer::Ready { vote, .. }) => Some((peer_question.rank, vote)),
            _ => None,
        });
        let ranks: Vec<_> = ranks.collect();
        let has_others = !ranks.is_empty();
        let part = Part { edits, time, since: time };
        let edits = part.edits.clone();
        self.append_part(&edits, &Event::Committed { id, part, ranks })?;
        cx.changed = Some(self.state.sequence);
        cx.read_set.touched.extend(edits.iter().flat_map(Edit::addressed));
        cx.coordinator().proposal = None;
        cx.coordinator().questions.retain(|peer_question| peer_question.id != id);
        self.ranks.asking.remove(&id);
        if has_others {
            self.journal.hold(self.state.sequence, HeldOutput::Committed(id));
        }
        nameless(&edits).into_iter().for_each(|ino| self.name_taken(cx, ino));
        Ok(Final::of(rest(self, cx)))
    }

    /// Appends an event that makes these edits, preceded by the locations that replay needs.
    pub(crate) fn append_part(&mut self, edits: &[Edit], event: &Event) -> Step<()> {
        let mut addressed: Vec<Ino> = edits.iter().flat_map(Edit::addressed).collect();
        addressed.sort_unstable();
        addressed.dedup();
        for ino in &addressed {
            if let Some((dir, hash)) = self.state.unchanged_dentry(*ino) {
                self.record(&Event::Locate { ino: *ino, dir, hash })?;
            }
        }
        let location = |meta: &Self, ino: &Ino| meta.state.inodes.get(ino).map(|cached| cached.location);
        let locations: Vec<_> =
            edits.iter().flat_map(Edit::moved).map(|ino| (ino, location(self, &ino))).collect();
        self.record(event)?;
        edits.iter().filter_map(Edit::grown).for_each(|dir| self.note_growth(dir));
        edits.iter().filter_map(Edit::shrunk).for_each(|dir| self.note_shrinkage(dir));
        for (ino, before) in locations {
            let is_held = self.state.inodes.get(&ino).is_some_and(|cached| cached.in_use());
            let is_known = is_held || self.sessions.in_grace();
            if self.config.session_ms.is_some() && is_known && location(self, &ino) != before {
                self.append_loaded(&Event::Moved { ino });
            }
        }
        Ok(())
    }

    // ---- Waiting

    /// Registers a waiting operation under its requests.
    pub(crate) fn register_questions(&mut self, task: &Task, number: u64) {
        for peer_question in task.coordinator.iter().flat_map(|coordinator| &coordinator.questions) {
            self.ranks.asking.insert(peer_question.id, number);
        }
        if let Some(peer_request) = &task.peer_request {
            self.ranks.peer_requests.insert(peer_request.key(), number);
        }
    }

    pub(crate) fn await_ranks(&mut self, number: u64) {
        self.ranks.unanswered.insert(number);
    }

    pub(crate) fn await_lock(&mut self, number: u64) {
        self.ranks.locked_out.insert(number);
    }

    pub(crate) fn answered(
        &mut self,
        now: Now,
        from: Rank,
        id: TransactionId,
        answer: PeerAnswer,
        out: &mut Outbox,
    ) {
        let Some(number) = self.ranks.asking.get(&id).copied() else {
            if let PeerAnswer::Ready { vote, .. } = answer {
                // The operation does not need the prepared part again, unless the transaction is
                // decided.
                self.inquired(from, id, vote);
            }
            return;
        };
        let coordinator = self.tasks.get_mut(&number).and_then(|task| task.coordinator.as_mut());
        let peer_question =
            coordinator.and_then(|it| it.questions.iter_mut().find(|it| (it.id, it.rank) == (id, from)));
        if let Some(peer_question) = peer_question {
            peer_question.answer = Some(answer);
        }
        if self.ranks.unanswered.remove(&number) {
            self.resume(now, number, out);
        }
    }

    /// Resumes operations that have asked a rank about load which is silent since: reports and
    /// decisions do without it.
    pub(crate) fn skip_silent(&mut self, now: Now, out: &mut Outbox) {
        if self.ranks.unanswered.is_empty() {
            return;
        }
        let known = self.known_loads();
        let silent: Vec<Rank> = known.iter().filter(|it| it.is_silent()).map(|it| it.rank).collect();
        let is_skipped = |it: &PeerQuestion| {
            it.answer.is_none() && it.question.is_about_load() && silent.contains(&it.rank)
        };
        let waits = |number: &u64| {
            let coordinator = self.tasks.get(number).and_then(|task| task.coordinator.as_ref());
            coordinator.is_some_and(|it| it.questions.iter().any(is_skipped))
        };
        let waiting: Vec<u64> = self.ranks.unanswered.iter().copied().filter(waits).collect();
        for number in waiting {
            self.ranks.unanswered.remove(&number);
            self.resume(now, number, out);
        }
    }

    /// Resends unanswered requests to a rank, which may have been lost.
    pub(crate) fn ask_again(&mut self, rank: Rank) {
        let coordinator = self.tasks.values().filter_map(|task| task.coordinator.as_ref());
        let peer_question = coordinator.flat_map(|coordinator| &coordinator.questions);
        let unanswered = peer_question
            .filter(|peer_question| peer_question.rank == rank && peer_question.answer.is_none());
        let messages: Vec<_> = unanswered.map(PeerQuestion::message).collect();
        for message in messages {
            self.send_to_rank(rank, message);
        }
    }

    /// Withdraws an operation's proposal and questions.
    pub(crate) fn withdraw(&mut self, coordinator: &mut Coordinator) {
        (coordinator.proposal, coordinator.move_lock) = (None, None);
        self.unfreeze(coordinator);
        for peer_question in coordinator.questions.drain(..) {
            self.ranks.asking.remove(&peer_question.id);
            if peer_question.is_part() {
                self.send_to_rank(
                    peer_question.rank,
                    PeerMessage::Finish { id: peer_question.id, vote: None },
                );
            }
        }
    }

    /// Restarts an operation whose answers from other ranks contradict this rank's state. Returns
    /// false if it must fail.
    pub(crate) fn start_over(&mut self, task: &mut Task) -> bool {
        let Some(coordinator) = &mut task.coordinator else { return false };
        if task.peer_request.is_some()
            || coordinator.questions.is_empty()
            || coordinator.surprises == MAX_SURPRISES
        {
            return false;
        }
        coordinator.surprises += 1;
        task.loaded = None;
        self.withdraw_all(task);
        true
    }

    pub(crate) fn withdraw_all(&mut self, task: &mut Task) {
        if let Some(mut coordinator) = task.coordinator.take() {
            self.withdraw(&mut coordinator);
            task.coordinator = Some(coordinator);
        }
    }
}

impl Edit {
    /// The inodes whose location may change.
    fn moved(&self) -> Vec<Ino> {
        match self {
            Self::Link { ino, .. }
            | Self::Move { ino, .. }
            | Self::PutName { referent: Referent { ino, .. }, .. } => [*ino].into(),
            Self::CedeNames { names, .. } | Self::AcceptNames { names, .. } => {
                names.iter().map(|name| name.referent.ino).collect()
            }
            Self::MoveNames { inodes, .. } => inodes.clone(),
            _ => Vec::new(),
        }
    }
}

/// The inodes that may lose their last name, or that had none.
pub(super) fn nameless(edits: &[Edit]) -> Vec<Ino> {
    let ino = |edit: &Edit| match edit {
        Edit::Unlink { ino, .. } | Edit::Link { ino, .. } => Some(*ino),
        _ => None,
    };
    edits.iter().filter_map(ino).collect()
}

/// Groups edits by rank, in their order.
fn by_rank(edits: &[Edit]) -> Vec<(Rank, Vec<Edit>)> {
    let mut parts: Vec<(Rank, Vec<Edit>)> = Vec::new();
    for edit in edits {
        match parts.iter_mut().find(|(rank, _)| *rank == edit.rank()) {
            Some((_, part)) => part.push(edit.clone()),
            None => parts.push((edit.rank(), [edit.clone()].into())),
        }
    }
    parts
}
