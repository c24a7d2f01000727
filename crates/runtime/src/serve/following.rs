//! Ranks that a warm standby follows, each in a thread of its own.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use espalier_proto::Rank;
use espalier_standby::{Follow, FollowProgress, FollowedState};
use serde::{Deserialize, Serialize};

/// Between two looks at a journal.
const INTERVAL: Duration = Duration::from_secs(1);

/// A rank whose journal is followed until this is dropped.
pub struct Following {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<Option<FollowedState>>,
    progress: Arc<FollowProgress>,
}

/// How far a standby has followed a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FollowStatus {
    pub rank: u16,
    /// Frames of the journal that it has found and not replayed yet.
    pub frames_behind: u64,
    /// True if these are all that were in the journal at its last look.
    pub is_at_end: bool,
    /// Frames that it has replayed, in total.
    pub frames: u64,
}

impl Following {
    pub fn start(follower: Box<dyn Follow>, rank: Rank) -> Self {
        let (stop, stopped) = channel();
        let progress = follower.progress();
        let thread = std::thread::spawn(move || follow(follower, rank, &stopped));
        Self { stop, thread, progress }
    }

    /// Ends the thread; returns what was followed.
    pub fn end(self) -> Option<FollowedState> {
        drop(self.stop);
        self.thread.join().ok().flatten()
    }

    pub fn status(&self, rank: Rank) -> FollowStatus {
        let (frames_behind, is_at_end) = (self.progress.frames_behind(), self.progress.is_at_end());
        FollowStatus { rank: rank.0, frames_behind, is_at_end, frames: self.progress.replayed() }
    }
}

fn follow(mut follower: Box<dyn Follow>, rank: Rank, stopped: &mpsc::Receiver<()>) -> Option<FollowedState> {
    let mut wait = Duration::ZERO;
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(wait) {
        wait = match follower.look() {
            Ok(true) => Duration::ZERO,
            Ok(false) => INTERVAL,
            Err(error) => {
                tracing::debug!(%rank, %error, "following a rank begins again");
                INTERVAL
            }
        };
    }
    follower.end()
}
