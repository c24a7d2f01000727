//! Mount options, as of `mount -o` and fstab(5).

use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use espalier_fuse::Transport;
use espalier_library::Credentials;
use espalier_meta::Atime;
use espalier_runtime::{MetricsAddress, MountOptions, OpenOptions, RadosAccess};
use rustix::fs::StatVfsMountFlags;

use crate::args::parse_size;
use crate::policy;

/// Time limit for writing everything out at unmount. The journal's capacity bounds the amount.
const DRAIN: Duration = Duration::from_secs(30);
/// Duration in seconds from which operations are logged as slow.
const SLOW: Duration = Duration::from_secs(1);

/// Default limit of threads that serve requests. Threads start on demand: callers that wait
/// for a write at the same time need one thread each.
const THREADS: usize = 64;

/// Authentication of a mount or a benchmark to servers.
#[derive(Debug, Default)]
pub struct Reach {
    /// Directory with the client's certificate.
    pub credentials: Option<PathBuf>,
    /// No authentication.
    pub insecure: bool,
    /// How to reach the pool of the big files' bytes; `None`: they pass through the servers.
    pub data_pool: Option<RadosAccess>,
}

impl Reach {
    /// Loads the credentials. Prints a warning if there is no TLS.
    pub fn credentials(&self, url: &str) -> Result<Credentials> {
        match (&self.credentials, self.insecure) {
            (Some(_), true) => bail!("-o credentials= and -o insecure exclude each other"),
            (Some(dir), false) => Ok(Credentials::Directory(dir.clone())),
            (None, true) => {
                eprintln!(
                    "espalier: WARNING: no TLS: traffic to {url} is neither encrypted nor authenticated"
                );
                Ok(Credentials::Insecure)
            }
            (None, false) => bail!(
                "credentials are missing: -o credentials=DIR, a directory made by `espalier cluster init` or `cluster client`"
            ),
        }
    }
}

/// Default number of a server's threads: more than processors, since threads may wait for a disk.
pub fn threads_for_servers() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from) + 2
}

