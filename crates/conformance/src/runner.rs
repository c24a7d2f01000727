//! Executes the cases, each in a fresh directory and a child process.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cases::Case;
use crate::process::Child;
use crate::{CaseResult, Dir, Failure, ResourceLimits};

/// The result of a case.
pub struct CaseReport {
    pub case: &'static Case,
    pub outcome: CaseResult,
    pub seconds: f64,
}

impl CaseReport {
    pub fn passed(&self) -> bool {
        self.outcome.is_ok()
    }

    pub fn skipped(&self) -> bool {
        matches!(&self.outcome, Err(failure) if failure.skip)
    }
}

/// Creates a fresh directory that other users may traverse.
pub fn fresh(base: &Path, name: &str) -> Result<PathBuf, Failure> {
    use std::os::unix::fs::PermissionsExt;
    let path = base.join(format!("{name}.{}", std::process::id()));
    remove(&path);
    fs::create_dir(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// Removes the leftovers of a case, of any type.
pub fn remove(path: &Path) {
    let _ = fs::remove_dir_all(path);
}

pub fn run(base: &Path, case: &'static Case, limits: ResourceLimits, limit: Duration) -> CaseReport {
    let start = Instant::now();
    let outcome = (|| {
        let path = fresh(base, &format!("{}-{}", case.subject, case.name))?;
        let dir = Dir::new(path.clone(), limits);
        let outcome = Child::start(|| {
            crate::dir::umask(0o022);
            (case.run)(&dir)
        })?
        .wait_for(limit);
        remove(&path);
        if outcome.is_ok() && path.exists() {
            return Err(Failure { message: "its directory cannot be removed".into(), skip: false });
        }
        outcome
    })();
    CaseReport { case, outcome, seconds: start.elapsed().as_secs_f64() }
}
