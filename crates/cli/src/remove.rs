//! `espalier rm`: removes a directory tree by one request, if a single server has all of it.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use espalier_runtime::{NOTIFIED, REMOVE_TREE};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, XattrFlags, fgetxattr, fsetxattr, openat, unlinkat};
use rustix::io::Errno;

use crate::args::RmArgs;
use crate::place::{MountedPath, without_slashes};

pub(crate) fn rm(args: &RmArgs) -> ExitCode {
    let mut failed = false;
    for path in &args.paths {
        if let Err(why) = remove(path, args) {
            eprintln!("espalier rm: {why}");
            failed = true;
        }
    }
    ExitCode::from(u8::from(failed))
}

fn remove(operand: &Path, args: &RmArgs) -> Result<(), String> {
    let shown = operand.display();
    let cannot = |error: &dyn std::fmt::Display| format!("cannot remove '{shown}': {error}");
    let (path, had_slash) = without_slashes(operand);
    let last = path.as_os_str().as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if matches!(last, b"." | b"..") {
        return Err(format!("refusing to remove '.' or '..' directory: skipping '{shown}'"));
    }
    let kind = match path.symlink_metadata() {
        Ok(metadata) => metadata.file_type(),
        Err(error) if args.force && error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(cannot(&plain(&error))),
    };
    if !kind.is_dir() {
        if had_slash {
            return Err(cannot(&text(Errno::NOTDIR)));
        }
        return unlinkat(CWD, &path, AtFlags::empty()).map_err(|errno| cannot(&text(errno)));
    }
    if !args.recursive {
        return Err(cannot(&text(Errno::ISDIR)));
    }
    remove_tree(&path).map_err(|why| cannot(&why))
}

fn remove_tree(path: &Path) -> Result<(), String> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = match openat(CWD, path, flags, Mode::empty()) {
        Ok(dir) => File::from(dir),
        // An empty directory may be unreadable.
        Err(errno) => return unlinkat(CWD, path, AtFlags::REMOVEDIR).map_err(|_| text(errno)),
    };
    let place = MountedPath::of(&dir).map_err(|error| error.to_string())?;
    if !place.espalier {
        return Err("it is not in a mounted Espalier file system; use rm(1)".into());
    }
    if let Some(mount) = place.mounts_below.first() {
        return Err(format!("something is mounted on {}", mount.display()));
    }
    match fsetxattr(&dir, REMOVE_TREE, &[], XattrFlags::empty()) {
        Ok(()) => {}
        // Several servers share the tree.
        Err(Errno::XDEV) => return std::fs::remove_dir_all(path).map_err(|error| plain(&error)),
        Err(Errno::OPNOTSUPP) => {
            return Err("the file system was mounted by an Espalier that cannot do this; use rm(1)".into());
        }
        Err(errno) => return Err(text(errno)),
    }
    // The tree is removed even if this fails.
    let _ = fgetxattr(&dir, NOTIFIED, &mut [0; 1]);
    Ok(())
}

/// Message of an error, in the form that other programs print.
pub(crate) fn text(errno: Errno) -> String {
    let error = io::Error::from(errno).to_string();
    error.split(" (os error").next().unwrap_or(&error).to_owned()
}

/// As [`text`].
pub(crate) fn plain(error: &io::Error) -> String {
    Errno::from_io_error(error).map_or_else(|| error.to_string(), text)
}
