//! Command line arguments; the source of help texts, completions and the manual page.

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueHint};
use espalier_policy::{Composition, Key};
use espalier_runtime::{RadosAccess, StoreLocation};

use crate::balancer::BalancerArgs;
use crate::bench::{BenchArgs, FloorArgs};
use crate::cluster::{AddArgs, RemoveArgs};
use crate::decouple::DecoupleArgs;
use crate::journal::JournalArgs;
use crate::list::LsArgs;
use crate::log::SharedLogArgs;
use crate::merge::MergeArgs;
use crate::migrate::MigrateArgs;
use crate::paper::PaperArgs;
use crate::policy::{Assignment, setting_name, settings_help};
use crate::sim::SimArgs;
use crate::subtree::SubtreeArgs;
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
    /// Log level: error, warn, info, debug, trace, or per module, as in `espalier_store=debug`.
    #[arg(long, global = true, default_value = "warn", env = "ESPALIER_LOG", value_name = "FILTER")]
    pub log: String,
    /// Log one JSON object per line.
    #[arg(long, global = true)]
    pub log_json: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make an empty file system in a directory.
    Mkfs(MkfsArgs),
    /// Mount a file system. Returns when the mount is usable.
    Mount(MountArgs),
    /// Unmount, and wait until everything is written.
    Umount(UmountArgs),
    /// Serve a file system to the clients of a cluster.
    Serve(ServeArgs),
    /// Make a cluster; start, stop and show its servers on this machine.
    Cluster(ClusterArgs),
    /// Check or repair a file system that is not mounted. Exit status: 0 clean, 1 everything
    /// repaired, 4 errors remain, 8 the check failed.
    Fsck(FsckArgs),
    /// Show the state of a file system.
    Status(StatusArgs),
    /// Show the load of a mounted file system by operation, process and directory. `q` quits.
    Top(TopArgs),
    /// Show the steps of operations on mounts and servers.
    Trace(TraceArgs),
    /// List a directory, of a server without a mount: names and attributes arrive together.
    Ls(LsArgs),
    /// Show the number of files, directories and bytes below a directory of a mounted file system,
    /// without walking it.
    Du(DuArgs),
    /// Limit the number of files and bytes below a directory of a mounted file system.
    Quota(QuotaArgs),
    /// Show or change the storage policy of a directory of a mounted file system.
    #[command(after_help = settings_help())]
    Policy(PolicyArgs),
    /// Show where the data of a file of a mounted file system is stored.
    Layout(LayoutArgs),
    /// Show how a directory of a mounted file system is divided among metadata servers.
    Subtree(SubtreeArgs),
    /// Balance the load among metadata servers: metrics, and policies to check and try.
    Balancer(BalancerArgs),
    /// A log that many processes append to, in a directory of any file system that they share.
    Log(SharedLogArgs),
    /// Print which balancer has moved a directory, or one above it, and why it has split.
    Explain {
        /// A path in a mount of the cluster's root; with CLUSTER, a path in its file system.
        #[arg(value_hint = ValueHint::AnyPath)]
        path: PathBuf,
        /// The cluster's directory.
        #[arg(value_hint = ValueHint::DirPath)]
        cluster: Option<PathBuf>,
    },
    /// Remove files, and directory trees of a mounted file system in one operation each. Does not
    /// prompt. Exits with 1 if a removal fails; a tree is then unchanged.
    Rm(RmArgs),
    /// Copy files, and directory trees of a mounted file system within that file system. Exits with
    /// 1 if a copy fails.
    Cp(CpArgs),
    /// Work on a directory of a mounted file system in a namespace of its own, at the speed of this
    /// machine, and merge it at the end.
    Decouple(DecoupleArgs),
    /// Merge a decoupled directory into its file system, or continue an interrupted merge.
    Merge(MergeArgs),
    /// Show, export, import, erase and apply the journals of decoupled namespaces; show and export
    /// those of file systems that are not mounted.
    Journal(JournalArgs),
    /// Make all data durable that was written to the mounted file systems of these paths. Exits
    /// with 1 if that fails for any of them.
    Sync(SyncArgs),
    /// Write the contents of a file system that is not mounted to a file or to standard output.
    Dump(DumpArgs),
    /// Make a file system from the output of `dump`.
    Load(LoadArgs),
    /// Move a file system to another store, also while it is mounted and used. Repeated, it
    /// continues an interrupted migration.
    Migrate(MigrateArgs),
    /// Benchmark a directory of any file system, or compare it with another one.
    Bench(BenchArgs),
    /// Simulate a cluster in virtual time, in this process: a scenario, or traces of real programs.
    /// Exits with 1 if interrupted, or if a replayed operation has a different result than in its
    /// trace.
    Sim(SimArgs),
    /// Run the experiments of the papers that this file system is based on, and check their claims.
    Paper(PaperArgs),
    /// A process of a benchmark.
    #[command(name = espalier_bench::WORKER_COMMAND, hide = true)]
    BenchWorker,
    /// The file system that a benchmark with `--floor` mounts.
    #[command(name = espalier_bench::FLOOR_COMMAND, hide = true)]
    BenchFloor(FloorArgs),
    /// Print completions for a shell.
    Completions { shell: clap_complete::Shell },
    /// Print the manual page.
    Man,
}

