//! The command line. Help, completions and the manual page all come from here.

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueHint};

use crate::bench::{BenchArgs, FloorArgs};
use crate::list::LsArgs;
use crate::paper::PaperArgs;
use crate::sim::SimArgs;
use crate::trace::TraceArgs;

/// A POSIX file system for very many small files.
#[derive(Debug, Parser)]
#[command(name = "espalier", version, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub log: LogArgs,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Clone, Debug, Args)]
pub struct LogArgs {
    /// What to log: error, warn, info, debug, trace, or per module, as in `espalier_store=debug`.
    #[arg(long, global = true, default_value = "warn", env = "ESPALIER_LOG", value_name = "FILTER")]
    pub log: String,
    /// Log one JSON object a line.
    #[arg(long, global = true)]
    pub log_json: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make an empty file system in a directory.
    Mkfs(MkfsArgs),
    /// Mount a file system. Returns when it is usable.
    Mount(MountArgs),
    /// Unmount, and wait until everything is written.
    Umount(UmountArgs),
    /// Serve a file system to the clients of a cluster.
    Serve(ServeArgs),
    /// Make a cluster, start and stop its servers on this machine, and tell how they are.
    Cluster(ClusterArgs),
    /// Check a file system that is not mounted, or repair it. Exits with 0 if it is clean, 1 if everything was repaired, 4
    /// if anything is wrong, 8 if it could not be checked.
    Fsck(FsckArgs),
    /// Tell how a file system is.
    Status(StatusArgs),
    /// Show what a mounted file system does: by operation, by process, by directory. `q` ends it.
    Top(TopArgs),
    /// Show what is done for the operations of mounts and servers, step by step.
    Trace(TraceArgs),
    /// List a directory, of a server without the kernel in between: names and attributes come together.
    Ls(LsArgs),
    /// Tell how many files, directories and bytes are below a directory of a mounted file system, at once.
    Du(DuArgs),
    /// Limit how many files and bytes may be below a directory of a mounted file system.
    Quota(QuotaArgs),
    /// Tell what a directory of a mounted file system wants of the files that are made in it, or change that.
    Policy(PolicyArgs),
    /// Tell where the bytes of a file of a mounted file system lie.
    Layout(LayoutArgs),
    /// Remove files, and directories of a mounted file system with all that is below them, at once. Asks nothing. Exits with
    /// 1 if anything could not be removed: of a directory it is then all still there.
    Rm(RmArgs),
    /// Copy files, and directories of a mounted file system with all that is below them, within that file system. Exits with 1
    /// if anything could not be copied.
    Cp(CpArgs),
    /// Make everything durable that has been written so far to the mounted file systems that these paths lie in. Exits with 1 if that
    /// failed for any of them.
    Sync(SyncArgs),
    /// Write all of a file system that is not mounted to a file, or to standard output.
    Dump(DumpArgs),
    /// Make a file system from what `dump` wrote.
    Load(LoadArgs),
    /// Measure a directory of any file system, alone or against another.
    Bench(BenchArgs),
    /// Run a cluster in virtual time, in this process: what a scenario describes, or traces of real programs. Exits with 1 if
    /// it was stopped, or a trace came to something else than it had.
    Sim(SimArgs),
    /// Run the experiments of the papers that this file system is built on, and see which of their claims hold.
    Paper(PaperArgs),
    /// One process of a benchmark.
    #[command(name = espalier_bench::WORKER_COMMAND, hide = true)]
    BenchWorker,
    /// What a benchmark's `--floor` mounts.
    #[command(name = espalier_bench::FLOOR_COMMAND, hide = true)]
    BenchFloor(FloorArgs),
    /// Print completions for a shell.
    Completions { shell: clap_complete::Shell },
    /// Print the manual page.
    Man,
}

