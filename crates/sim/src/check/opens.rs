//! Inodes that a client may have open: these are found by their number even without a name. The set
//! never shrinks, because a session may hold inodes open that its client has closed or never
//! opened.

use std::collections::BTreeSet;

use espalier_client::{Answer, Call};
use espalier_proto::{Errno, Ino, NewNode, Request};

use super::action::Action;

/// See the module's description.
#[derive(Debug)]
pub struct Opens {
    /// Clients have files open while they make them, whether or not the caller opens them.
    by_client: bool,
    opened: BTreeSet<Ino>,
    /// An inode has been opened by its name, and no reply has returned its number.
    any: bool,
}

impl Opens {
    pub fn new(by_client: bool) -> Self {
        Self { by_client, opened: BTreeSet::new(), any: false }
    }

    pub fn begin(&mut self, call: &Call<'_>) {
        if let Call::Request(Request::Open { ino, .. }) = call {
            self.opened.insert(*ino);
        }
    }

    pub fn end<'a>(&mut self, mut actions: impl Iterator<Item = &'a Action>, result: &Result<Answer, Errno>) {
        if let Ok(Answer::Entry(entry) | Answer::Created(entry, _)) = result
            && actions.any(|action| self.opens(action))
        {
            self.opened.insert(entry.attr.ino);
        }
    }

    /// The result of an action will not be reported.
    pub fn give_up(&mut self, action: &Action) {
        self.any |= self.opens(action);
    }

    /// True if a client may have opened the inode, or a pending action may open it.
    pub fn may_have<'a>(&self, ino: Ino, mut under_way: impl Iterator<Item = &'a Action>) -> bool {
        self.any || self.opened.contains(&ino) || under_way.any(|action| self.opens(action))
    }

    /// True if the action opens the inode that it names or creates.
    fn opens(&self, action: &Action) -> bool {
        match action {
            Action::Create { open, node, .. } => {
                open.is_some() || self.by_client && matches!(node, NewNode::Regular)
            }
            _ => false,
        }
    }
}
