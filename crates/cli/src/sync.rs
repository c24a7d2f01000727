//! `espalier sync`: makes all acknowledged changes of a mounted file system durable. The kernel
//! does not forward syncfs(2) to a FUSE file system of this type, so the request is an extended
//! attribute.

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

use espalier_runtime::SYNC;
use rustix::fs::{CWD, Mode, OFlags, fgetxattr, openat, syncfs};
use rustix::io::Errno;

use crate::args::SyncArgs;
use crate::place::MountedPath;
use crate::remove::{plain, text};

pub(crate) fn sync(args: &SyncArgs) -> ExitCode {
    let mut failed = false;
    for path in &args.paths {
        if let Err(why) = sync_one(path) {
            eprintln!("espalier sync: cannot sync '{}': {why}", path.display());
            failed = true;
        }
    }
    ExitCode::from(u8::from(failed))
}

pub(crate) fn sync_one(path: &Path) -> Result<(), String> {
    // Do not block on a fifo without a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(CWD, path, flags, Mode::empty()).map(File::from).map_err(text)?;
    let place = MountedPath::of(&file).map_err(|error| error.to_string())?;
    if !place.espalier {
        return Err("it is not in a mounted Espalier file system; use sync(1)".into());
    }
    // Write data of memory maps back to the mount. The kernel waits only for this file's data.
    syncfs(&file).map_err(text)?;
    if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        file.sync_all().map_err(|error| plain(&error))?;
    }
    match fgetxattr(&file, SYNC, &mut [0; 1]) {
        Ok(_) => Ok(()),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => {
            Err("the file system was mounted by an Espalier that cannot do this".into())
        }
        Err(errno) => Err(text(errno)),
    }
}
