//! Translates system calls to operations.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use espalier_proto::{Access, Errno, RenameFlags, SetAttr, SetTime, Time};

use super::line::{Call, Returned, unquote};
use super::state::{Descriptor, Located, StraceState, descriptor};
use crate::source::{Op, OpenFlags, Target};
use crate::trace::before::Observed;
use crate::trace::{BadLine, Expected};

/// An operation translated from a call.
pub(super) struct Done {
    pub(super) op: Op,
    pub(super) expected: Expected,
    pub(super) observed: Option<Observed>,
}

/// The supported calls.
const CALLS: &[&str] = &[
    "access",
    "chdir",
    "chmod",
    "chown",
    "clone",
    "clone3",
    "close",
    "creat",
    "dup",
    "dup2",
    "dup3",
    "execve",
    "exit",
    "exit_group",
    "faccessat",
    "faccessat2",
    "fchdir",
    "fchmod",
    "fchmodat",
    "fchown",
    "fchownat",
    "fcntl",
    "fdatasync",
    "fork",
    "fstat",
    "fsync",
    "ftruncate",
    "futimesat",
    "getdents",
    "getdents64",
    "lchown",
    "link",
    "linkat",
    "lseek",
    "lstat",
    "mkdir",
    "mkdirat",
    "mknod",
    "mknodat",
    "newfstatat",
    "open",
    "openat",
    "openat2",
    "pread64",
    "preadv",
    "preadv2",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "read",
    "readlink",
    "readlinkat",
    "readv",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "stat",
    "statx",
    "symlink",
    "symlinkat",
    "truncate",
    "unlink",
    "unlinkat",
    "utime",
    "utimensat",
    "utimes",
    "vfork",
    "write",
    "writev",
    "execveat",
];

/// Linux's limit for one read or write.
const MOST_BYTES: u64 = 0x7fff_f000;

/// Two paths below the replayed directory.
struct Pair {
    from: Vec<u8>,
    to: Vec<u8>,
}

/// Reader of a call's arguments.
struct ArgReader<'a> {
    state: &'a mut StraceState,
    call: &'a Call,
    arguments: Vec<&'a str>,
}

/// The operation of a call, if it is replayed; updates the state for later calls.
pub(super) fn translate(state: &mut StraceState, call: &Call) -> Result<Option<Done>, BadLine> {
    if !CALLS.contains(&call.name.as_str()) {
        state.skip(&call.name);
        return Ok(None);
    }
    let (arguments, returned) = call.parse()?;
    let (expected, value) = match &returned {
        Returned::Nothing => return Ok(None),
        Returned::Value(value) => (Expected::Success, *value),
        Returned::Errno(name) => (error(name), -1),
    };
    let mut reader = ArgReader { state, call, arguments };
    if reader.descriptors(value)? {
        return Ok(None);
    }
    match reader.op(value)? {
        Some((op, observed)) => Ok(Some(Done { op, expected, observed })),
        None => {
            state.skip(format!("{} outside", call.name));
            Ok(None)
        }
    }
}

fn error(name: &str) -> Expected {
    static ALL: LazyLock<BTreeMap<String, Errno>> = LazyLock::new(|| {
        let all = (1..=133).map(Errno::from_raw);
        all.map(|errno| (format!("{errno:?}"), errno)).collect()
    });
    ALL.get(name).map_or(Expected::AnyError, |errno| Expected::Error(*errno))
}