/// Parses options; a later one overrides an earlier one. `superuser`: allow access by other users
/// by default, since root mounts for all.
pub fn parse(options: &[String], superuser: bool) -> Result<(OpenOptions, MountOptions, Reach)> {
    let mut reach = Reach::default();
    let mut open = OpenOptions::default();
    let mut kernel = espalier_fuse::MountOptions {
        allow_other: superuser,
        default_permissions: true,
        ..Default::default()
    };
    (kernel.no_suid, kernel.no_dev) = (!superuser, !superuser);
    let (mut threads, mut transport) = (THREADS, None);
    let (mut local_locks, mut ttl) = (false, None);
    let (mut metrics, mut slow) = (None, Some(SLOW));
    let options = options.join(",");
    for option in split(&options).map(str::trim).filter(|option| !option.is_empty()) {
        match option.split_once('=').unwrap_or((option, "")) {
            ("ro", "") => (open.read_only, kernel.read_only) = (true, true),
            ("rw", "") => (open.read_only, kernel.read_only) = (false, false),
            ("sync", "") => (open.sync, kernel.sync) = (true, true),
            ("async", "") => (open.sync, kernel.sync) = (false, false),
            ("dirsync", "") => (open.sync, kernel.dir_sync) = (true, true),
            ("noatime", "") => open.atime = Atime::Never,
            ("atime" | "relatime" | "norelatime" | "nostrictatime", "") => open.atime = Atime::Relative,
            ("strictatime", "") => open.atime = Atime::Always,
            ("diratime", "") => open.nodiratime = false,
            ("nodiratime", "") => open.nodiratime = true,
            ("symfollow", "") => kernel.no_sym_follow = false,
            ("nosymfollow", "") => kernel.no_sym_follow = true,
            ("lazytime", "") => kernel.lazy_time = true,
            ("nolazytime", "") => kernel.lazy_time = false,
            ("silent", "") => kernel.silent = true,
            ("loud", "") => kernel.silent = false,
            ("mand", "") => eprintln!("espalier: WARNING: mand: Linux has no mandatory locks since 5.15"),
            ("context" | "fscontext" | "defcontext" | "rootcontext", value) if !value.is_empty() => {
                kernel.security.push((name_of(option).into(), value.trim_matches('"').into()));
            }
            ("allow_other", "") => kernel.allow_other = true,
            ("suid", "") => kernel.no_suid = false,
            ("nosuid", "") => kernel.no_suid = true,
            ("dev", "") => kernel.no_dev = false,
            ("nodev", "") => kernel.no_dev = true,
            ("exec", "") => kernel.no_exec = false,
            ("noexec", "") => kernel.no_exec = true,
            // The kernel always checks permissions.
            ("default_permissions", "") => {}
            ("threads", number) => {
                threads = number
                    .parse()
                    .ok()
                    .filter(|n| (1..=256).contains(n))
                    .context("threads= takes 1 to 256")?;
            }
            ("slow", millis) => {
                let millis: u64 = millis.parse().ok().context("slow= takes milliseconds, or 0")?;
                slow = (millis > 0).then(|| Duration::from_millis(millis));
            }
            ("policy", file) if !file.is_empty() => open.policy = policy::read(Path::new(file))?,
            ("metrics", address) => metrics = Some(metrics_address(address)?),
            ("credentials", dir) if !dir.is_empty() => {
                reach.credentials = Some(std::path::absolute(dir).context("credentials= takes a directory")?);
            }
            ("insecure", "") => reach.insecure = true,
            ("rados_user", user) if !user.is_empty() => {
                reach.data_pool.get_or_insert_default().user = Some(user.into());
            }
            ("rados_conf", file) if !file.is_empty() => {
                let conf = std::path::absolute(file).context("rados_conf= takes a file")?;
                reach.data_pool.get_or_insert_default().conf = Some(conf);
            }
            ("locks", "shared") => local_locks = false,
            ("locks", "local") => local_locks = true,
            ("locks", _) => bail!("locks= takes shared or local"),
            ("cache", "leases") => ttl = None,
            ("cache", "none") => ttl = Some(Duration::ZERO),
            ("cache", how) => {
                let time = how.strip_prefix("ttl:").and_then(duration);
                ttl =
                    Some(time.context("cache= takes leases, none, or ttl:TIME, as in ttl:100ms or ttl:2s")?);
            }
            ("transport", "auto") => transport = None,
            ("transport", "uring") => transport = Some(Transport::Uring),
            ("transport", "queues") => transport = Some(Transport::Queues),
            ("transport", _) => bail!("transport= takes auto, uring or queues"),
            ("memory", size) => {
                open.memory = parse_size(size)
                    .ok()
                    .filter(|bytes| *bytes >= OpenOptions::LEAST_MEMORY)
                    .context("memory= takes a size of at least 32M, such as 512M or 4G")?;
            }
            // Options shown in the mount table, which mount(8) repeats at a remount.
            (
                "user_id" | "group_id" | "rootmode" | "max_read" | "blksize" | "fsname" | "subtype" | "fd",
                _,
            ) => {}
            // Mounts by ordinary users have no set-id programs and devices (mount(8)).
            ("user" | "users", _) => {
                (kernel.no_suid, kernel.no_dev, kernel.no_exec) = (true, true, true);
            }
            ("owner" | "group", _) => (kernel.no_suid, kernel.no_dev) = (true, true),
            // Options for mount(8) and fstab(5) without meaning to the file system.
            (
                "defaults" | "auto" | "noauto" | "nofail" | "_netdev" | "nouser" | "nousers" | "noowner"
                | "nogroup",
                _,
            ) => {}
            // FUSE has neither visible inode versions nor mandatory locks.
            ("iversion" | "noiversion" | "nomand" | "seclabel", "") => {}
            (name, _) if ["x-", "X-", "comment"].iter().any(|prefix| name.starts_with(prefix)) => {}
            _ => bail!(
                "unknown mount option `{option}`; there are: ro rw sync async dirsync noatime relatime strictatime \
                 [no]diratime allow_other [no]suid [no]dev [no]exec [no]symfollow [no]lazytime context=CONTEXT \
                 default_permissions threads=N memory=SIZE \
                 transport=auto|uring|queues slow=MILLISECONDS metrics=ADDRESS policy=FILE credentials=DIR \
                 insecure rados_user=NAME rados_conf=FILE locks=shared|local cache=leases|ttl:TIME|none"
            ),
        }
    }
    (kernel.no_atime, kernel.no_dir_atime) = (open.atime == Atime::Never, open.nodiratime);
    kernel.strict_atime = open.atime == Atime::Always;
    Ok((
        open,
        MountOptions {
            kernel,
            threads,
            transport,
            local_locks,
            ttl,
            drain: DRAIN,
            metrics,
            slow,
            record: None,
        },
        reach,
    ))
}

