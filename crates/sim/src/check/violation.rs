//! Report of an impossible reply.

use std::collections::BTreeSet;
use std::fmt::{self, Debug, Display, Formatter, Write};

use espalier_client::Answer;
use espalier_proto::{ClientId, Errno, Rank};

use super::action::Action;
use super::{Checker, OpenCall, Past};
use crate::Nanos;

/// Most other calls and possible replies in a report.
pub const MAX_LISTED: usize = 40;

/// No order of the calls explains a reply.
#[derive(Debug)]
pub struct Violation {
    pub at: Nanos,
    pub client: ClientId,
    /// Number of the call in the run, counted from 1; 0: none.
    pub number: u64,
    pub since: Nanos,
    pub call: String,
    pub answer: String,
    /// Replies that would have been possible in different orders.
    pub possible: Vec<String>,
    /// The last calls on the same names and inodes.
    pub related: Vec<String>,
}

impl Violation {
    pub fn of_power(at: Nanos, rank: Rank, changes: Vec<String>) -> Self {
        Self {
            at,
            client: ClientId(0),
            number: 0,
            since: at,
            call: format!("Loss of power at rank {rank}"),
            answer: "no set of lost changes is consistent with the earlier replies".into(),
            possible: Vec::new(),
            related: changes,
        }
    }
}

impl Checker {
    /// Reports a violation, with the calls that are related to an action.
    pub(super) fn violation(
        &self,
        now: Nanos,
        client: ClientId,
        open_call: &OpenCall,
        action: &Action,
        result: &Result<Answer, Errno>,
        possible: BTreeSet<String>,
    ) -> Violation {
        let is_about = |past: &&Past| past.actions.iter().any(|other| other.is_about(action));
        let ended = self.past.iter().rev().filter(is_about).take(MAX_LISTED);
        let mut related: Vec<(u64, String)> = ended.map(|past| (past.number, past.to_string())).collect();
        for ((client, _), other) in &self.open_calls {
            let parts = other.parts.iter().filter_map(|id| self.pending.get(id));
            if parts.into_iter().any(|part| part.action.is_about(action)) {
                related.push((other.number, under_way(*client, other.number, other.since, &other.text)));
            }
        }
        related.sort();
        Violation {
            at: now,
            client,
            number: open_call.number,
            since: open_call.since,
            call: open_call.text.clone(),
            answer: shortened(result),
            possible: possible.into_iter().take(MAX_LISTED).collect(),
            related: related.into_iter().map(|(_, text)| text).collect(),
        }
    }
}

impl Display for Violation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "No order of the calls explains a reply:")?;
        writeln!(
            f,
            "  {}",
            line(self.client, self.number, self.since, Some(self.at), &self.call, &self.answer)
        )?;
        writeln!(f, "Possible replies:")?;
        for possible in &self.possible {
            writeln!(f, "  {possible}")?;
        }
        writeln!(f, "Related calls:")?;
        for related in &self.related {
            writeln!(f, "  {related}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Violation {}

impl Display for Past {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&line(self.client, self.number, self.from, self.to, &self.call, &self.answer))
    }
}

pub fn under_way(client: ClientId, number: u64, since: Nanos, call: &str) -> String {
    line(client, number, since, None, call, "not answered yet")
}

fn line(client: ClientId, number: u64, from: Nanos, to: Option<Nanos>, call: &str, answer: &str) -> String {
    let millis = |at: Nanos| at.0 as f64 / 1e6;
    let to = to.map_or("...".into(), |to| format!("{:.3}", millis(to)));
    format!("{number}: {:.3} to {to} ms, client {}: {call}: {answer}", millis(from), client.0)
}

/// Debug output, shortened to a readable length.
pub fn shortened(value: &impl Debug) -> String {
    let mut text = Shortened { text: String::new(), left: 400 };
    if write!(text, "{value:?}").is_err() {
        text.text.push_str("...");
    }
    text.text
}

/// Accepts a limited number of characters.
struct Shortened {
    text: String,
    left: usize,
}

impl Write for Shortened {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        match more.char_indices().nth(self.left) {
            Some((at, _)) => {
                self.text.push_str(&more[..at]);
                Err(fmt::Error)
            }
            None => {
                self.text.push_str(more);
                self.left -= more.chars().count();
                Ok(())
            }
        }
    }
}