#[derive(Debug, Args)]
pub struct MkfsArgs {
    /// The directory, created if absent; or rados:POOL/NAMESPACE in a cluster.
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// A human-readable name.
    #[arg(long, default_value = "")]
    pub label: String,
    /// Largest size of a stuffed file: its data is stored with its metadata.
    #[arg(long, default_value = "64K", value_parser = parse_size, value_name = "SIZE")]
    pub strip: u64,
    /// Capacity of the journal, which holds changes that are not in the tables yet [default: 1/64
    /// of the disk, from 16M to 256M].
    #[arg(long, value_parser = parse_size, value_name = "SIZE")]
    pub journal: Option<u64>,
    /// Replace an existing file system, which is lost.
    #[arg(long)]
    pub force: bool,
    /// In a cluster: pool for the bytes of big files, which may be erasure-coded [default: that of
    /// the rest].
    #[arg(long, value_name = "POOL", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub data_pool: Option<String>,
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub rados: RadosArgs,
}

/// How to connect to a cluster that has the file system.
#[derive(Clone, Debug, Args)]
pub struct RadosArgs {
    /// For rados:POOL/NAMESPACE: the cluster's configuration [default: CEPH_CONF, or Ceph's own].
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub conf: Option<PathBuf>,
    /// For rados:POOL/NAMESPACE: the user, without `client.` [default: admin].
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
}

impl RadosArgs {
    /// Where a file system is.
    pub fn locate(&self, source: &Path) -> Result<StoreLocation, espalier_runtime::Error> {
        let access = RadosAccess { conf: self.conf.clone(), user: self.user.clone() };
        StoreLocation::parse(source, &access)
    }
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The server's configuration, as `espalier cluster init` writes it.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: PathBuf,
    /// Report readiness for clients on standard output, leave the terminal's session, and log to
    /// `log` beside the configuration.
    #[arg(long, hide = true)]
    pub announce: bool,
    /// Wait until the store that servers share can be reached.
    #[arg(long, hide = true)]
    pub anew: bool,
}

