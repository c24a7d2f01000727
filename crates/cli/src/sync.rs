//! `espalier sync`: makes everything durable that a mounted file system has acknowledged. The kernel does not forward syncfs(2) to a
//! FUSE file system of this kind, so the mount is asked by an extended attribute.

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

use espalier_runtime::SYNC;
use rustix::fs::{CWD, Mode, OFlags, fgetxattr, openat, syncfs};
use rustix::io::Errno;

use crate::args::SyncArgs;
use crate::place::Place;
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

fn sync_one(path: &Path) -> Result<(), String> {
    // A fifo that nobody writes to must not be waited for.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(CWD, path, flags, Mode::empty()).map(File::from).map_err(text)?;
    let place = Place::of(&file).map_err(|error| error.to_string())?;
    if !place.espalier {
        return Err("it is not in a mounted Espalier file system; use sync(1)".into());
    }
    // What was written through memory maps goes from the kernel's cache to the mount. The kernel waits for that of one file only.
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
