//! Sevilla 6.4.1: the time of each mechanism of consistency and durability, and of levels that are
//! composed of them, on mounts of this machine.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;

use crate::cluster::{LocalCluster, Wanted};
use crate::error::PaperError;
use crate::outcome::{Claim, ExperimentResult, Table};
use crate::{Experiment, Setting, Testbed};

pub(crate) const FIG6_6: Experiment = Experiment {
    id: "sevilla-fig6.6",
    title: "Overhead of mechanisms and of their compositions",
    places: &[Testbed::Machine],
    run,
};

/// A mount of a cluster.
pub(super) struct ClusterMount<'a> {
    program: &'a Path,
    pub at: PathBuf,
}

/// Seconds of the stages of a decoupled namespace.
struct Stages {
    create: f64,
    sync: f64,
    merge: f64,
}

impl<'a> ClusterMount<'a> {
    pub fn new(program: &'a Path, url: &str, at: PathBuf, options: &str) -> Result<Self, PaperError> {
        std::fs::create_dir(&at)?;
        let mount = Self { program, at };
        mount.espalier(&["mount", url], &["-o", options])?;
        Ok(mount)
    }

    /// Runs `espalier BEFORE... MOUNT AFTER...`.
    fn espalier(&self, before: &[&str], after: &[&str]) -> Result<(), PaperError> {
        self.on(&self.at, before, after)
    }

    /// Runs `espalier BEFORE... PATH AFTER...`.
    pub fn on(&self, path: &Path, before: &[&str], after: &[&str]) -> Result<(), PaperError> {
        let mut command = Command::new(self.program);
        let output = command.args(before).arg(path).args(after).stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(());
        }
        let (verb, said) = (before.first().unwrap_or(&""), String::from_utf8_lossy(&output.stderr));
        Err(PaperError::Cluster(format!("{verb} {}: {}", path.display(), said.trim())))
    }

    /// Creates files in a directory of its own with this durability, syncs and merges it.
    fn decoupled(&self, setting: &Setting<'_>, durability: &str, files: u32) -> Result<Stages, PaperError> {
        let dir = self.at.join(durability);
        std::fs::create_dir(&dir)?;
        self.on(&dir, &["policy"], &["--set", &format!("durability={durability}")])?;
        self.on(&dir, &["decouple"], &[])?;
        let create = create(setting, &dir, files);
        let timed = |verb: &str| {
            let started = Instant::now();
            self.on(&dir, &[verb], &[])?;
            Ok::<_, PaperError>(started.elapsed().as_secs_f64())
        };
        let sync = timed("sync");
        // Also after an error: the namespace would stay mounted.
        let merge = timed("merge");
        Ok(Stages { create: create?, sync: sync?, merge: merge? })
    }
}

impl Drop for ClusterMount<'_> {
    fn drop(&mut self) {
        let _ = self.espalier(&["umount", "--force"], &[]);
    }
}

/// Seconds that creates in a directory of a mount take.
pub(super) fn create(setting: &Setting<'_>, dir: &Path, files: u32) -> Result<f64, PaperError> {
    let started = Instant::now();
    for number in 0..files {
        if number % 1000 == 0 {
            setting.check_stop()?;
        }
        File::create_new(dir.join(OsStr::new(&number.to_string())))?;
    }
    Ok(started.elapsed().as_secs_f64())
}

/// A cluster of one server.
pub(super) fn one_server(setting: &Setting<'_>) -> Result<LocalCluster, PaperError> {
    let wanted =
        Wanted { servers: 1, ranks: 1, insecure: true, settings: toml::Table::new(), in_memory: false };
    LocalCluster::start(setting.program, &wanted)
}

