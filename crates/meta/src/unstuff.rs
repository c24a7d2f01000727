//! A stuffed file's bytes are moved out into a stream, once and for all (carns III.B): by one operation at a time, lest a second one
//! fills the stream anew when clients already write to it. If nothing comes of it, the stream is removed before another may try.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use espalier_proto::Ino;

use crate::io::Purpose;
use crate::journal::Held;
use crate::machine::{Cx, Meta};
use crate::outbox::{Io, Now, Outbox};
use crate::record::Body;
use crate::step::{Step, Stop, StreamCall, Wait};
use crate::striping::Layouts;
use crate::task::Task;

/// Files whose streams are being filled.
#[derive(Debug, Default)]
pub(crate) struct Filling {
    /// With the operations that wait for the one that does it.
    files: BTreeMap<Ino, Vec<u64>>,
    /// Operations that wait no longer.
    ready: Vec<u64>,
    /// What came of them that could not be removed.
    left: Vec<(Ino, Layouts)>,
}

impl Filling {
    pub(crate) fn wait(&mut self, ino: Ino, number: u64) {
        self.files.entry(ino).or_default().push(number);
    }

    /// Of the operations that wait, the one of which this is so waits no longer.
    pub(crate) fn stop_waiting(&mut self, is_it: impl Fn(&u64) -> bool) -> Option<u64> {
        let mut all = self.files.values_mut();
        all.find_map(|waiting| waiting.iter().position(&is_it).map(|at| waiting.swap_remove(at)))
    }

    /// What was left of it before is overwritten, or removed.
    fn begin(&mut self, ino: Ino) {
        self.files.insert(ino, Vec::new());
        self.left.retain(|(left, _)| *left != ino);
    }

    /// The file has its stream, or none any more.
    fn end(&mut self, ino: Ino) {
        self.ready.extend(self.files.remove(&ino).into_iter().flatten());
    }
}

impl Meta {
    /// Moves a stuffed file's bytes out into a stream. Readers go on meanwhile; a change that comes between starts it over.
    pub(crate) fn unstuff(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<()> {
        let inode = self.state.inode(ino)?;
        let Body::Stuffed { size, .. } = inode.body else { return Ok(()) };
        let mtime = inode.mtime;
        let bytes = self.state.strip(ino)?.to_vec();
        let (version, first) =
            self.state.strips.get(&ino).map_or((0, 0), |strip| (strip.version, strip.first));
        // What is durable, be it a size without bytes, must not be given up for what is not.
        let sync = size > 0 && first <= self.journal.promised();
        if !cx.streams.iter().any(|(call, _)| call.fills() == Some(ino)) {
            if self.filling.files.contains_key(&ino) {
                return Err(Stop::Wait(Wait::Filling(ino)));
            }
            self.filling.begin(ino);
        }
        cx.stream(StreamCall::Fill { ino, version, bytes, size, mtime, sync })?;
        self.commit(cx, &self.unstuffing(ino)?)?;
        self.journal.hold(self.state.sequence, Held::SettleStream(ino));
        self.filling.end(ino);
        Ok(())
    }

    /// An operation is over: what it has filled and has not become a file's is removed.
    pub(crate) fn remove_unused(&mut self, task: &Task, out: &mut Outbox) {
        let filled = task.streams.iter().find_map(|(call, _)| call.fills());
        if let Some(ino) = filled.filter(|ino| self.filling.files.contains_key(ino)) {
            let layout = self.new_layout(ino).ok().flatten();
            self.remove_filled(ino, layout.map(|layout| (ino, layout)).into_iter().collect(), out);
        }
    }

    fn remove_filled(&mut self, ino: Ino, layouts: Layouts, out: &mut Outbox) {
        let io = Io::Stream(StreamCall::Remove { ino }, layouts.clone());
        self.ask(Purpose::RemoveUnused(ino, layouts), io, out);
    }

    pub(crate) fn unused_removed(&mut self, ino: Ino, layouts: Layouts, is_removed: bool) {
        self.filling.end(ino);
        if !is_removed {
            self.left_behind(ino, layouts);
        }
    }

    /// A new stream could not be removed, which does no harm: that is tried again.
    pub(crate) fn left_behind(&mut self, ino: Ino, layouts: Layouts) {
        if !self.filling.files.contains_key(&ino) {
            self.filling.left.push((ino, layouts));
        }
    }

    pub(crate) fn retry_removals(&mut self, out: &mut Outbox) {
        for (ino, layouts) in core::mem::take(&mut self.filling.left) {
            if self.filling.files.contains_key(&ino) {
                self.filling.left.push((ino, layouts));
            } else {
                self.filling.begin(ino);
                self.remove_filled(ino, layouts, out);
            }
        }
    }

    /// Operations go on that have waited for another to fill a stream.
    pub(crate) fn resume_filling(&mut self, now: Now, out: &mut Outbox) {
        while let Some(number) = self.filling.ready.pop() {
            self.resume(now, number, out);
        }
    }
}

impl StreamCall {
    /// The file whose stream it fills.
    fn fills(&self) -> Option<Ino> {
        if let Self::Fill { ino, .. } = self { Some(*ino) } else { None }
    }
}
