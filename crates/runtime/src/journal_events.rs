//! The events in the journal of a store that nobody uses: reading them, and erasing the last ones
//! of a namespace.

use std::path::Path;

use espalier_meta::{Event, Super};
use espalier_proto::{ObjectId, Position, Rank};
use espalier_store::{JournalError, LocalOptions, Uuid};

use crate::error::Error;
use crate::fsck::checkpoint;
use crate::location::{OpenedStore, StoreLocation};
use crate::namespace::NamespaceOrigin;
use crate::volume::{OpenOptions, Volume};

/// An event in a journal.
#[derive(Debug)]
pub struct JournalEvent {
    /// Position of the end of the event's frame.
    pub position: Position,
    pub sequence: u64,
    /// The tables contain it.
    pub in_tables: bool,
    pub event: Event,
}

/// A journal as a whole.
#[derive(Debug)]
pub struct JournalSummary {
    pub uuid: Uuid,
    pub rank: Rank,
    /// For a namespace.
    pub origin: Option<NamespaceOrigin>,
    /// Bytes of the ring.
    pub capacity: u64,
    /// Positions of the first frame and of the end.
    pub begin: Position,
    pub end: Position,
    /// The last event that the tables contain.
    pub in_tables: u64,
    pub frames: u64,
    pub events: u64,
    pub damage: Option<JournalDamage>,
}

/// Damage that ends the readable part of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalDamage {
    pub position: Position,
    pub why: String,
}

/// Reads the events of a store's journal, in order. Changes nothing. Damage ends the events, and is
/// reported in the summary.
///
/// # Errors
/// Errors of opening the store, also because it is in use; those of the disk.
pub fn read_events(
    location: &StoreLocation,
    mut visit: impl FnMut(JournalEvent),
) -> Result<JournalSummary, Error> {
    let options = LocalOptions { read_only: true, ..LocalOptions::default() };
    let OpenedStore { superblock, store, mut journal } = location.open(options)?;
    let origin = match location.directory().map(NamespaceOrigin::read) {
        Some(Ok(origin)) => Some(origin),
        Some(Err(Error::NoNamespace(_))) | None => None,
        Some(Err(error)) => return Err(error),
    };
    let first = store.get(ObjectId::SUPER, b"")?;
    let record = first.as_deref().and_then(Super::parse);
    let record = record.ok_or_else(|| Error::Unfinished(location.name()))?;
    let begin = Position(record.journal);
    let mut summary = JournalSummary {
        uuid: superblock.uuid,
        rank: superblock.rank,
        origin,
        capacity: journal.capacity(),
        begin,
        end: begin,
        in_tables: record.sequence,
        frames: 0,
        events: 0,
        damage: None,
    };
    let replayed = journal.replay(begin, |position, frame| {
        if summary.damage.is_some() {
            return;
        }
        match visit_frame(position, frame, record.sequence, &mut visit) {
            Ok(events) => {
                (summary.frames, summary.end) = (summary.frames + 1, position);
                summary.events += events;
            }
            Err(why) => {
                summary.damage = Some(JournalDamage { position: summary.end, why: why.into() });
            }
        }
    });
    match replayed {
        Ok(_) => {}
        Err(JournalError::Corrupt { position, why }) => {
            let damage = JournalDamage { position: Position(position), why: why.into() };
            summary.damage.get_or_insert(damage);
        }
        Err(error) => return Err(error.into()),
    }
    Ok(summary)
}

/// Decodes a frame: the number of its first event, then the events. Returns their number.
fn visit_frame(
    position: Position,
    frame: &[u8],
    in_tables: u64,
    visit: &mut impl FnMut(JournalEvent),
) -> Result<u64, &'static str> {
    let Some((first, mut rest)) = frame.split_first_chunk::<8>() else {
        return if frame.is_empty() { Ok(0) } else { Err("a frame is too short") };
    };
    let (first, mut events) = (u64::from_le_bytes(*first), 0);
    while !rest.is_empty() {
        let (event, after) = Event::decode(rest).map_err(|_| "an event is none that this version knows")?;
        let sequence = first.saturating_add(events);
        visit(JournalEvent { position, sequence, in_tables: sequence <= in_tables, event });
        (rest, events) = (after, events + 1);
    }
    Ok(events)
}

/// Erases the events after `last` from the journal of a namespace: undoes its last operations. The
/// events up to there are written to the tables; until then nothing has changed. Bytes of big files
/// are not undone. Returns the number of erased events.
///
/// # Errors
/// [`Error::NoNamespace`]; [`Error::Checkpointed`]: the tables contain events after `last`; errors
/// of opening the store.
pub fn erase_events(dir: &Path, last: u64) -> Result<u64, Error> {
    NamespaceOrigin::read(dir)?;
    let location = StoreLocation::Directory(dir.into());
    let mut after = 0;
    let summary =
        read_events(&location, |event| after += u64::from(!event.in_tables && event.sequence > last))?;
    if last < summary.in_tables {
        return Err(Error::Checkpointed(summary.in_tables));
    }
    let options = OpenOptions { until: last, memory: 128 << 20, ..OpenOptions::default() };
    checkpoint(Volume::open(location, options)?)?;
    Ok(after)
}
