//! `espalier du` and `espalier quota`: read and set extended attributes of directories of a mounted
//! file system.

use std::fmt::{Arguments, Display};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use indicatif::HumanBytes;
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;

use crate::args::{DuArgs, QuotaArgs, QuotaCommand};

const FILES: &str = "user.espalier.rfiles";
const DIRS: &str = "user.espalier.rsubdirs";
const BYTES: &str = "user.espalier.rbytes";
const MAX_FILES: &str = "user.espalier.quota.max_files";
const MAX_BYTES: &str = "user.espalier.quota.max_bytes";

pub(crate) fn du(args: &DuArgs) -> Result<ExitCode> {
    let path = &args.path;
    let (files, directories, bytes) = (figure(path, FILES)?, figure(path, DIRS)?, figure(path, BYTES)?);
    let (max_files, max_bytes) = (limit(path, MAX_FILES)?, limit(path, MAX_BYTES)?);
    if args.json {
        let quota = serde_json::json!({ "files": max_files, "bytes": max_bytes });
        return print_text(&serde_json::json!({
            "path": path, "files": files, "directories": directories, "bytes": bytes, "quota": quota
        }));
    }
    let mut text = format!(
        "files        {files}\ndirectories  {directories}\nbytes        {bytes} ({})",
        HumanBytes(bytes)
    );
    if let Some(max) = max_files {
        text += &format!("\nquota        {} of {max} files and directories", files + directories);
    }
    if let Some(max) = max_bytes {
        text += &format!("\nquota        {bytes} of {max} bytes ({})", HumanBytes(max));
    }
    print_text(&text)
}

/// Prints to standard output. Ignores a closed pipe.
pub(crate) fn print_text(text: &dyn Display) -> Result<ExitCode> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot write"),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Prints to standard output. Ignores a closed pipe and reports other errors.
pub(crate) fn print_args(text: Arguments<'_>) {
    match write!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => eprintln!("espalier: cannot write: {error}"),
        _ => {}
    }
}

pub(crate) fn quota(args: &QuotaArgs) -> Result<ExitCode> {
    match &args.command {
        QuotaCommand::Get { path, json } => {
            // Fails with the right message for another file system or a file.
            figure(path, FILES)?;
            let (files, bytes) = (limit(path, MAX_FILES)?, limit(path, MAX_BYTES)?);
            if *json {
                return print_text(&serde_json::json!({ "path": path, "files": files, "bytes": bytes }));
            }
            let shown = |max: Option<u64>| max.map_or("no limit".into(), |max| max.to_string());
            return print_text(&format!(
                "files and directories  {}\nbytes                  {}",
                shown(files),
                shown(bytes)
            ));
        }
        QuotaCommand::Set { path, files, bytes } => {
            figure(path, FILES)?;
            for (name, max) in [(MAX_FILES, files), (MAX_BYTES, bytes)] {
                let Some(max) = max else { continue };
                setxattr(path, name, max.to_string().as_bytes(), XattrFlags::empty())
                    .map_err(|errno| refused(path, errno))?;
            }
        }
        QuotaCommand::Remove { path, files, bytes } => {
            figure(path, FILES)?;
            let both = files == bytes;
            for (name, _) in
                [(MAX_FILES, files), (MAX_BYTES, bytes)].iter().filter(|(_, this)| both || **this)
            {
                match removexattr(path, *name) {
                    Ok(()) | Err(Errno::NODATA) => {}
                    Err(errno) => return Err(refused(path, errno)),
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn figure(path: &Path, name: &str) -> Result<u64> {
    let found = limit(path, name)?;
    found.with_context(|| format!("{} is not a directory of a mounted Espalier file system", path.display()))
}

/// The number in an extended attribute; `None` if the attribute does not exist.
fn limit(path: &Path, name: &str) -> Result<Option<u64>> {
    let mut value = [0; 32];
    let text = match getxattr(path, name, &mut value) {
        Ok(length) => std::str::from_utf8(&value[..length]).unwrap_or_default(),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
        Err(errno) => return Err(errno).with_context(|| format!("cannot examine {}", path.display())),
    };
    Ok(Some(text.parse().with_context(|| format!("{}: {name} is not a number", path.display()))?))
}

fn refused(path: &Path, errno: Errno) -> anyhow::Error {
    if matches!(errno, Errno::PERM | Errno::ACCESS) {
        return anyhow::anyhow!("only root may change the quota of {}", path.display());
    }
    anyhow::Error::new(errno).context(format!("cannot change the quota of {}", path.display()))
}
