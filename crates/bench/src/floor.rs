//! The floor: [`MemoryFs`] mounted in a separate process, for comparison.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

use espalier_fuse::{MountOptions, Session, Transport};
use tempfile::TempDir;

use crate::error::Error;
use crate::memory::MemoryFs;
use crate::place::BenchTarget;

/// Hidden command of the program that links this crate: it takes mount options (`-o`) and a mount
/// point, and calls [`serve_floor`].
pub const FLOOR_COMMAND: &str = "bench-floor";
const READY: &str = "ready";

/// A mounted floor. Dropping it unmounts.
pub(crate) struct Floor {
    server: Child,
    /// Standard input of the server. Its end makes the server unmount and exit, also if this
    /// process is killed.
    input: Option<ChildStdin>,
    mountpoint: TempDir,
}

impl Floor {
    /// Mounts a floor with the same options as `like`, if that is an Espalier mount.
    pub(crate) fn mount(like: &BenchTarget) -> Result<Floor, Error> {
        let mountpoint =
            TempDir::with_prefix("espalier-floor-").map_err(Error::doing("make a mount point"))?;
        let program = std::env::current_exe().map_err(Error::doing("find this program"))?;
        let mut command = Command::new(program);
        command.arg(FLOOR_COMMAND).arg(mountpoint.path());
        if like.file_system == "fuse.espalier"
            && let Some(transport) = espalier_runtime::status_of(&like.source).ok().and_then(|s| s.transport)
        {
            command.args(["-o", &format!("transport={transport}")]);
        }
        let starting = || Error::doing("start the floor");
        let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(starting())?;
        let (input, output) = (server.stdin.take(), server.stdout.take());
        let mut floor = Floor { server, input, mountpoint };
        let mut line = String::new();
        if let Some(output) = output {
            BufReader::new(output).read_line(&mut line).map_err(starting())?;
        }
        if line.trim_end() == READY {
            Ok(floor)
        } else {
            floor.end();
            Err(Error::Floor)
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.mountpoint.path()
    }

    fn end(&mut self) {
        drop(self.input.take());
        let _ = self.server.wait();
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        self.end();
        // A killed server leaves its mount behind.
        let _ = espalier_fuse::detach_dead(self.mountpoint.path());
    }
}

/// Mounts a floor, reports that on standard output, and serves it until standard input ends.
pub fn serve_floor(
    mountpoint: &Path,
    options: &MountOptions,
    transport: Option<Transport>,
    threads: usize,
) -> Result<(), Error> {
    // Detaches from the terminal, like a background mount: an interrupt there must not end the
    // floor before its files are removed.
    let _ = rustix::process::setsid();
    let options = MountOptions { subtype: "espalier-floor".into(), ..options.clone() };
    let session = Session::mount("floor", mountpoint, &options, &espalier_runtime::wanted(transport))
        .map_err(|source| Error::Mount { mountpoint: mountpoint.into(), source })?;
    let path = session.mountpoint().to_path_buf();
    std::thread::spawn(move || {
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        if espalier_fuse::unmount(&path).is_err() {
            let _ = espalier_fuse::force_unmount(&path);
        }
    });
    let mut out = io::stdout();
    writeln!(out, "{READY}")
        .and_then(|()| out.flush())
        .map_err(Error::doing("report that the floor is ready"))?;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let memory = MemoryFs::new(uid, gid, session.granted(), options.default_permissions);
    Ok(session.run(threads, Arc::new(memory))?)
}
