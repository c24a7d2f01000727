//! Requests whose results depend on stores through shared memory maps.
//!
//! The kernel does not report such stores, and does not write dirty pages back before it asks for
//! data, holes or the blocks of a file. A result with a hole is therefore checked: the dirty pages
//! in the hole are written back, and the request is executed again. Only a file that is open for
//! reading and writing can have such pages, and its map keeps it open.
//!
//! The notification that writes pages back waits for the kernel's `WRITE` requests. The notifier's
//! thread sends it, and the request holds no thread meanwhile.

use std::ops::Range;
use std::sync::Arc;

use espalier_client::{Answer, Call, RangeCall};
use espalier_fuse as fuse;
use espalier_proto::{Errno, Ino, RangeOp, Request, SeekWhat};

use super::{Form, FuseFrontend, Mounted, Ticket, caller};
use crate::calls::{CallOutcome, Calls};

/// A request on a file that may have dirty pages.
pub(super) struct Mapped {
    ino: Ino,
    question: Question,
    form: Form,
    again: Box<dyn FnOnce(Ticket) + Send>,
}

enum Question {
    Blocks,
    Seek(u64, SeekWhat),
}

impl Question {
    /// The hole that a result contains; it may end beyond the end of the file.
    fn hole(&self, outcome: &Result<CallOutcome<'_>, Errno>) -> Option<Range<u64>> {
        let outcome = outcome.as_ref().map_err(|errno| *errno);
        match (self, outcome) {
            (Self::Blocks, Ok(CallOutcome::Answer(Answer::Attr(attr)))) => {
                attr.is_hole().then_some(0..u64::MAX)
            }
            (Self::Seek(offset, SeekWhat::Data), Ok(CallOutcome::Answer(Answer::Offset(data)))) => {
                (data > offset).then_some(*offset..*data)
            }
            (Self::Seek(offset, SeekWhat::Data), Err(Errno::ENXIO)) => Some(*offset..u64::MAX),
            (Self::Seek(_, SeekWhat::Hole), Ok(CallOutcome::Answer(Answer::Offset(hole)))) => {
                Some(*hole..u64::MAX)
            }
            _ => None,
        }
    }
}

impl<C: Calls<FuseFrontend> + 'static> Mounted<C> {
    /// The form of a reply: [`Form::Mapped`] if the result depends on dirty pages.
    pub(super) fn mapped_form(&self, request: &fuse::Request<'_>, call: &Call<'_>, form: Form) -> Form {
        let (ino, unique) = (Ino(request.node), request.unique);
        let question = match (call, &form) {
            (Call::Request(Request::GetAttr { .. }), Form::Plain | Form::StatX) => Question::Blocks,
            (Call::Range(RangeCall { op: RangeOp::Seek { offset, what }, .. }), _) => {
                Question::Seek(*offset, *what)
            }
            _ => return form,
        };
        if !self.calls.frontend().openings.may_be_mapped(ino) {
            return form;
        }
        let (calls, caller, call) = (Arc::clone(&self.calls), caller(request), call.clone().into_owned());
        let again = Box::new(move |ticket| calls.call(unique, caller, call, ticket));
        Form::Mapped(Box::new(Mapped { ino, question, form, again }))
    }
}

impl FuseFrontend {
    /// Checks the result of a request; returns its ticket unless the request is executed again.
    pub(super) fn complete_mapped(
        &self,
        ticket: Ticket,
        outcome: &Result<CallOutcome<'_>, Errno>,
    ) -> Option<Ticket> {
        let Ticket { reply, form, begun } = ticket;
        let Form::Mapped(mapped) = form else { return Some(Ticket { reply, form, begun }) };
        let Mapped { ino, question, form, again } = *mapped;
        let ticket = Ticket { reply, form, begun };
        let Some(hole) = question.hole(outcome) else { return Some(ticket) };
        self.after_written_back(ino, hole, move || again(ticket));
        None
    }
}
