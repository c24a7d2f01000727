//! A warm standby: follows the journal of a rank that another server serves, so that it has to
//! replay only the end of it at a takeover. No thread or clock: a driver calls [`Follow::look`].
//!
//! - A follower only reads. It holds no lease.
//! - Its state is a [`Recovery`] that began with the last published checkpoint and has applied the
//!   frames after it. It depends on a [`Basis`]: the super record of that checkpoint, and the last
//!   opening of the journal for writing. When either changes, the follower begins again.
//! - Records are loaded from tables that a checkpoint may be changing. Loads count only if the
//!   tables have the same version before and after them; otherwise the follower begins again.
//! - A takeover uses the state only if the basis is that of the store, which nobody else writes by
//!   then. Otherwise it replays the whole journal.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use espalier_meta::{Config, IoDone, Load, Recovery, RecoveryError};
use espalier_proto::{ObjectId, Position};
use espalier_store::{
    Engine, FollowedStore, Journal, JournalEpoch, JournalError, ObjectStore, Store, StoreError, Superblock,
};

/// Bytes of frames that a look reads at most.
const LOOK_BYTES: u64 = 8 << 20;

/// Loads records from a store.
///
/// # Errors
/// [`StoreError`].
pub fn load(store: &dyn Store, load: &Load) -> Result<IoDone, StoreError> {
    match load {
        Load::Record { object, key } => store.get(*object, key).map(IoDone::Record),
        Load::Dentries { dir, from, limit } => {
            let object = ObjectId::fragment(*dir, 0);
            store.scan(object, Bound::Included(&from.to_be_bytes()), *limit).map(IoDone::Dentries)
        }
    }
}

/// Why a journal is not followed for now, or a recovery cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    #[error("the tables have no first record")]
    Empty,
}

/// The checkpoint and the opening of the journal from which a recovery follows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Basis {
    super_record: Vec<u8>,
    epoch: JournalEpoch,
}

/// A recovery that has begun, and what is left to replay.
pub struct BegunRecovery {
    pub recovery: Recovery,
    pub rest: RestOfJournal,
}

/// The frames of a journal that are left to replay.
#[derive(Clone, Copy, Debug)]
pub struct RestOfJournal {
    /// Position of the checkpoint.
    from: Position,
    /// Position before which a standby has replayed all frames.
    followed: Option<Position>,
}

impl RestOfJournal {
    /// True if a standby has replayed the frames before them.
    pub fn is_followed(self) -> bool {
        self.followed.is_some()
    }

    /// Calls `visit` with each frame. The end of the last one becomes the end of the journal.
    ///
    /// # Errors
    /// As [`Journal::replay`].
    pub fn replay(self, journal: &mut Journal, mut visit: impl FnMut(&[u8])) -> Result<(), JournalError> {
        match self.followed {
            Some(followed) => journal.replay_after(self.from, followed, |_, frame| visit(frame)),
            None => journal.replay(self.from, |_, frame| visit(frame)),
        }
        .map(drop)
    }
}

/// Begins the recovery of an open store: with what a standby has followed, if that is still right.
/// `super_record`: of the store.
///
/// # Errors
/// The store cannot be read, or is damaged.
pub fn begin(
    store: &dyn Store,
    journal: &Journal,
    super_record: Vec<u8>,
    config: Config,
    followed: Option<FollowedState>,
) -> Result<BegunRecovery, FollowError> {
    let basis = Basis { super_record, epoch: journal.epoch() };
    if let Some(FollowedState { recovery, from, read, .. }) = followed.filter(|state| state.basis == basis) {
        return Ok(BegunRecovery { recovery, rest: RestOfJournal { from, followed: Some(read) } });
    }
    let (recovery, from) = begin_cold(store, &basis.super_record, config)?;
    Ok(BegunRecovery { recovery, rest: RestOfJournal { from, followed: None } })
}

fn begin_cold(
    store: &dyn Store,
    super_record: &[u8],
    config: Config,
) -> Result<(Recovery, Position), FollowError> {
    let orphans = store.scan(ObjectId::ORPHANS, Bound::Unbounded, usize::MAX)?;
    let sessions = store.scan(ObjectId::SESSIONS, Bound::Unbounded, usize::MAX)?;
    Ok(Recovery::begin(config, super_record, &orphans, &sessions)?)
}

/// The state of a rank as far as a standby has followed it.
pub struct FollowedState {
    basis: Basis,
    recovery: Recovery,
    from: Position,
    read: Position,
}

/// How far a follower is, for other threads.
#[derive(Debug, Default)]
pub struct FollowProgress {
    found: AtomicU64,
    replayed: AtomicU64,
    is_at_end: AtomicBool,
}

impl FollowProgress {
    /// Frames that the last look has found and that are not replayed yet.
    pub fn frames_behind(&self) -> u64 {
        let replayed = self.replayed.load(Ordering::Acquire);
        self.found.load(Ordering::Acquire).saturating_sub(replayed)
    }