impl ArgReader<'_> {
    fn text(&self, at: usize) -> Result<&str, BadLine> {
        self.arguments.get(at).copied().ok_or_else(|| self.call.bad(format!("it has no argument {}", at + 1)))
    }

    fn number(&self, at: usize) -> Result<u64, BadLine> {
        let text = self.text(at)?;
        number(text).ok_or_else(|| self.call.bad(format!("`{text}` is no number")))
    }

    fn has(&self, at: usize, flag: &str) -> bool {
        self.text(at).is_ok_and(|text| text.split('|').any(|other| other == flag))
    }

    /// The location of a path, relative to the directory in argument `dir`. Unreadable paths are
    /// outside.
    fn located(&mut self, dir: Option<usize>, at: usize) -> Result<Located, BadLine> {
        let Some(path) = unquote(self.text(at)?) else { return Ok(Located::Outside) };
        let dir = dir.map(|dir| self.arguments[dir]);
        self.state.located(self.call, dir, &path)
    }

    fn path(&mut self, dir: Option<usize>, at: usize) -> Result<Option<Vec<u8>>, BadLine> {
        Ok(match self.located(dir, at)? {
            Located::Path(path) => Some(path),
            Located::File(_) | Located::Outside => None,
        })
    }

    fn fd(&self, at: usize) -> Result<i64, BadLine> {
        let text = self.text(at)?;
        match descriptor(text) {
            Some((Some(number), _)) => Ok(number),
            _ => Err(self.call.bad(format!("`{text}` is no descriptor"))),
        }
    }

    fn file(&mut self, at: usize) -> Result<Option<u32>, BadLine> {
        let number = self.fd(at)?;
        Ok(match self.state.file(self.call.pid, number) {
            Located::File(file) => Some(file),
            Located::Path(_) | Located::Outside => None,
        })
    }

    /// The target of a path; the descriptor itself if the path is empty (`AT_EMPTY_PATH`) or NULL.
    fn target(&mut self, dir: Option<usize>, at: usize, follows: bool) -> Result<Option<Target>, BadLine> {
        if let Some(dir) = dir
            && matches!(self.text(at)?, "\"\"" | "NULL")
        {
            return Ok(self.file(dir)?.map(Target::File));
        }
        Ok(match self.located(dir, at)? {
            Located::Path(path) if follows => Some(Target::Path(path)),
            Located::Path(path) => Some(Target::Link(path)),
            Located::File(file) => Some(Target::File(file)),
            Located::Outside => None,
        })
    }

    /// Handles calls that concern only processes and descriptors. Returns true if it was one.
    fn descriptors(&mut self, value: i64) -> Result<bool, BadLine> {
        let pid = self.call.pid;
        match self.call.name.as_str() {
            "clone" | "clone3" | "fork" | "vfork" | "exit" | "exit_group" => {}
            "execve" | "execveat" if value == 0 => self.state.executed(pid),
            "execve" | "execveat" => {}
            "chdir" if value == 0 => {
                if let Some(path) = unquote(self.text(0)?) {
                    let dir = self.state.absolute(self.call, None, &path)?;
                    self.state.set_working_dir(pid, dir);
                }
            }
            "fchdir" if value == 0 => {
                let observed = descriptor(self.text(0)?).and_then(|(_, path)| path);
                let number = self.fd(0)?;
                let known = self.state.descriptor(pid, number).map(|descriptor| descriptor.path.clone());
                if let Some(dir) = observed.or(known) {
                    self.state.set_working_dir(pid, dir);
                }
            }
            "chdir" | "fchdir" => {}
            "dup" | "dup2" | "dup3" => self.duplicate(value, self.has(2, "O_CLOEXEC"))?,
            "fcntl" if self.text(1)?.starts_with("F_DUPFD") => {
                self.duplicate(value, self.text(1)? == "F_DUPFD_CLOEXEC")?;
            }
            "fcntl" => {
                let (number, ends_at_exec) = (self.fd(0)?, self.has(2, "FD_CLOEXEC"));
                if value == 0
                    && self.text(1)? == "F_SETFD"
                    && let Some(descriptor) = self.state.descriptor(pid, number)
                {
                    descriptor.ends_at_exec = ends_at_exec;
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn duplicate(&mut self, value: i64, ends_at_exec: bool) -> Result<(), BadLine> {
        let (pid, from) = (self.call.pid, self.fd(0)?);
        if value < 0 || value == from {
            return Ok(());
        }
        match self.state.descriptor(pid, from).cloned() {
            Some(old) => self.state.opened(pid, value, Descriptor { ends_at_exec, ..old }),
            None => drop(self.state.closed(pid, value)),
        }
        Ok(())
    }

    /// The operation, unless its files are outside.
    fn op(&mut self, value: i64) -> Result<Option<(Op, Option<Observed>)>, BadLine> {
        let is_done = value >= 0;
        let name = self.call.name.as_str();
        let observed = |observed: Option<Observed>| move |op: Op| (op, observed);
        let plain = observed(None);
        Ok(match name {
            "open" | "openat" | "openat2" | "creat" => self.open(value)?.map(plain),
            "close" => {
                let number = self.fd(0)?;
                self.state.closed(self.call.pid, number).map(|file| plain(Op::Close { file }))
            }
            "read" | "pread64" | "readv" | "preadv" | "preadv2" => {
                let (offset, size) = self.extent(name.starts_with('p'))?;
                let read = observed(is_done.then_some(Observed::Read(value as u64)));
                self.file(0)?.map(|file| read(Op::Read { file, offset, size }))
            }
            "write" | "pwrite64" | "writev" | "pwritev" | "pwritev2" => {
                let (offset, size) = self.extent(name.starts_with('p'))?;
                self.file(0)?.map(|file| plain(Op::Write { file, offset, size }))
            }
            // The return value of a successful seek is the new offset; a failed one has no effect.
            "lseek" if is_done => self.file(0)?.map(|file| plain(Op::Seek { file, offset: value as u64 })),
            "lseek" => None,
            "getdents" | "getdents64" => {
                // Entries per page, with names of about 16 bytes.
                let limit = (self.number(2)? / 40).clamp(1, 1 << 16) as u32;
                self.file(0)?.map(|file| plain(Op::List { file, limit, plus: false }))
            }
            "fsync" | "fdatasync" => self.file(0)?.map(|file| plain(Op::Sync { file })),
            "stat" | "lstat" | "fstat" | "newfstatat" | "statx" => self.stat(is_done)?,
            "access" | "faccessat" | "faccessat2" => {
                let dir = (name != "access").then_some(0);
                let at = usize::from(dir.is_some());
                let want = self.text(at + 1)?;
                let flags = [("R_OK", Access::READ), ("W_OK", Access::WRITE), ("X_OK", Access::EXEC)];
                let requested =
                    flags.into_iter().filter(|(name, _)| want.split('|').any(|other| other == *name));
                let want = requested.fold(Access::empty(), |all, (_, flag)| all | flag);
                self.path(dir, at)?.map(|path| plain(Op::Access { path, want }))
            }
            "chmod" | "fchmod" | "fchmodat" | "chown" | "lchown" | "fchown" | "fchownat" | "truncate"
            | "ftruncate" | "utime" | "utimes" | "futimesat" | "utimensat" => self.set_attr()?.map(plain),
            "mkdir" => {
                let mode = self.number(1)? as u32;
                self.path(None, 0)?.map(|path| plain(Op::MkDir { path, mode }))
            }
            "mkdirat" => {
                let mode = self.number(2)? as u32;
                self.path(Some(0), 1)?.map(|path| plain(Op::MkDir { path, mode }))
            }
            "mknod" | "mknodat" => {
                let dir = (name == "mknodat").then_some(0);
                let at = usize::from(dir.is_some());
                let mode = self.text(at + 1)?;
                let (kind, perm) = mode.rsplit_once('|').unwrap_or(("S_IFREG", mode));
                // Devices, fifos and sockets are not replayed.
                if !kind.contains("S_IFREG") {
                    return Ok(None);
                }
                let mode = number(perm).unwrap_or(0o666) as u32;
                self.path(dir, at)?.map(|path| plain(Op::MkNod { path, mode }))
            }
            "rmdir" => self.path(None, 0)?.map(|path| plain(Op::RmDir { path })),
            "unlink" => self.path(None, 0)?.map(|path| plain(Op::Unlink { path })),
            "unlinkat" => {
                let removes_directory = self.has(2, "AT_REMOVEDIR");
                let op = |path| if removes_directory { Op::RmDir { path } } else { Op::Unlink { path } };
                self.path(Some(0), 1)?.map(|path| plain(op(path)))
            }
            "rename" => {
                self.both((None, 0), (None, 1))?.map(|paths| plain(rename(paths, RenameFlags::empty())))
            }
            "renameat" | "renameat2" => {
                let names = [
                    ("RENAME_NOREPLACE", RenameFlags::NOREPLACE),
                    ("RENAME_EXCHANGE", RenameFlags::EXCHANGE),
                ];
                let flags = names.into_iter().filter(|(name, _)| self.has(4, name));
                let flags = flags.fold(RenameFlags::empty(), |all, (_, flag)| all | flag);
                self.both((Some(0), 1), (Some(2), 3))?.map(|paths| plain(rename(paths, flags)))
            }
            "link" => self.both((None, 0), (None, 1))?.map(|Pair { from, to }| plain(Op::Link { from, to })),
            "linkat" => {
                self.both((Some(0), 1), (Some(2), 3))?.map(|Pair { from, to }| plain(Op::Link { from, to }))
            }
            "symlink" => self.symlink(None, 1)?.map(plain),
            "symlinkat" => self.symlink(Some(1), 2)?.map(plain),
            "readlink" | "readlinkat" => {
                let dir = (name == "readlinkat").then_some(0);
                let at = usize::from(dir.is_some());
                let target = if is_done { unquote(self.text(at + 1)?) } else { None };
                let target = match target {
                    Some(target) => Some(Observed::Target(self.link_target(target)?)),
                    None => None,
                };
                self.path(dir, at)?.map(|path| observed(target)(Op::ReadLink { path }))
            }
            _ => None,
        })
    }

    fn both(
        &mut self,
        from: (Option<usize>, usize),
        to: (Option<usize>, usize),
    ) -> Result<Option<Pair>, BadLine> {
        let (from, to) = (self.path(from.0, from.1)?, self.path(to.0, to.1)?);
        Ok(from.zip(to).map(|(from, to)| Pair { from, to }))
    }

    /// Offset and size of a read or a write.
    fn extent(&self, is_at: bool) -> Result<(Option<u64>, u64), BadLine> {
        let offset = if is_at { Some(self.number(3)?) } else { None };
        let is_vector = self.call.name.trim_end_matches('2').ends_with('v');
        let size = if is_vector { vector_bytes(self.text(1)?) } else { self.number(2)? };
        Ok((offset, size.min(MOST_BYTES)))
    }

    fn open(&mut self, value: i64) -> Result<Option<Op>, BadLine> {
        let (dir, at) = if self.call.name.starts_with("openat") { (Some(0), 1) } else { (None, 0) };
        let how = self.text(at + 1)?;
        let (flags, mode) = match self.call.name.as_str() {
            "creat" => ("O_WRONLY|O_CREAT|O_TRUNC", Some(how)),
            "openat2" => (field(how, "flags=").unwrap_or_default(), field(how, "mode=")),
            _ => (how, self.arguments.get(at + 2).copied()),
        };
        let has = |flag: &str| flags.split('|').any(|other| other == flag);
        let ends_at_exec = has("O_CLOEXEC");
        // Files without names are not replayed.
        if has("O_TMPFILE") {
            return Ok(None);
        }
        let flags = open_flags(has);
        let mode = mode.and_then(number).unwrap_or(0o666) as u32;
        let Some(path) = self.path(dir, at)? else { return Ok(None) };
        let file = self.state.next_file();
        if value >= 0 {
            let name = unquote(self.text(at)?).unwrap_or_default();
            let dir = dir.map(|dir| self.arguments[dir]);
            let absolute = self.state.absolute(self.call, dir, &name)?;
            self.state.opened(self.call.pid, value, Descriptor { file, path: absolute, ends_at_exec });
        }
        Ok(Some(Op::Open { file, path, flags, mode }))
    }

    fn stat(&mut self, is_done: bool) -> Result<Option<(Op, Option<Observed>)>, BadLine> {
        let (target, answer) = match self.call.name.as_str() {
            "fstat" => (self.file(0)?.map(Target::File), 1),
            "stat" => (self.target(None, 0, true)?, 1),
            "lstat" => (self.target(None, 0, false)?, 1),
            "statx" => (self.target(Some(0), 1, !self.has(2, "AT_SYMLINK_NOFOLLOW"))?, 4),
            _ => (self.target(Some(0), 1, !self.has(3, "AT_SYMLINK_NOFOLLOW"))?, 2),
        };
        let observed = if is_done { stat_of(self.text(answer)?) } else { None };
        Ok(target.map(|target| (Op::Stat { target }, observed)))
    }

    fn set_attr(&mut self) -> Result<Option<Op>, BadLine> {
        let none = SetAttr::default();
        let name = self.call.name.as_str();
        let has_dir = name.ends_with("at");
        let (dir, at) = if has_dir { (Some(0), 1) } else { (None, 0) };
        let set = match name {
            "chmod" | "fchmod" | "fchmodat" => {
                SetAttr { perm: Some(self.number(at + 1)? as u32 & 0o7777), ..none }
            }
            "chown" | "lchown" | "fchown" | "fchownat" => {
                let id = |text: &str| number(text).map(|id| id as u32);
                SetAttr { uid: id(self.text(at + 1)?), gid: id(self.text(at + 2)?), ..none }
            }
            "truncate" | "ftruncate" => SetAttr { size: Some(self.number(1)?), ..none },
            _ => {
                let [atime, mtime] = times(self.text(at + 1)?);
                SetAttr { atime, mtime, ..none }
            }
        };
        let follows = name != "lchown" && !(3..=4).any(|flags| self.has(flags, "AT_SYMLINK_NOFOLLOW"));
        let target = match name {
            "fchmod" | "fchown" | "ftruncate" => self.file(0)?.map(Target::File),
            _ => self.target(dir, at, follows)?,
        };
        Ok(target.map(|target| Op::SetAttr { target, set }))
    }

    fn symlink(&mut self, dir: Option<usize>, at: usize) -> Result<Option<Op>, BadLine> {
        let Some(target) = unquote(self.text(0)?) else { return Ok(None) };
        let target = self.link_target(target)?;
        Ok(self.path(dir, at)?.map(|path| Op::Symlink { target, path }))
    }

    /// The target of a symbolic link in the replay.
    fn link_target(&mut self, target: Vec<u8>) -> Result<Vec<u8>, BadLine> {
        if !target.starts_with(b"/") {
            return Ok(target);
        }
        Ok(match self.state.located(self.call, None, &target)? {
            Located::Path(path) => path,
            Located::File(_) | Located::Outside => target,
        })
    }
}

fn rename(Pair { from, to }: Pair, flags: RenameFlags) -> Op {
    Op::Rename { from, to, flags }
}

/// Parses a decimal, octal or hexadecimal number as in C.
fn number(text: &str) -> Option<u64> {
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok();
    }
    match text.strip_prefix('0') {
        Some(digits) if !digits.is_empty() => u64::from_str_radix(digits, 8).ok(),
        _ => text.parse().ok(),
    }
}

fn open_flags(has: impl Fn(&str) -> bool) -> OpenFlags {
    let names = [
        ("O_CREAT", OpenFlags::CREATE),
        ("O_EXCL", OpenFlags::EXCLUSIVE),
        ("O_TRUNC", OpenFlags::TRUNCATE),
        ("O_APPEND", OpenFlags::APPEND),
        ("O_DIRECTORY", OpenFlags::DIRECTORY),
        ("O_NOFOLLOW", OpenFlags::NO_FOLLOW),
        ("O_PATH", OpenFlags::PATH),
    ];
    let mut flags =
        names.into_iter().filter(|(name, _)| has(name)).map(|(_, flag)| flag).collect::<OpenFlags>();
    if !has("O_PATH") {
        flags.set(OpenFlags::READ, !has("O_WRONLY"));
        flags.set(OpenFlags::WRITE, has("O_WRONLY") || has("O_RDWR"));
    }
    flags
}

/// A field of a structure, up to the next field.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let rest = &text[text.find(name)? + name.len()..];
    Some(rest.split([',', '}']).next().unwrap_or(rest).trim())
}

fn vector_bytes(text: &str) -> u64 {
    let fields = text.split("iov_len=").skip(1);
    fields.filter_map(|rest| number(rest.split([',', '}']).next()?)).fold(0, u64::saturating_add)
}

fn stat_of(structure: &str) -> Option<Observed> {
    let mut mode = field(structure, "_mode=")?.split('|');
    match mode.next()? {
        "S_IFDIR" => Some(Observed::Directory),
        "S_IFLNK" => Some(Observed::Symlink),
        "S_IFREG" => {
            let bytes = field(structure, "_size=").and_then(number).unwrap_or(0);
            Some(Observed::File { bytes, perm: mode.next_back().and_then(number).map(|perm| perm as u32) })
        }
        _ => None,
    }
}

/// Access time and modification time of `utimensat` and similar calls.
fn times(text: &str) -> [Option<SetTime>; 2] {
    if text == "NULL" {
        return [Some(SetTime::Now); 2];
    }
    let words = ["UTIME_OMIT", "UTIME_NOW", "tv_sec=", "actime=", "modtime="];
    let mut places: Vec<(usize, &str)> =
        words.into_iter().flat_map(|word| text.match_indices(word).map(move |(at, _)| (at, word))).collect();
    places.sort_unstable();
    let mut times = places.into_iter().map(|(at, word)| match word {
        "UTIME_OMIT" => None,
        "UTIME_NOW" => Some(SetTime::Now),
        _ => {
            let secs = field(&text[at..], "=").and_then(|secs| secs.split('/').next()?.trim().parse().ok());
            Some(secs.map_or(SetTime::Now, |secs| SetTime::To(Time::new(secs, 0))))
        }
    });
    [times.next().flatten(), times.next().flatten()]
}