#[derive(Debug, Args)]
pub struct MkfsArgs {
    /// The directory. It is made if it does not exist.
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// A name for people.
    #[arg(long, default_value = "")]
    pub label: String,
    /// Files of at most so many bytes are kept with their metadata (stuffed).
    #[arg(long, default_value = "64K", value_parser = parse_size, value_name = "SIZE")]
    pub strip: u64,
    /// Room for changes that are not in the tables yet [default: a 64th of the disk, from 16M to 256M].
    #[arg(long, value_parser = parse_size, value_name = "SIZE")]
    pub journal: Option<u64>,
    /// Make it even over a file system that is there, which is then lost.
    #[arg(long)]
    pub force: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The server's configuration, as `espalier cluster init` writes it.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: PathBuf,
    /// Say on standard output when clients may connect, leave the terminal's session, and log to `log` beside the configuration.
    #[arg(long, hide = true)]
    pub announce: bool,
}

#[derive(Debug, Args)]
pub struct ClusterArgs {
    #[command(subcommand)]
    pub command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Make the files of a new cluster: certificates, configurations and empty stores.
    Init(InitArgs),
    /// Make the credentials of another client.
    Client {
        /// The cluster's directory.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// The client's name: a-z, 0-9 and -.
        name: String,
    },
    /// Start all servers on this machine.
    Up {
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Make a cluster of so many servers first, if there is none.
        #[arg(long, value_name = "N")]
        servers: Option<u16>,
    },
    /// Stop them, when they have written everything out.
    Down {
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
    /// Check the files of a cluster that does not run, and what its data servers hold of them. Exits as `espalier fsck`.
    Fsck {
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
    /// Write all of a cluster that does not run into a directory, a file for each store.
    Dump {
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Where the dumps are written. It is made if it does not exist.
        #[arg(value_hint = ValueHint::DirPath)]
        to: PathBuf,
        /// Complete a dump that was interrupted.
        #[arg(long)]
        resume: bool,
    },
    /// Load what `cluster dump` wrote into a cluster with as many metadata servers and the same data servers, which was just made and does not run.
    Load {
        #[arg(value_hint = ValueHint::DirPath)]
        from: PathBuf,
        /// The cluster's directory.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Even if it holds files, which are then lost.
        #[arg(long, conflicts_with = "resume")]
        force: bool,
        /// Go on with a load of the same dumps that was interrupted.
        #[arg(long)]
        resume: bool,
        /// Check all files afterwards, as `cluster fsck` does. Exits with 1 if anything is wrong.
        #[arg(long)]
        verify: bool,
    },
    /// Undo what a metadata server that will never be back has left undecided at the others, which must not run.
    Resolve {
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// The rank of the server whose store is lost.
        #[arg(long, value_name = "RANK")]
        lost: u16,
        /// Do it; without, it is only told what would be undone.
        #[arg(long)]
        yes: bool,
    },
    /// Move all files away from a data server, for which `drain = true` is set in the configurations. None may run.
    Drain {
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// The number of the data server.
        #[arg(long, value_name = "NUMBER")]
        server: u16,
    },
    /// Have the servers that run here read anew what can change while they run: `[clients]`, watermarks and `eager_bytes` in their
    /// configurations.
    Reload {
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
    /// Tell how they are. Exits with 1 if one does not run.
    Status {
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub struct InitArgs {
    /// The cluster's directory. It is made, and must not hold anything yet.
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// With several, all hold the bytes of big files.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub servers: u16,
    /// So many of them, the first ones, share the tree of files.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub ranks: u16,
    /// Where the first server listens, as HOST:PORT; the others at the ports that follow.
    #[arg(long, default_value = InitArgs::LISTEN, value_name = "ADDRESS")]
    pub listen: String,
    /// Other names and addresses by which clients reach the servers.
    #[arg(long = "host", value_name = "HOST")]
    pub hosts: Vec<String>,
    /// A name for people.
    #[arg(long, default_value = "")]
    pub label: String,
    /// Of each server, as of `mkfs` [default: a 64th of the disk, from 16M to 256M].
    #[arg(long, value_parser = parse_size, value_name = "SIZE")]
    pub journal: Option<u64>,
    /// No certificates: whoever reaches a server is believed. For trials on one machine.
    #[arg(long)]
    pub insecure: bool,
}

impl InitArgs {
    const LISTEN: &str = "127.0.0.1:7440";

    /// With defaults for all else.
    pub fn of(dir: &Path, servers: u16) -> Self {
        let listen = Self::LISTEN.into();
        let (hosts, label) = (Vec::new(), String::new());
        Self { dir: dir.into(), servers, ranks: 1, listen, hosts, label, journal: None, insecure: false }
    }
}

#[derive(Clone, Debug, Args)]
pub struct MountArgs {
    /// The file system: the directory that it lies in, or espalier://HOST:PORT/ of a server.
    #[arg(value_hint = ValueHint::DirPath)]
    pub source: PathBuf,
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
    /// Mount options, separated by commas: ro, rw, sync, noatime, relatime, strictatime, nodiratime, allow_other, nosuid, nodev,
    /// noexec, nosymfollow, lazytime, dirsync, credentials=DIR or insecure and locks=shared or local (of servers), threads=N, slow=MILLISECONDS (log operations that take longer; 1000; 0:
    /// none), metrics=ADDRESS:PORT or metrics=unix:PATH (serve figures for Prometheus), and those that only mount(8) and
    /// fstab(5) mind.
    #[arg(short, long, value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
    /// Stay in the foreground; an interrupt unmounts.
    #[arg(short, long)]
    pub foreground: bool,
    /// In the background, log to this file instead of the file `log` in the file system's directory.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub log_file: Option<PathBuf>,
    /// Record what is asked of the mount to this new file, for `espalier sim --trace FILE`: names and sizes, but not what is read
    /// and written.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub record: Option<PathBuf>,
    /// Say on standard output when the mount is usable, and leave the terminal's session.
    #[arg(long, hide = true)]
    pub announce: bool,
}

#[derive(Debug, Args)]
pub struct UmountArgs {
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
    /// Even if it is in use: whoever uses it gets errors.
    #[arg(short, long)]
    pub force: bool,
    /// Seconds after which it is forced, if the file system does not answer.
    #[arg(long, default_value_t = 60)]
    pub timeout: u64,
}

#[derive(Debug, Args)]
pub struct DuArgs {
    #[arg(value_hint = ValueHint::DirPath)]
    pub path: PathBuf,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PolicyArgs {
    /// A directory.
    #[arg(value_hint = ValueHint::DirPath)]
    pub path: PathBuf,
    /// Set num_dfiles, dist_name or dist_params; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Leave a setting to the server; may be repeated.
    #[arg(long, value_name = "KEY")]
    pub unset: Vec<String>,
    /// Make the policy just what a file says, as TOML.
    #[arg(long, value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Tell what is set here, and what is in force with what the server decides.
    #[arg(long, conflicts_with_all = ["set", "unset", "file"])]
    pub json: bool,
}

impl PolicyArgs {
    pub fn changes(&self) -> bool {
        !self.set.is_empty() || !self.unset.is_empty() || self.file.is_some()
    }
}

#[derive(Debug, Args)]
pub struct LayoutArgs {
    #[arg(value_hint = ValueHint::FilePath)]
    pub path: PathBuf,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct QuotaArgs {
    #[command(subcommand)]
    pub command: QuotaCommand,
}

#[derive(Debug, Subcommand)]
pub enum QuotaCommand {
    /// Tell a directory's limits.
    Get {
        #[arg(value_hint = ValueHint::DirPath)]
        path: PathBuf,
        #[arg(long)]
        json: bool,
    },
    /// Set one limit of a directory or both; root only. What is there already may be more: then nothing can be added.
    #[command(group = clap::ArgGroup::new("limits").args(["files", "bytes"]).required(true).multiple(true))]
    Set {
        #[arg(value_hint = ValueHint::DirPath)]
        path: PathBuf,
        /// Files and directories together.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        files: Option<u64>,
        /// The sizes of all files.
        #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
        bytes: Option<u64>,
    },
    /// Take one limit of a directory away, or both; root only.
    Remove {
        #[arg(value_hint = ValueHint::DirPath)]
        path: PathBuf,
        /// Only that on files.
        #[arg(long)]
        files: bool,
        /// Only that on bytes.
        #[arg(long)]
        bytes: bool,
    },
}

#[derive(Debug, Args)]
pub struct SyncArgs {
    /// Files or directories of mounted file systems.
    #[arg(value_hint = ValueHint::AnyPath, required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub struct RmArgs {
    /// What to remove.
    #[arg(value_hint = ValueHint::AnyPath, required_unless_present = "force", value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Directories, too.
    #[arg(short, long, short_alias = 'R')]
    pub recursive: bool,
    /// What does not exist is no error.
    #[arg(short, long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct CpArgs {
    /// What to copy, and where to: into the last if it is a directory, and as it otherwise.
    #[arg(value_hint = ValueHint::AnyPath, num_args = 2.., required = true, value_names = ["SRC", "DST"])]
    pub paths: Vec<PathBuf>,
    /// Directories, too.
    #[arg(short, long, short_alias = 'R')]
    pub recursive: bool,
    /// As --recursive, with owners, permissions, times, links, ACLs and extended attributes, as far as the caller may.
    #[arg(short, long)]
    pub archive: bool,
}

#[derive(Debug, Args)]
pub struct DumpArgs {
    /// The file system: the directory that it lies in.
    #[arg(value_hint = ValueHint::DirPath, required_unless_present = "verify")]
    pub source: Option<PathBuf>,
    /// Where to write it; `-`, or none, for standard output.
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Complete a dump that was interrupted, if FILE holds a part of it.
    #[arg(long, requires = "file")]
    pub resume: bool,
    /// Check a dump instead, without loading it; `-` for standard input. Exits with 1 if it is damaged, and says where.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["source", "file", "resume"])]
    pub verify: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct LoadArgs {
    /// `-` for standard input.
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// The directory. It is made if it does not exist.
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// Even over a file system that is there, which is then lost.
    #[arg(long)]
    pub force: bool,
    /// Go on with a load of the same dump that was interrupted, if there was one.
    #[arg(long, conflicts_with = "force")]
    pub resume: bool,
    /// Check the file system afterwards, as `fsck` does. Exits with 1 if anything is wrong.
    #[arg(long)]
    pub verify: bool,
    /// Bytes of the dump after which what was loaded is made durable. More of them need more memory.
    #[arg(long, default_value = "64M", value_parser = parse_size, value_name = "SIZE")]
    pub interval: u64,
}

#[derive(Debug, Args)]
pub struct FsckArgs {
    /// The file system: the directory that it lies in.
    #[arg(value_hint = ValueHint::DirPath)]
    pub source: PathBuf,
    /// Mend what can be mended; what has lost its place is in `lost+found` afterwards.
    #[arg(long)]
    pub repair: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The file system: the directory that it lies in, or where it is mounted.
    #[arg(value_hint = ValueHint::DirPath)]
    pub source: PathBuf,
    /// Of a mount of a server: only how many messages of each kind there were, a line each.
    #[arg(long, conflicts_with = "json")]
    pub counters: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
    /// Seconds from one look to the next, 0.1 to 60.
    #[arg(short, long, default_value = "2", value_parser = parse_interval, value_name = "SECONDS")]
    pub interval: f64,
    /// Print one table, of one interval, and end.
    #[arg(long)]
    pub once: bool,
    /// Print one JSON object a line.
    #[arg(long)]
    pub json: bool,
    /// Processes and directories to show.
    #[arg(long, default_value_t = 10, value_name = "NUMBER")]
    pub rows: usize,
}

fn parse_interval(text: &str) -> Result<f64, String> {
    let seconds: Option<f64> = text.parse().ok();
    seconds
        .filter(|seconds| (0.1..=60.0).contains(seconds))
        .ok_or_else(|| "expected 0.1 to 60 seconds".into())
}

/// As [`parse_size`], but for 0.
fn parse_limit(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("a limit is at least 1".into()),
        size => Ok(size),
    }
}

/// A number of bytes, as `65536`, `64K`, `64M` or `1G`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KIB" => 1 << 10,
        "M" | "MIB" => 1 << 20,
        "G" | "GIB" => 1 << 30,
        "T" | "TIB" => 1 << 40,
        _ => return Err("expected a number of bytes, as in 64K, 64M or 1G".into()),
    };
    let number: u64 = digits.parse().map_err(|_| "expected a number of bytes, as in 64K, 64M or 1G")?;
    number.checked_mul(unit).ok_or_else(|| "too large".into())
}
