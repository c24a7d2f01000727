//! The rule of fragments that split off because of requests: the requests were there, and more than
//! the policy allows.

use espalier_meta::{Edit, PeerMessage, Question, SplitCause};
use espalier_proto::FromClient;

use crate::message::Message;

/// A constant rate of one request per second makes a counter at least this large.
const REQUESTS_PER_RATE: u64 = 7;

/// See the module description.
#[derive(Debug, Default)]
pub struct SplitChecker {
    /// Requests of clients that have arrived at any rank.
    requests: u64,
    /// Fragments that were to split off because of requests, or that moved later.
    pub by_requests: u64,
}

impl SplitChecker {
    /// A message arrives at a rank.
    ///
    /// # Errors
    /// The broken rule.
    pub fn arrives(&mut self, message: &Message) -> Result<(), String> {
        let edits = match message {
            Message::FromClient(FromClient::Request { .. } | FromClient::Stream { .. }) => {
                self.requests += 1;
                return Ok(());
            }
            Message::Peer(PeerMessage::Ask { question: Question::Prepare { edits, .. }, .. }) => edits,
            _ => return Ok(()),
        };
        for edit in edits {
            if let Edit::Make { inode } = edit
                && let Some(SplitCause::Requests { rate, limit }) = inode.split_cause()
            {
                self.by_requests += 1;
                if rate <= limit || rate.saturating_mul(REQUESTS_PER_RATE) > self.requests {
                    return Err(format!(
                        "fragment {} splits off because of {rate} requests/s, the limit is {limit}; {} have arrived",
                        inode.ino, self.requests
                    ));
                }
            }
        }
        Ok(())
    }
}
