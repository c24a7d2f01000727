//! Creation of files in one shared directory, or in one per process; optionally followed by `stat`
//! and removal (wu, chapter 5).

use serde::Deserialize;

use super::script::{ScriptStep, make_file, only_if, script};
use super::workload::{Member, range};
use super::{Op, OpenFlags};
use crate::Bytes;
use crate::process::WORKING_DIR;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Create {
    /// Number of files per process.
    files: u64,
    /// All processes use one directory.
    shared: bool,
    /// Number of directories in the shared one, which each process uses in turn; 0: it uses the
    /// shared one itself.
    directories: u64,
    /// The first process makes the directories of all. Otherwise clients compete for leases on the
    /// parent directory and repeat lookups for a while.
    one_makes: bool,
    /// Processes change to their directory, so it is not looked up again.
    enter: bool,
    bytes: Bytes,
    /// Files are opened at creation and then closed; otherwise they remain empty.
    open: bool,
    stat: bool,
    remove: bool,
    /// Clients drop their caches before `stat`.
    fresh: bool,
}

impl Default for Create {
    fn default() -> Self {
        Self {
            files: 1000,
            shared: true,
            directories: 0,
            one_makes: false,
            enter: false,
            bytes: Bytes(0),
            open: true,
            stat: false,
            remove: false,
            fresh: false,
        }
    }
}

impl Create {
    pub(super) fn check(&self) -> Result<(), String> {
        range("files", self.files, 1, 1 << 32)?;
        if !self.open && self.bytes.0 > 0 {
            return Err("`bytes` are written to files that are opened: leave `open = false` out".into());
        }
        if self.directories > 0 && (!self.shared || self.enter) {
            return Err("`directories` are in the shared directory: leave `shared` and `enter` out".into());
        }
        range("directories", self.directories, 0, 1 << 20)?;
        range("bytes", self.bytes.0, 0, 1 << 40)
    }

    pub(super) fn script(&self, member: &Member) -> impl Iterator<Item = ScriptStep> + use<> {
        let Self { files, shared, directories, one_makes, enter, bytes, open, stat, remove, fresh } = *self;
        let dir = if shared { member.crew.dir.clone() } else { member.own() };
        let dirs = match (one_makes, member.is_first()) {
            (false, _) => vec![member.own()],
            (true, true) => (0..member.crew.processes).map(|process| member.path(process)).collect(),
            (true, false) => Vec::new(),
        };
        let number = member.number;
        let entered = Op::open(WORKING_DIR, dir.clone(), OpenFlags::PATH | OpenFlags::DIRECTORY);
        let paths = move || {
            let dir = if enter { String::new() } else { format!("{dir}/") };
            (0..files).map(move |file| match directories {
                0 => format!("{dir}{number}.{file}"),
                count => format!("{dir}d{}/{number}.{file}", file % count),
            })
        };
        let in_shared = (0..directories).map(|dir| Op::mkdir(member.path(format_args!("d{dir}"))).into());
        let in_shared: Vec<ScriptStep> = in_shared.collect();
        let (made, stats, removes) = (paths.clone(), paths.clone(), paths.clone());
        begin(member)
            .chain(only_if(
                !shared,
                dirs.into_iter().map(|dir| ScriptStep::Do(Op::mkdir(dir))).chain([ScriptStep::Barrier]),
            ))
            .chain(only_if(member.is_first(), in_shared))
            .chain(only_if(directories > 0, [ScriptStep::Barrier]))
            .chain(only_if(enter, [entered.into()]))
            .chain(only_if(open, paths().flat_map(move |path| make_file(path, bytes.0, 1 << 20))))
            .chain(only_if(!open, made().map(|path| Op::mknod(path).into())))
            .chain(only_if(stat && fresh, [ScriptStep::Barrier, ScriptStep::Forget]))
            .chain(only_if(stat, after_barrier(stats().map(Op::stat))))
            .chain(only_if(remove, after_barrier(removes().map(Op::unlink))))
    }
}

/// The first process makes the shared directory.
pub(super) fn begin(member: &Member) -> impl Iterator<Item = ScriptStep> + use<> {
    let dir = member.crew.dir.clone();
    only_if(member.is_first(), [Op::MkDir { path: dir.into(), mode: 0o1777 }.into()])
        .chain(script([ScriptStep::Barrier]))
}

pub(super) fn after_barrier(ops: impl Iterator<Item = Op>) -> impl Iterator<Item = ScriptStep> {
    script([ScriptStep::Barrier]).chain(ops.map(ScriptStep::Do))
}

/// Opens a file for reading and writing, creating it if absent.
pub(super) fn open_new(file: u32, path: String) -> Op {
    Op::open(file, path, OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE)
}