/// Splits a list of options at its commas, except within quotation marks (security contexts).
pub fn split(options: &str) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    options.split(move |character| {
        is_quoted ^= character == '"';
        character == ',' && !is_quoted
    })
}

/// The part of an option before its `=`.
pub fn name_of(option: &str) -> &str {
    option.split_once('=').map_or(option, |(name, _)| name)
}

/// Parses `100ms` or `2s`.
fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1),
        None => (text.strip_suffix('s')?, 1000),
    };
    Some(Duration::from_millis(number.parse::<u64>().ok()?.checked_mul(unit)?))
}

/// Parses `127.0.0.1:9464`, `localhost:9464`, `[::1]:9464` or `unix:PATH`.
pub fn metrics_address(text: &str) -> Result<MetricsAddress> {
    if let Some(path) = text.strip_prefix("unix:") {
        let path = std::path::absolute(path).context("metrics=unix: takes the path of a socket")?;
        return Ok(MetricsAddress::Unix(path));
    }
    let found = text.to_socket_addrs().ok().and_then(|mut found| found.next());
    let found = found.with_context(|| {
        format!("metrics= takes ADDRESS:PORT, as in 127.0.0.1:9464, or unix:PATH, and not `{text}`")
    })?;
    Ok(MetricsAddress::Tcp(found))
}

