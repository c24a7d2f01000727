//! Races in mounted directories.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags};

use super::{DIRS, How, PathIndex, REGISTER, RaceOp, Rules, Seen, Way, round};
use crate::{CaseResult, Failure, runner};

/// Executes rounds in a fresh directory of the first of `ways`, which all lead to the same
/// directory.
///
/// # Errors
/// As [`round`].
pub fn run(ways: &[PathBuf], seed: u64, rounds: u64) -> CaseResult {
    let base = ways.first().ok_or_else(|| Failure::at("no directory"))?;
    let root = runner::fresh(base, "race")?;
    let name = root.file_name().map(PathBuf::from).unwrap_or_default();
    let roots: Vec<PathBuf> = ways.iter().map(|way| way.join(&name)).collect();
    let rules = if ways.len() > 1 { Rules::SeveralMounts } else { Rules::Strict };
    let outcome = crate::model::guarded(Duration::from_secs(600), || {
        (seed..seed + rounds).try_for_each(|seed| {
            let own = root.join(format!("{seed}"));
            fs::create_dir(&own)?;
            DIRS.iter().try_for_each(|dir| fs::create_dir(own.join(dir)))?;
            fs::write(own.join(REGISTER), 0_u32.to_le_bytes())?;
            let ways = roots.iter().map(|root| Mounted::new(root.join(format!("{seed}"))));
            round(&ways.collect::<io::Result<Vec<_>>>()?, seed, rules)?;
            runner::remove(&own);
            Ok(())
        })
    });
    runner::remove(&root);
    outcome
}

struct Mounted {
    root: PathBuf,
    register: File,
}

impl Mounted {
    fn new(root: PathBuf) -> io::Result<Self> {
        let register = OpenOptions::new().read(true).write(true).open(root.join(REGISTER))?;
        Ok(Self { root, register })
    }

    fn at(&self, place: PathIndex) -> PathBuf {
        self.root.join(Path::new(&place.path()))
    }
}

impl Way for Mounted {
    fn perform(&self, op: RaceOp) -> io::Result<Seen> {
        match op {
            RaceOp::Symlink(at, token) => rustix::fs::symlink(format!("{token}"), self.at(at))?,
            RaceOp::ReadLink(at) => return fs::read_link(self.at(at)).map(|target| Seen::target(&target)),
            RaceOp::MkDir(at) => fs::create_dir(self.at(at))?,
            RaceOp::RmDir(at) => fs::remove_dir(self.at(at))?,
            RaceOp::Unlink(at) => rustix::fs::unlink(self.at(at))?,
            RaceOp::Rename(from, to, how) => {
                let flags = match how {
                    How::Plain => RenameFlags::empty(),
                    How::NoReplace => RenameFlags::NOREPLACE,
                    How::Exchange => RenameFlags::EXCHANGE,
                };
                rustix::fs::renameat_with(CWD, self.at(from), CWD, self.at(to), flags)?;
            }
            RaceOp::Read => {
                let mut bytes = [0; 4];
                self.register.read_exact_at(&mut bytes, 0)?;
                return Ok(Seen::Number(u32::from_le_bytes(bytes)));
            }
            RaceOp::Write(value) => self.register.write_all_at(&value.to_le_bytes(), 0)?,
        }
        Ok(Seen::Done)
    }
}
