//! Logs of `strace -f -ttt -T -y -o FILE PROGRAM`.

mod line;
mod state;
mod translate;

use std::collections::BTreeMap;
use std::path::Path;

use super::order::{self, Timed};
use super::{Act, BadLine, RecordedOp, Trace};
use crate::Nanos;
use line::StraceEvent;
use state::StraceState;

pub(super) use line::is_line;

/// Parses a log. Operations below the directory `root` are replayed; its path becomes `/`.
pub(super) fn parse(text: &str, root: &Path) -> Result<Trace, BadLine> {
    let events = line::events(text)?;
    let start = events.iter().find_map(|event| match event {
        StraceEvent::Call(call) => Some(call.begun),
        StraceEvent::Exit { .. } => None,
    });
    let mut state = StraceState::new(root, &events)?;
    // By process number: its entries, and the end of the last one.
    let mut processes: Vec<(Vec<Timed>, Nanos)> = Vec::new();
    let mut numbers: BTreeMap<u32, usize> = BTreeMap::new();
    for event in &events {
        let call = match event {
            StraceEvent::Call(call) => call,
            StraceEvent::Exit { pid } => {
                state.exit(*pid);
                numbers.remove(pid);
                continue;
            }
        };
        let process = *numbers.entry(call.pid).or_insert_with(|| {
            processes.push((Vec::new(), start.unwrap_or_default()));
            processes.len() - 1
        });
        let Some(done) = translate::translate(&mut state, call)? else { continue };
        // A process begins after all earlier operations of its parent.
        let parent = state.parent(call.pid).and_then(|parent| numbers.get(&parent)).copied();
        let is_first = processes[process].0.is_empty();
        let after = parent.filter(|_| is_first).and_then(|parent| {
            let earlier = |timed: &Timed| timed.ended <= call.begun;
            Some((parent, processes[parent].0.iter().rposition(earlier)?))
        });
        let (entries, last) = &mut processes[process];
        let pause = call.begun - *last;
        *last = call.ended;
        let act = Act::Do(done.op, done.expected);
        let entry = RecordedOp { line: call.line, pause, act, after: after.into_iter().collect() };
        entries.push(Timed { entry, begun: call.begun, ended: call.ended, observed: done.observed });
    }
    let processes = processes.into_iter().map(|(entries, _)| entries).collect();
    Ok(order::finish(processes, Vec::new(), state.into_skipped()))
}