    /// Frames replayed, in total.
    pub fn replayed(&self) -> u64 {
        self.replayed.load(Ordering::Acquire)
    }

    /// True if the last look has found the end of the journal: later frames are newer than it.
    pub fn is_at_end(&self) -> bool {
        self.is_at_end.load(Ordering::Acquire)
    }
}

/// Follows the journal of a rank.
pub trait Follow: Send {
    /// Replays what was written since the last look, or a part of it. Returns true if more is
    /// known to be there: the next look may follow at once.
    ///
    /// # Errors
    /// The store cannot be read, or was read while it changed. The next look begins again.
    fn look(&mut self) -> Result<bool, FollowError>;

    fn progress(&self) -> Arc<FollowProgress>;

    /// What was followed; `None`: nothing.
    fn end(self: Box<Self>) -> Option<FollowedState>;
}

/// Follows the journal of a rank in the objects of an engine.
pub struct Follower<E: Engine> {
    engine: Arc<E>,
    superblock: Superblock,
    config: Config,
    cache_bytes: u64,
    followed: Option<Followed<E>>,
    progress: Arc<FollowProgress>,
}

struct Followed<E: Engine> {
    opened: FollowedStore<E>,
    state: FollowedState,
}

impl<E: Engine> Follower<E> {
    /// `superblock`, `config`: of the rank. `cache_bytes`: for records of the tables.
    pub fn new(engine: Arc<E>, superblock: Superblock, config: Config, cache_bytes: u64) -> Self {
        let progress = Arc::default();
        Self { engine, superblock, config, cache_bytes, followed: None, progress }
    }

    /// True if neither the tables nor the opening of the journal have changed.
    fn is_current(&self) -> Result<bool, FollowError> {
        let Some(Followed { opened, .. }) = &self.followed else { return Ok(false) };
        let FollowedStore { store, journal, version } = opened;
        Ok(store.tables_version()? == *version && journal.read_epoch()? == journal.epoch())
    }

    /// Opens the store as it is now, and begins with the last checkpoint unless the state already
    /// follows from it.
    fn reopen(&mut self) -> Result<(), FollowError> {
        let before = self.followed.take();
        let opened = ObjectStore::follow(&self.engine, &self.superblock, self.cache_bytes)?;
        let Some(opened) = opened else { return Ok(()) };
        let super_record = opened.store.get(ObjectId::SUPER, b"")?.ok_or(FollowError::Empty)?;
        let basis = Basis { super_record, epoch: opened.journal.epoch() };
        let state = match before.filter(|before| before.state.basis == basis) {
            Some(Followed { state, .. }) => state,
            None => {
                let config = self.config.clone();
                let (recovery, from) = begin_cold(&opened.store, &basis.super_record, config)?;
                FollowedState { basis, recovery, from, read: from }
            }
        };
        if opened.store.tables_version()? == opened.version {
            self.followed = Some(Followed { opened, state });
        }
        Ok(())
    }

    /// Replays frames of the journal. Returns true if more may be there.
    fn replay(&mut self) -> Result<bool, FollowError> {
        let Some(Followed { opened, state }) = &mut self.followed else { return Ok(false) };
        let FollowedStore { store, journal, version } = opened;
        let mut frames = VecDeque::new();
        let before = state.read;
        let read = journal.follow(state.from, before, LOOK_BYTES, |frame| frames.push_back(frame))?;
        self.progress.found.fetch_add(frames.len() as u64, Ordering::AcqRel);
        let mut has_loaded = false;
        while let Some(frame) = frames.pop_front() {
            let replayed = state.recovery.frame(&frame, &mut |wanted| {
                has_loaded = true;
                load(store, wanted).map_err(|error| error.errno())
            });
            if replayed.is_err() {
                // These frames are replayed again.
                self.progress.replayed.fetch_add(frames.len() as u64, Ordering::AcqRel);
            }
            self.progress.replayed.fetch_add(1, Ordering::AcqRel);
            replayed?;
        }
        state.read = read;
        if has_loaded && store.tables_version()? != *version {
            self.followed = None;
            return Ok(true);
        }
        Ok(read.0 - before.0 >= LOOK_BYTES)
    }

    fn try_look(&mut self) -> Result<bool, FollowError> {
        if !self.is_current()? {
            self.reopen()?;
        }
        self.replay()
    }
}

impl<E: Engine> Follow for Follower<E> {
    fn look(&mut self) -> Result<bool, FollowError> {
        let outcome = self.try_look();
        if outcome.is_err() {
            self.followed = None;
        }
        let is_at_end = self.followed.is_some() && matches!(outcome, Ok(false));
        self.progress.is_at_end.store(is_at_end, Ordering::Release);
        outcome
    }

    fn progress(&self) -> Arc<FollowProgress> {
        Arc::clone(&self.progress)
    }

    fn end(self: Box<Self>) -> Option<FollowedState> {
        self.followed.map(|followed| followed.state)
    }
}
