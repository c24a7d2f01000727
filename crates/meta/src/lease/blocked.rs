//! Clients whose kernels cannot give up a name.
//!
//! A kernel drops a cached name only with its directory locked. A call that has locked the
//! directory may wait until other clients give up leases; if their kernels have locked it as well,
//! each waits for the other. When both have reported that, one of the calls is refused with
//! `ESTALE`, before it has changed anything: Linux looks its names up again and repeats it, once.
//! A call of overlayfs is not repeated, so no call is refused only because it is slow.

use espalier_proto::{ClientId, Errno, Ino, RevocationId};

use crate::machine::Meta;
use crate::outbox::{Now, Outbox};
use crate::progress::Progress;
use crate::task::Task;

impl Meta {
    /// A client has a call pending that locks the directory of a revoked name: refuses those of its
    /// calls there that wait for the leases of clients in the same situation.
    pub(crate) fn blocked(&mut self, now: Now, client: ClientId, number: RevocationId, out: &mut Outbox) {
        let Some(leases) = &mut self.leases else { return };
        let Some(dir) = leases.revocation_blocked(client, number) else { return };
        let tasks = &self.tasks;
        let locker = |number: u64, dir: Ino| {
            let task = tasks.get(&number).filter(|task| task.request.changed_dirs().contains(&Some(dir)))?;
            let is_refusable = matches!(task.progress, Progress::None) && !task.request.is_acknowledged();
            is_refusable.then_some(task.caller.pid)
        };
        for number in leases.refuse_waiting(client, dir, locker) {
            self.refuse_waiting(now, number, Errno::ESTALE, out);
        }
    }

    /// An operation is over: its caller's next one may be refused again.
    pub(crate) fn may_refuse_again(&mut self, task: &Task) {
        if let Some(leases) = &mut self.leases
            && leases.has_refused()
            && task.request.changed_dirs()[0].is_some()
        {
            leases.may_refuse_again(task.from, task.caller.pid);
        }
    }
}
