//! One operation's time, split into what it was spent on.

use std::time::Instant;

use espalier_proto::Ino;

use super::Kind;

/// What an operation's time goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Waiting for a turn at the machines.
    Queue,
    /// In the machines.
    Work,
    /// Waiting for a commit of the journal, or for room in it.
    Journal,
    /// Loads from the tables, and what is done with streams.
    Disk,
}

impl Stage {
    pub(crate) const ALL: [Stage; 4] = [Stage::Queue, Stage::Work, Stage::Journal, Stage::Disk];

    pub(crate) fn name(self) -> &'static str {
        ["queue", "work", "journal", "disk"][self as usize]
    }
}

/// A thread's turn at the machines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// When there was something for the machines.
    pub asked: Instant,
    /// When the thread had them.
    pub began: Instant,
}

/// An operation under way. It costs two readings of the clock, at its ends; a third if it waits for its turn.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub kind: Kind,
    /// The door's number of the call; 0: it has none.
    pub number: u64,
    pub pid: u32,
    /// What it is about: the directory, where it carries a name.
    pub ino: Ino,
    /// Known while somebody watches.
    pub dir: Option<Ino>,
    /// Nanoseconds by stage, up to `mark`.
    pub spent: [u64; 4],
    stage: Stage,
    mark: Instant,
}

impl Span {
    /// Instead of a process: nobody knows which it is.
    pub(crate) const NO_PROCESS: u32 = u32::MAX;

    pub(crate) fn start(kind: Kind, pid: u32, ino: Ino, turn: Turn) -> Self {
        let mut span = Self {
            kind,
            number: 0,
            pid,
            ino,
            dir: None,
            spent: [0; 4],
            stage: Stage::Queue,
            mark: turn.asked,
        };
        span.turn_to(Stage::Work, turn.began);
        span
    }

    /// From now on its time goes to something else.
    pub(crate) fn turn_to(&mut self, stage: Stage, now: Instant) {
        self.spent[self.stage as usize] += now.saturating_duration_since(self.mark).as_nanos() as u64;
        self.mark = self.mark.max(now);
        self.stage = stage;
    }

    /// What it waited for came in this turn, unless it did not wait.
    pub(crate) fn resume(&mut self, turn: Turn) {
        if self.stage != Stage::Work {
            self.turn_to(Stage::Queue, turn.asked);
            self.turn_to(Stage::Work, turn.began);
        }
    }

    /// Nanoseconds up to the last change of stage.
    pub(crate) fn total(&self) -> u64 {
        self.spent.iter().sum()
    }

    /// Since when it is in its stage.
    pub(crate) fn mark(&self) -> Instant {
        self.mark
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn time_goes_to_what_it_was_spent_on() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let turn = |asked, began| Turn { asked: at(asked), began: at(began) };
        let mut span = Span::start(Kind::Create, 1, Ino::ROOT, turn(0, 1));
        span.resume(turn(0, 1));
        span.turn_to(Stage::Disk, at(3));
        // The load ends at 7, and the machines are free at 12.
        span.resume(turn(7, 12));
        span.turn_to(Stage::Journal, at(13));
        // It is told of a turn that was asked for before it began to wait.
        span.resume(turn(10, 33));
        span.turn_to(Stage::Work, at(40));
        let spent = span.spent.map(|nanos| nanos / 1_000_000);
        assert_eq!(spent, [1 + 5 + 20, 2 + 1 + 7, 0, 4]);
        assert_eq!(span.total(), 40_000_000);
    }
}