impl ServeArgs {
    pub const ANEW: &str = "--anew";
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
    /// Add a metadata server: the next rank. Servers and mounts that run go on, and hear of it.
    Add(AddArgs),
    /// Remove a metadata server: another one takes over its ranks. Mounts go on; the calls of these
    /// two servers wait for some seconds.
    Remove(RemoveArgs),
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
        /// First make a cluster with this number of servers, if there is none.
        #[arg(long, value_name = "N")]
        servers: Option<u16>,
    },
    /// Stop the servers after they have written everything out.
    Down {
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
    /// Check or repair the files of a stopped cluster, and check their data on its data servers.
    /// Exit status as of `espalier fsck`.
    Fsck {
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Repair the records of all metadata servers; datafiles are only checked.
        #[arg(long)]
        repair: bool,
    },
    /// Write the contents of a stopped cluster to a directory, one file per store.
    Dump {
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Directory for the dumps; created if absent.
        #[arg(value_hint = ValueHint::DirPath)]
        to: PathBuf,
        /// Resume an interrupted dump.
        #[arg(long)]
        resume: bool,
    },
    /// Load the output of `cluster dump` into a new, stopped cluster with the same number of
    /// metadata servers and the same data servers.
    Load {
        #[arg(value_hint = ValueHint::DirPath)]
        from: PathBuf,
        /// The cluster's directory.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Replace existing files, which are lost.
        #[arg(long, conflicts_with = "resume")]
        force: bool,
        /// Resume an interrupted load of the same dumps.
        #[arg(long)]
        resume: bool,
        /// Check all files afterwards, as `cluster fsck` does. Exits with 1 on errors.
        #[arg(long)]
        verify: bool,
    },
    /// Abort the undecided transactions of a permanently lost metadata server at the others, which
    /// must be stopped.
    Resolve {
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Rank of the server whose store is lost.
        #[arg(long, value_name = "RANK")]
        lost: u16,
        /// Abort the transactions; without this flag, only show them.
        #[arg(long)]
        yes: bool,
    },
    /// Move all files off a data server that is configured with `drain = true`. All servers must be
    /// stopped.
    Drain {
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Number of the data server.
        #[arg(long, value_name = "NUMBER")]
        server: u16,
    },
    /// Make the servers on this machine reread the settings that can change at run time:
    /// `[clients]`, watermarks, `eager_bytes` and further `[[meta]]`.
    Reload {
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
    /// Show the state of the servers. Exits with 1 if one is not running.
    Status {
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub struct InitArgs {
    /// The cluster's directory. It is created and must be empty.
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// Number of servers. If there are several, all of them store data of big files.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub servers: u16,
    /// Number of metadata servers that share the namespace: the first of the servers.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub ranks: u16,
    /// Store that all servers share, as rados:POOL/NAMESPACE: servers fail over. Without it each
    /// metadata server has a store of its own, without redundancy.
    #[arg(long, value_name = "STORE", conflicts_with = "servers")]
    pub store: Option<String>,
    /// With `--store`: pool for the bytes of big files, which may be erasure-coded [default: that
    /// of the rest].
    #[arg(long, value_name = "POOL", value_parser = clap::builder::NonEmptyStringValueParser::new(), requires = "store")]
    pub data_pool: Option<String>,
    /// With `--store`: number of servers besides those of the ranks, to take over.
    #[arg(long, default_value_t = 1, value_name = "N", requires = "store", value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub standbys: u16,
    /// With `--store`: standbys follow the journals of the ranks, for faster takeovers.
    #[arg(long, requires = "store")]
    pub standby_replay: bool,
    /// Address of the first server, as HOST:PORT; the others use the following ports.
    #[arg(long, default_value = InitArgs::LISTEN, value_name = "ADDRESS")]
    pub listen: String,
    /// Further names and addresses by which clients reach the servers.
    #[arg(long = "host", value_name = "HOST")]
    pub hosts: Vec<String>,
    /// A human-readable name.
    #[arg(long, default_value = "")]
    pub label: String,
    /// Capacity of each server's journal, as with `mkfs` [default: 1/64 of the disk, from 16M to
    /// 256M].
    #[arg(long, value_parser = parse_size, value_name = "SIZE")]
    pub journal: Option<u64>,
    /// No certificates and no TLS: a server trusts every peer. For trials on one machine.
    #[arg(long)]
    pub insecure: bool,
}

impl InitArgs {
    const LISTEN: &str = "127.0.0.1:7440";

    /// Defaults for everything else.
    pub fn of(dir: &Path, servers: u16) -> Self {
        let listen = Self::LISTEN.into();
        let (hosts, label) = (Vec::new(), String::new());
        Self {
            dir: dir.into(),
            servers,
            ranks: 1,
            store: None,
            data_pool: None,
            standbys: 0,
            standby_replay: false,
            listen,
            hosts,
            label,
            journal: None,
            insecure: false,
        }
    }
}

#[derive(Clone, Debug, Args)]
pub struct MountArgs {
    /// The file system: its directory, rados:POOL/NAMESPACE, or espalier://HOST:PORT/ of a server.
    #[arg(value_hint = ValueHint::DirPath)]
    pub source: PathBuf,
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
    /// Mount options, separated by commas: ro, rw, sync, noatime, relatime, strictatime,
    /// nodiratime, allow_other, nosuid, nodev, noexec, nosymfollow, lazytime, dirsync; for servers:
    /// credentials=DIR or insecure, locks=shared or local; threads=N, slow=MILLISECONDS (log slower
    /// operations; default 1000, 0: none), metrics=ADDRESS:PORT or metrics=unix:PATH (serve metrics
    /// for Prometheus), and those that only mount(8) and fstab(5) use.
    #[arg(short, long, value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
    /// Stay in the foreground; an interrupt unmounts.
    #[arg(short, long)]
    pub foreground: bool,
    /// Log file in the background instead of `log` in the file system's directory.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub log_file: Option<PathBuf>,
    /// Record the requests to the mount in this new file, for `espalier sim --trace FILE`: names
    /// and sizes, but no file contents.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub record: Option<PathBuf>,
    /// Report readiness on standard output, and leave the terminal's session.
    #[arg(long, hide = true)]
    pub announce: bool,
    #[command(flatten)]
    pub rados: RadosArgs,
}

#[derive(Debug, Args)]
pub struct UmountArgs {
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
    /// Unmount even if in use; its users get errors.
    #[arg(short, long)]
    pub force: bool,
    /// Seconds without an answer from the file system after which the unmount is forced.
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
    /// Change a setting; repeatable.
    #[arg(long, value_name = "KEY=VALUE", value_parser = Assignment, hide_possible_values = true)]
    pub set: Vec<(Key, String)>,
    /// Unset a setting, so that the server decides; repeatable.
    #[arg(long, value_name = "KEY", value_parser = setting_name(), hide_possible_values = true)]
    pub unset: Vec<Key>,
    /// Replace the policy by the contents of a TOML file.
    #[arg(long, value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Set consistency and durability by mechanisms: steps joined by `+`, those of a step by `||`.
    #[arg(long, value_name = "MECHANISMS", value_parser = Composition::parse)]
    pub compose: Option<Composition>,
    /// Show the attributes set here, and the effective ones including the server's defaults.
    #[arg(long, conflicts_with_all = ["set", "unset", "file", "compose"])]
    pub json: bool,
}

impl PolicyArgs {
    pub fn changes(&self) -> bool {
        !self.set.is_empty() || !self.unset.is_empty() || self.file.is_some() || self.compose.is_some()
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
    /// Show a directory's limits.
    Get {
        #[arg(value_hint = ValueHint::DirPath)]
        path: PathBuf,
        #[arg(long)]
        json: bool,
    },
    /// Set one or both limits of a directory; root only. If usage exceeds a limit, nothing can be
    /// added.
    #[command(group = clap::ArgGroup::new("limits").args(["files", "bytes"]).required(true).multiple(true))]
    Set {
        #[arg(value_hint = ValueHint::DirPath)]
        path: PathBuf,
        /// Files and directories together.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        files: Option<u64>,
        /// Total size of all files.
        #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
        bytes: Option<u64>,
    },
    /// Remove one or both limits of a directory; root only.
    Remove {
        #[arg(value_hint = ValueHint::DirPath)]
        path: PathBuf,
        /// Only the limit on files.
        #[arg(long)]
        files: bool,
        /// Only the limit on bytes.
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
    /// Files and directories to remove.
    #[arg(value_hint = ValueHint::AnyPath, required_unless_present = "force", value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Remove directories too.
    #[arg(short, long, short_alias = 'R')]
    pub recursive: bool,
    /// Ignore operands that do not exist.
    #[arg(short, long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct CpArgs {
    /// Sources, then the target: a directory to copy into, or the name of the copy.
    #[arg(value_hint = ValueHint::AnyPath, num_args = 2.., required = true, value_names = ["SRC", "DST"])]
    pub paths: Vec<PathBuf>,
    /// Copy directories too.
    #[arg(short, long, short_alias = 'R')]
    pub recursive: bool,
    /// As --recursive, and preserve owners, permissions, times, links, ACLs and extended attributes
    /// as far as permitted.
    #[arg(short, long)]
    pub archive: bool,
}

#[derive(Debug, Args)]
pub struct DumpArgs {
    /// The file system: its directory, or rados:POOL/NAMESPACE.
    #[arg(value_hint = ValueHint::DirPath, required_unless_present = "verify")]
    pub source: Option<PathBuf>,
    /// Output file; `-` or none for standard output.
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Resume the interrupted dump in FILE, if there is one.
    #[arg(long, requires = "file")]
    pub resume: bool,
    /// Check a dump without loading it; `-` for standard input. Exits with 1 if it is damaged, and
    /// reports where.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["source", "file", "resume"])]
    pub verify: Option<PathBuf>,
    #[command(flatten)]
    pub rados: RadosArgs,
}

#[derive(Debug, Args)]
pub struct LoadArgs {
    /// Input file; `-` for standard input.
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// The directory; created if absent.
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// Replace an existing file system, which is lost.
    #[arg(long)]
    pub force: bool,
    /// Resume an interrupted load of the same dump, if there is one.
    #[arg(long, conflicts_with = "force")]
    pub resume: bool,
    /// Check the file system afterwards, as `fsck` does. Exits with 1 on errors.
    #[arg(long)]
    pub verify: bool,
    /// Bytes of the dump between two checkpoints of the load. More of them need more memory.
    #[arg(long, default_value = "64M", value_parser = parse_size, value_name = "SIZE")]
    pub interval: u64,
    /// In a cluster: pool for the bytes of big files, which may be erasure-coded [default: that of
    /// the rest].
    #[arg(long, value_name = "POOL", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub data_pool: Option<String>,
    #[command(flatten)]
    pub rados: RadosArgs,
}

#[derive(Debug, Args)]
pub struct FsckArgs {
    /// The file system: its directory, or rados:POOL/NAMESPACE.
    #[arg(value_hint = ValueHint::DirPath)]
    pub source: PathBuf,
    /// Repair errors; files without a name move to `lost+found`.
    #[arg(long)]
    pub repair: bool,
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub rados: RadosArgs,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The file system: its directory, rados:POOL/NAMESPACE, or its mount point.
    #[arg(value_hint = ValueHint::DirPath)]
    pub source: PathBuf,
    /// For a mount of a server: print only the number of messages of each kind, one per line.
    #[arg(long, conflicts_with = "json")]
    pub counters: bool,
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub rados: RadosArgs,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
    /// Sampling interval in seconds, 0.1 to 60.
    #[arg(short, long, default_value = "2", value_parser = parse_interval, value_name = "SECONDS")]
    pub interval: f64,
    /// Print one table for one interval and exit.
    #[arg(long)]
    pub once: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    pub json: bool,
    /// Number of processes and directories to show.
    #[arg(long, default_value_t = 10, value_name = "NUMBER")]
    pub rows: usize,
}

fn parse_interval(text: &str) -> Result<f64, String> {
    let seconds: Option<f64> = text.parse().ok();
    seconds
        .filter(|seconds| (0.1..=60.0).contains(seconds))
        .ok_or_else(|| "expected 0.1 to 60 seconds".into())
}

/// As [`parse_size`], excluding 0.
fn parse_limit(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("a limit is at least 1".into()),
        size => Ok(size),
    }
}

/// Parses a number of bytes such as `65536`, `64K`, `64M` or `1G`.
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
