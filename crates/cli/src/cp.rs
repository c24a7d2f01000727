//! `espalier cp`: the file system copies the contents of directories. This program copies what the
//! file system leaves: big files, hard links with --archive, existing targets, and everything if
//! several servers share the tree. Behaviour and messages follow cp(1).

mod file;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use espalier_runtime::{CopyHow, CopyKey, CopyReport};
use rustix::fs::{CWD, Mode, OFlags, XattrFlags, fchmod, fgetxattr, fsetxattr, mkdirat, openat, syncfs};
use rustix::io::Errno;

use crate::args::CpArgs;
use crate::place::{MountedPath, without_slashes};
use crate::remove::{plain, text};

type CopyResult = Result<(), String>;

pub(crate) fn cp(args: &CpArgs) -> ExitCode {
    let umask = rustix::process::umask(Mode::empty());
    rustix::process::umask(umask);
    let mut copier = Copier {
        recursive: args.recursive || args.archive,
        how: CopyHow { preserve: args.archive, umask: umask.as_raw_mode() },
        links: HashMap::new(),
        failed: false,
    };
    copier.operands(&args.paths);
    ExitCode::from(u8::from(copier.failed))
}

struct Copier {
    recursive: bool,
    how: CopyHow,
    /// Path of the first copy of each file with several names.
    links: HashMap<(u64, u64), PathBuf>,
    failed: bool,
}

fn open_dir(path: &Path) -> rustix::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).map(File::from)
}

impl Copier {
    fn operands(&mut self, paths: &[PathBuf]) {
        let Some((target, sources)) = paths.split_last() else { return };
        let into = target.metadata().is_ok_and(|metadata| metadata.is_dir());
        if sources.len() > 1 && !into {
            return self.fail(format!("target '{}' is not a directory", target.display()));
        }
        for source in sources {
            // A trailing slash makes a symbolic link stand for its target directory.
            let (path, had_slash) = without_slashes(source);
            let path = if had_slash && path.is_symlink() { path.join("") } else { path };
            let last = without_slashes(source).0;
            let last = last.as_os_str().as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            let last = if last == b".." { b"." } else { last };
            let to = if into { target.join(OsStr::from_bytes(last)) } else { without_slashes(target).0 };
            let outcome = check_operand(&path, &to).and_then(|()| self.copy(&path, &to));
            if let Err(why) = outcome {
                self.fail(why);
            }
        }
    }

    fn fail(&mut self, why: String) {
        eprintln!("espalier cp: {why}");
        self.failed = true;
    }

    fn copy(&mut self, from: &Path, to: &Path) -> CopyResult {
        let metadata = from.symlink_metadata();
        let metadata =
            metadata.map_err(|error| format!("cannot stat '{}': {}", from.display(), plain(&error)))?;
        if metadata.is_dir() {
            return self.copy_dir(from, &metadata, to);
        }
        self.copy_file(from, &metadata, to)
    }

    fn copy_dir(&mut self, from: &Path, metadata: &Metadata, to: &Path) -> CopyResult {
        if !self.recursive {
            return Err(format!("-r not specified; omitting directory '{}'", from.display()));
        }
        let cannot = |action: &str, path: &Path, errno| {
            format!("cannot {action} '{}': {}", path.display(), text(errno))
        };
        let mode = metadata.mode() & 0o1777;
        let is_new = match to.symlink_metadata() {
            Err(_) => {
                // Owner access is needed to fill the directory.
                mkdirat(CWD, to, Mode::from_raw_mode(mode | 0o700))
                    .map_err(|errno| cannot("create directory", to, errno))?;
                true
            }
            Ok(there) if there.is_dir() || to.is_dir() => false,
            Ok(_) => {
                let (to, from) = (to.display(), from.display());
                return Err(format!("cannot overwrite non-directory '{to}' with directory '{from}'"));
            }
        };
        let target = open_dir(to).map_err(|errno| cannot("access", to, errno))?;
        // Apply the attributes even if an entry cannot be read.
        let outcome = match open_dir(from) {
            Ok(source) => self.copy_entries((from, &source), (to, &target)),
            Err(errno) => Err(cannot("access", from, errno)),
        };
        if self.how.preserve {
            return file::set_attributes(from, metadata, to).and(outcome);
        }
        if is_new && mode & 0o700 != 0o700 {
            let mode = metadata.mode() & 0o1777 & !self.how.umask;
            fchmod(&target, Mode::from_raw_mode(mode))
                .map_err(|errno| cannot("set permissions for", to, errno))?;
        }
        outcome
    }