/// Changes the mount flags of the kernel: ro or rw, suid, dev, exec, symfollow. The kernel does not
/// report a remount to the server, so changes of the server's options are refused.
pub fn remount(mountpoint: &Path, wanted: &[String], superuser: bool) -> Result<ExitCode> {
    let flags = rustix::fs::statvfs(mountpoint)
        .with_context(|| format!("cannot see how {} is mounted", mountpoint.display()))?
        .f_flag;
    let retained = preserved_by_remount(flags).map(String::from);
    let kernel = |options: &[String]| Ok::<_, anyhow::Error>(parse(options, superuser)?.1.kernel);
    let (before, after) = (kernel(&retained)?, kernel(&[&retained, wanted].concat())?);
    let decided = |kernel: &espalier_fuse::MountOptions| {
        (kernel.no_atime, kernel.strict_atime, kernel.no_dir_atime, kernel.sync)
    };
    if decided(&before) != decided(&after) {
        bail!(
            "{} is mounted {}, and a remount cannot change that: unmount it and mount it anew",
            mountpoint.display(),
            retained.join(","),
        );
    }
    rustix::mount::mount_remount(mountpoint, after.flags(), "")
        .with_context(|| format!("cannot change how {} is mounted", mountpoint.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Options of a mount that a remount cannot change.
fn preserved_by_remount(flags: StatVfsMountFlags) -> [&'static str; 3] {
    let has = |flag| flags.contains(flag);
    let atime = match () {
        () if has(StatVfsMountFlags::NOATIME) => "noatime",
        () if has(StatVfsMountFlags::RELATIME) => "relatime",
        () => "strictatime",
    };
    let diratime = if has(StatVfsMountFlags::NODIRATIME) { "nodiratime" } else { "diratime" };
    [atime, diratime, if has(StatVfsMountFlags::SYNCHRONOUS) { "sync" } else { "async" }]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_text(text: &str) -> Result<(OpenOptions, MountOptions)> {
        let (open, mount, _) = parse(&text.split(',').map(String::from).collect::<Vec<_>>(), true)?;
        Ok((open, mount))
    }

    #[test]
    fn a_later_option_overrules_an_earlier_one() {
        let (open, mount) = parse_text("ro,sync,rw,noatime").expect("good options");
        assert!(!open.read_only && !mount.kernel.read_only && open.sync && open.atime == Atime::Never);
    }

    #[test]
    fn options_of_all_file_systems_are_taken_and_obeyed() {
        let (open, mount) =
            parse_text("nodiratime,nosymfollow,lazytime,silent,strictatime").expect("good options");
        let kernel = mount.kernel;
        assert!(open.nodiratime && open.atime == Atime::Always && kernel.no_dir_atime && kernel.strict_atime);
        assert!(kernel.no_sym_follow && kernel.lazy_time && kernel.silent);
        let (open, mount) =
            parse_text("nodiratime,diratime,nosymfollow,symfollow,lazytime,nolazytime,silent,loud")
                .expect("good options");
        assert!(!open.nodiratime && mount.kernel == parse_text("").expect("good options").1.kernel);
        let (open, _) = parse_text("noatime,nostrictatime").expect("good options");
        assert_eq!(open.atime, Atime::Relative);
        assert!(parse_text("iversion,noiversion,nomand,norelatime,noauto,X-mount.mkdir,x-y,_netdev").is_ok());
    }

    #[test]
    fn a_remount_keeps_access_times_as_they_are() {
        let none = StatVfsMountFlags::empty();
        assert_eq!(preserved_by_remount(none), ["strictatime", "diratime", "async"]);
        let relatime = StatVfsMountFlags::RELATIME | StatVfsMountFlags::NODIRATIME;
        assert_eq!(preserved_by_remount(relatime), ["relatime", "nodiratime", "async"]);
        let noatime = StatVfsMountFlags::NOATIME | StatVfsMountFlags::SYNCHRONOUS;
        assert_eq!(preserved_by_remount(noatime), ["noatime", "diratime", "sync"]);
    }

    #[test]
    fn security_contexts_keep_their_commas() {
        let (_, mount) = parse_text("context=\"a_u:b_r:c_t:s0:c1,c2\",ro,fscontext=d").expect("good options");
        let named = |name: &str, value: &str| (name.to_string(), value.to_string());
        assert_eq!(
            mount.kernel.security,
            [named("context", "a_u:b_r:c_t:s0:c1,c2"), named("fscontext", "d")]
        );
        assert!(mount.kernel.read_only && parse_text("context=").is_err());
    }

    #[test]
    fn mounts_of_users_have_no_programs_with_set_id_bits_nor_devices() {
        let (_, mount) = parse_text("user").expect("good options");
        assert!(mount.kernel.no_suid && mount.kernel.no_dev && mount.kernel.no_exec);
        let (_, mount) = parse_text("owner,suid").expect("good options");
        assert!(!mount.kernel.no_suid && mount.kernel.no_dev && !mount.kernel.no_exec);
    }

    #[test]
    fn top_shows_counted_operations() {
        let (_, mount) = parse_text("metrics=127.0.0.1:9464,slow=20").expect("good options");
        assert_eq!(mount.metrics, Some(MetricsAddress::Tcp(([127, 0, 0, 1], 9464).into())));
        assert_eq!(mount.slow, Some(Duration::from_millis(20)));
        let (_, mount) = parse_text("metrics=unix:/run/e.sock,slow=0").expect("good options");
        assert_eq!((mount.metrics, mount.slow), (Some(MetricsAddress::Unix("/run/e.sock".into())), None));
    }

    #[test]
    fn mount_only_options_are_accepted_and_unknown_refused() {
        assert!(parse_text("defaults,nofail,x-systemd.automount,_netdev").is_ok());
        for bad in [
            "nonsense",
            "ro=1",
            "threads=0",
            "threads=many",
            "memory=1M",
            "memory=x",
            "slow=soon",
            "metrics=here",
            "metrics=unix:",
            "transport=carrier-pigeon",
            "locks=many",
            "cache=some",
            "cache=ttl:soon",
            "cache=ttl:5",
            "cache=ttl:99999999999999999999s",
        ] {
            assert!(parse_text(bad).is_err(), "{bad}");
        }
    }
}