fn run(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let files = if setting.quick { 2_000 } else { 100_000 };
    let cluster = one_server(setting)?;
    let dir: TempDir = tempfile::tempdir()?;
    let mount = |name: &str, options| {
        ClusterMount::new(setting.program, cluster.url(), dir.path().join(name), options)
    };
    // No lease, so each create is sent: what the thesis calls RPCs.
    let sending = mount("rpcs", "insecure,cache=none")?;
    let rpcs_dir = sending.at.join("rpcs");
    std::fs::create_dir(&rpcs_dir)?;
    let rpcs = create(setting, &rpcs_dir, files)?;
    // The server journals each change; what remains is to make that durable.
    let began = Instant::now();
    sending.on(&rpcs_dir, &["sync"], &[])?;
    let stream = began.elapsed().as_secs_f64();
    drop(sending);
    let mount = mount("decoupled", "insecure")?;
    let none = mount.decoupled(setting, "none", files)?;
    let local = mount.decoupled(setting, "local", files)?;
    let global = mount.decoupled(setting, "global", files)?;
    let nonvolatile = nonvolatile(setting, mount, &cluster, &dir.path().join("namespace"), files)?;
    Ok(result(files, (rpcs, stream), nonvolatile, [&none, &local, &global]))
}

/// Seconds to apply a namespace with as many files to the stores of the stopped server.
fn nonvolatile(
    setting: &Setting<'_>,
    mount: ClusterMount<'_>,
    cluster: &LocalCluster,
    store: &Path,
    files: u32,
) -> Result<f64, PaperError> {
    let dir = mount.at.join("nonvolatile");
    std::fs::create_dir(&dir)?;
    let place = store.display().to_string();
    mount.on(&dir, &["decouple"], &["--store", &place])?;
    let created = create(setting, &dir, files);
    mount.on(&dir, &["umount"], &[])?;
    created?;
    mount.espalier(&["umount"], &[])?;
    cluster.stop()?;
    let began = Instant::now();
    mount.on(&cluster.dir(), &["journal", "apply", "--nonvolatile", &place], &[])?;
    Ok(began.elapsed().as_secs_f64())
}

fn result(
    files: u32,
    (rpcs, stream): (f64, f64),
    nonvolatile: f64,
    [none, local, global]: [&Stages; 3],
) -> ExperimentResult {
    let written = |stages: &Stages| stages.create + stages.sync;
    // The journal is written while changes are appended: its cost is that above memory's.
    let persist = |stages: &Stages| (written(stages) - written(none)).max(0.0);
    let rows = [
        ("append client journal", none.create, "1"),
        ("RPCs", rpcs, "17.9"),
        ("volatile apply", none.merge, "0.9"),
        ("nonvolatile apply", nonvolatile, "78"),
        ("stream", stream, "2.4"),
        ("local persist", persist(local), ""),
        ("global persist", persist(global), ""),
        ("POSIX: RPCs+stream", rpcs + stream, ""),
        ("BatchFS: weak, local", written(local) + local.merge, ""),
        ("DeltaFS: invisible, local", written(local), ""),
        ("RAMDisk: invisible, none", none.create, ""),
    ];
    let shown = |(name, seconds, paper): (&str, f64, &str)| {
        let overhead = seconds / none.create;
        vec![name.to_owned(), format!("{seconds:.2}"), format!("{overhead:.2}"), paper.to_owned()]
    };
    let rows = rows.into_iter().map(shown).collect();
    let columns = vec!["mechanism", "seconds", "normalised to append", "paper"];
    let claim = |text: &str, paper: &str, larger: f64, smaller: f64| Claim {
        text: text.into(),
        paper: paper.into(),
        ours: format!("{:.1} times", larger / smaller),
        holds: larger > smaller,
    };
    let (batch, delta) = (written(local) + local.merge, written(local));
    let claims = vec![
        claim("RPCs take longer than appending to the client's journal", "17.9 times", rpcs, none.create),
        claim("RPCs take longer than volatile apply", "19.9 times", rpcs, none.merge),
        claim("nonvolatile apply takes longer than volatile apply", "87 times", nonvolatile, none.merge),
        claim("POSIX semantics take longer than BatchFS's", "", rpcs, batch),
        claim("POSIX semantics take longer than DeltaFS's", "", rpcs, delta),
    ];
    let setup = format!(
        "One client creates {files} files in a directory. RPCs: a mount without leases, so each create is sent; the server \
         journals it. Stream: the sync that remains at the end, since the journal cannot be turned off. Append: a decoupled namespace in \
         memory. Persist: the time to create and sync in one on the disk, or at the server, above that in memory. Volatile apply: \
         `espalier merge`, with its checks. Nonvolatile apply: `espalier journal apply` on the store of the stopped server."
    );
    let tables = vec![Table { name: "mechanisms", columns, rows }];
    ExperimentResult { setup, claims, tables, ..ExperimentResult::default() }
}