    /// Requests copy steps of a directory's contents from the file system, and copies what it
    /// leaves.
    fn copy_entries(&mut self, (from, source): (&Path, &File), (to, target): (&Path, &File)) -> CopyResult {
        let cannot = |errno| match errno {
            Errno::INVAL => into_itself(from, to),
            Errno::NOENT => format!("cannot copy '{}' to another file system: use cp(1)", from.display()),
            errno => format!("cannot copy '{}': {}", from.display(), text(errno)),
        };
        // Write dirty pages of memory maps back, since the file system copies only what it has
        // received.
        syncfs(source).map_err(cannot)?;
        let key = CopyKey(random().map_err(cannot)?);
        match fgetxattr(source, key.from_name(), &mut [0; 1]) {
            Ok(_) => {}
            Err(Errno::OPNOTSUPP | Errno::NODATA) => {
                let from = from.display();
                return Err(format!(
                    "'{from}' is not in a mounted Espalier file system that can do this: use cp(1)"
                ));
            }
            Err(errno) => return Err(cannot(errno)),
        }
        let mut report = vec![0; CopyReport::MAX_BYTES];
        loop {
            match fsetxattr(target, key.to_name(), &self.how.encode(), XattrFlags::empty()) {
                // Several servers share the tree.
                Err(Errno::XDEV) => return self.copy_each(from, to),
                set => set.map_err(cannot)?,
            }
            let length = fgetxattr(target, key.to_name(), &mut report[..]).map_err(cannot)?;
            let report = CopyReport::decode(&report[..length]).ok_or(Errno::PROTO).map_err(cannot)?;
            for path in &report.left {
                let path = Path::new(OsStr::from_bytes(path));
                if let Err(why) = self.copy(&from.join(path), &to.join(path)) {
                    self.fail(why);
                }
            }
            if report.done {
                return Ok(());
            }
        }
    }

    /// Copies a directory's entries one by one.
    fn copy_each(&mut self, from: &Path, to: &Path) -> CopyResult {
        let cannot = |error: &std::io::Error| format!("cannot access '{}': {}", from.display(), plain(error));
        let entries = from.read_dir().and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        for entry in entries.map_err(|error| cannot(&error))? {
            let name = entry.file_name();
            if let Err(why) = self.copy(&from.join(&name), &to.join(&name)) {
                self.fail(why);
            }
        }
        Ok(())
    }
}

fn random() -> rustix::io::Result<u128> {
    let mut bytes = [0; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if filled < bytes.len() { Err(Errno::AGAIN) } else { Ok(u128::from_ne_bytes(bytes)) }
}

fn into_itself(from: &Path, to: &Path) -> String {
    format!("cannot copy a directory, '{}', into itself, '{}'", from.display(), to.display())
}

/// Checks that source and copy are in the same mounted Espalier file system, and the copy is
/// outside the source.
fn check_operand(from: &Path, to: &Path) -> CopyResult {
    let Ok(source) = open_dir(from) else { return Ok(()) };
    if from.is_symlink() && !from.as_os_str().as_bytes().ends_with(b"/") {
        return Ok(());
    }
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(target) = open_dir(to).or_else(|_| open_dir(parent)) else { return Ok(()) };
    let failed = |error: &std::io::Error| format!("cannot examine '{}': {}", from.display(), plain(error));
    let (place, other) = (
        MountedPath::of(&source).map_err(|e| failed(&e))?,
        MountedPath::of(&target).map_err(|e| failed(&e))?,
    );
    for (place, path) in [(&place, from), (&other, to)] {
        if !place.espalier {
            return Err(format!("'{}' is not in a mounted Espalier file system: use cp(1)", path.display()));
        }
    }
    if let Some(mount) = place.mounts_below.first() {
        return Err(format!("cannot copy '{}': something is mounted on {}", from.display(), mount.display()));
    }
    let id = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
    let top = id(&source).map_err(|e| failed(&e))?;
    let mut above = target;
    let mut at = id(&above).map_err(|e| failed(&e))?;
    if at.0 != top.0 {
        let (from, to) = (from.display(), to.display());
        return Err(format!("'{from}' and '{to}' are in different file systems: use cp(1)"));
    }
    while at != top {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::PATH;
        let Ok(next) = openat(&above, "..", flags.difference(OFlags::RDONLY), Mode::empty()) else {
            return Ok(());
        };
        above = File::from(next);
        let next = id(&above).map_err(|e| failed(&e))?;
        if next == at {
            return Ok(());
        }
        at = next;
    }
    Err(into_itself(from, to))
}
