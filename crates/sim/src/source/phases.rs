//! The nine phases of Carns et al., "Small-File Access in Parallel File Systems", section IV. Files
//! stay open from their creation to the seventh phase.

use serde::Deserialize;

use super::Op;
use super::create::{after_barrier, begin, open_new};
use super::script::{FILE, ScriptStep, list, script};
use super::workload::{Member, range};
use crate::Bytes;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Phases {
    /// Number of files per process.
    files: u32,
    bytes: Bytes,
}

impl Default for Phases {
    fn default() -> Self {
        Self { files: 1000, bytes: Bytes(8192) }
    }
}

impl Phases {
    pub(super) fn check(&self) -> Result<(), String> {
        range("files", u64::from(self.files), 1, 1 << 24)?;
        range("bytes", self.bytes.0, 1, 1 << 40)
    }

    pub(super) fn script(&self, member: &Member) -> impl Iterator<Item = ScriptStep> + use<> {
        let Self { files, bytes: Bytes(size) } = *self;
        let own = member.own();
        let path = {
            let own = own.clone();
            move |number| format!("{own}/f{number}")
        };
        let [create, stat, remove] = [0; 3].map(|_| path.clone());
        let listing = {
            let own = own.clone();
            move || {
                let stat = stat.clone();
                script([ScriptStep::Barrier])
                    .chain(list(own.clone(), false))
                    .chain((0..files).map(move |number| Op::stat(stat(number)).into()))
            }
        };
        // `FILE` stays free for the listing.
        let open = FILE + 1..FILE + 1 + files;
        begin(member)
            .chain(script([Op::mkdir(own.clone()).into()]))
            .chain(after_barrier(open.clone().map(move |file| open_new(file, create(file - FILE - 1)))))
            .chain(listing())
            .chain(after_barrier(open.clone().map(move |file| Op::Write { file, offset: Some(0), size })))
            .chain(after_barrier(open.clone().map(move |file| Op::Read { file, offset: Some(0), size })))
            .chain(listing())
            .chain(after_barrier(open.map(|file| Op::Close { file })))
            .chain(after_barrier((0..files).map(move |number| Op::unlink(remove(number)))))
            .chain(after_barrier(std::iter::once(Op::rmdir(own))))
    }
}
