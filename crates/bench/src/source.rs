//! A synthetic source tree: files of a few kilobytes, about fifteen per directory.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::error::Error;
use crate::group::ProgramInput;

const FILES_OF_DIRECTORY: u64 = 15;

/// Input of a group's programs; removed when dropped.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    pub(crate) archive: Option<PathBuf>,
    pub(crate) repository: Option<PathBuf>,
    _scratch: Option<TempDir>,
}

/// Creates the input for `source` with this number of files in the directory for temporary files.
pub(crate) fn prepare(source: ProgramInput, files: u64) -> Result<Prepared, Error> {
    if source == ProgramInput::Nothing {
        return Ok(Prepared::default());
    }
    let scratch = TempDir::with_prefix("espalier-bench-").map_err(Error::doing("make a directory"))?;
    let tree = scratch.path().join("tree");
    grow(&tree, files).map_err(Error::doing(format!("make a source tree in {}", tree.display())))?;
    let mut prepared = Prepared::default();
    if source == ProgramInput::Archive {
        let archive = scratch.path().join("tree.tar");
        run(scratch.path(), "tar", &["-cf", "tree.tar", "tree"])?;
        fs::remove_dir_all(&tree).map_err(Error::doing("remove a source tree"))?;
        prepared.archive = Some(archive);
    } else {
        run(&tree, "git", &["init", "--quiet"])?;
        run(&tree, "git", &["add", "."])?;
        run(&tree, "git", &["commit", "--quiet", "--message", "A tree"])?;
        run(&tree, "git", &["gc", "--quiet"])?;
        prepared.repository = Some(tree);
    }
    prepared._scratch = Some(scratch);
    Ok(prepared)
}

/// Number of files and directories of a tree with this number of files.
pub(crate) fn entries(files: u64) -> u64 {
    let mut directories: Vec<String> = Vec::new();
    for number in (0..files).step_by(FILES_OF_DIRECTORY as usize) {
        let path = directory(number);
        directories.extend(path.match_indices('/').map(|(at, _)| path[..at].to_string()));
        directories.push(path);
    }
    directories.sort_unstable();
    directories.dedup();
    files + directories.len() as u64 + 1
}

/// Directory of the file with this number.
fn directory(number: u64) -> String {
    let directory = number / FILES_OF_DIRECTORY;
    format!("library{}/module{}/part{}", directory / 100, directory / 10 % 10, directory % 10)
}

fn grow(tree: &Path, files: u64) -> std::io::Result<()> {
    let mut random = fastrand::Rng::with_seed(1);
    for number in 0..files {
        let dir = tree.join(directory(number));
        if number % FILES_OF_DIRECTORY == 0 {
            fs::create_dir_all(&dir)?;
        }
        // Sizes from 128 bytes to 32 KiB, uniform in their logarithm.
        let size = 1_u64 << random.u64(7..15);
        let size = size + random.u64(0..size);
        let mut file = BufWriter::new(File::create(dir.join(format!("file{number}.c")))?);
        for line in 0..size.div_ceil(32) {
            writeln!(file, "line {line:5} of text {:13x}", random.u64(0..1 << 52))?;
        }
        file.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    }
    Ok(())
}

fn run(dir: &Path, program: &'static str, args: &[&str]) -> Result<(), Error> {
    let mut command = Command::new(program);
    without_configuration(&mut command);
    let status = command.args(args).current_dir(dir).stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.map_err(Error::doing(format!("run {program}")))?;
    if status.success() { Ok(()) } else { Err(Error::Program { program, status }) }
}

/// Excludes the user's configuration of git.
pub(crate) fn without_configuration(command: &mut Command) {
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    // No background work after a command has ended.
    command.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_KEY_0", "gc.auto").env("GIT_CONFIG_VALUE_0", "0");
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "bench").env(format!("GIT_{role}_EMAIL"), "bench@localhost");
    }
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(name);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn archive_entries_match_source_tree() {
        let scratch = tempfile::tempdir().unwrap();
        let tree = scratch.path().join("tree");
        grow(&tree, 1600).unwrap();
        let found = Command::new("find").arg(&tree).output().unwrap();
        assert_eq!(found.stdout.split(|b| *b == b'\n').count() as u64 - 1, entries(1600));
    }
}
