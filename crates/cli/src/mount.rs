//! `espalier mount` and `espalier umount`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use espalier_library::Credentials;
use espalier_net::{Limits, Security};
use espalier_proto::{Accesses, ClientId};
use espalier_runtime::{Error, MountOptions, RadosAccess, Servers, StoreLocation, Volume, WAITING_MAX};
use espalier_store::{Holder, StoreError};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::args::{LogArgs, MountArgs, UmountArgs};
use crate::decouple::namespace_sync;
use crate::{background, cluster, heap, options, report, start_log};

/// Time limit for waiting until an earlier mount has closed the store.
const PATIENCE: Duration = Duration::from_secs(35);
/// Time limit for the end of a server's process after it has closed its store.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

pub(crate) fn mount(args: MountArgs, log: &LogArgs) -> Result<ExitCode> {
    // Report invalid options before anything happens, and in the foreground.
    let superuser = rustix::process::geteuid().is_root();
    let (remount, wanted): (Vec<_>, Vec<_>) =
        args.options.iter().cloned().partition(|option| option == "remount");
    if !remount.is_empty() {
        return options::remount(&args.mountpoint, &wanted, superuser);
    }
    let (open, mut mount, reach) = options::parse(&wanted, superuser)?;
    mount.record.clone_from(&args.record);
    if !args.foreground {
        return mount_in_background(&args, log);
    }
    heap::share_one();
    let announced = || {
        if args.announce {
            background::announce();
        }
    };
    if let Some(url) = args.source.to_str().filter(|source| cluster::is_url(source)) {
        return mount_servers(url, &reach, &args, log, &mount, announced);
    }
    if mount.ttl.is_some() {
        bail!("-o cache= is for mounts of a server: no other client changes this store");
    }
    let location = match args.rados.locate(&args.source)? {
        StoreLocation::Directory(dir) => StoreLocation::Directory(
            dir.canonicalize().with_context(|| format!("no file system in {}", dir.display()))?,
        ),
        location => location,
    };
    if args.announce {
        let _ = rustix::process::setsid();
        let in_store = location.directory().map(|dir| dir.join("log"));
        let path = args.log_file.clone().or(in_store).unwrap_or_else(|| log_of(&args.mountpoint));
        start_log(log, Mutex::new(background::log_file(&path)?))?;
    } else {
        start_log(log, std::io::stderr)?;
    }
    let volume = open_patiently(&location, open)?;
    if volume.replayed > 0 {
        tracing::info!(events = volume.replayed, "replayed the journal");
    }
    let mountpoint = args.mountpoint.clone();
    if let Some(store) = location.directory()
        && let Some(sync_point) = namespace_sync::start(store, &mountpoint)?
    {
        volume.sync_through(sync_point);
    }
    unmount_on_signal(&mountpoint)?;
    espalier_runtime::mount(volume, &location.name(), &args.mountpoint, &mount, announced)?;
    Ok(ExitCode::SUCCESS)
}

/// Log file of a mount of a server, which has no store.
fn log_of(mountpoint: &Path) -> PathBuf {
    let name = mountpoint.to_string_lossy().replace('/', "-");
    format!("/var/log/espalier{}{name}.log", if name.starts_with('-') { "" } else { "-" }).into()
}

/// Options that the server sets for all its clients.
const OF_SERVERS: [&str; 7] = ["sync", "dirsync", "strictatime", "memory", "metrics", "slow", "policy"];

/// Open files of a mount besides those of waiting calls.
const FILES: u64 = 256;

/// Mounts a file system of servers.
fn mount_servers(
    url: &str,
    reach: &options::Reach,
    args: &MountArgs,
    log: &LogArgs,
    mount: &MountOptions,
    ready: impl FnOnce(),
) -> Result<ExitCode> {
    heap::keep_freed();
    let addresses = Servers::addresses(url)?;
    let name = |option: &String| option.trim().split('=').next().unwrap_or_default().to_string();
    if let Some(option) = args.options.iter().map(name).find(|name| OF_SERVERS.contains(&name.as_str())) {
        bail!(
            "-o {option} is not an option for mounts of a server: set it in the server's configuration file"
        );
    }
    // If the limit cannot be raised, fewer calls can wait at a time; the mount works.
    let _ = espalier_runtime::may_open(WAITING_MAX as u64 + FILES);
    let security = match reach.credentials(url)? {
        Credentials::Directory(dir) => Security::load_from(&dir)?,
        Credentials::Insecure => Security::Insecure,
    };
    if args.announce {
        let _ = rustix::process::setsid();
        let path = args.log_file.clone().unwrap_or_else(|| log_of(&args.mountpoint));
        start_log(log, Mutex::new(background::log_file(&path)?))?;
    } else {
        start_log(log, std::io::stderr)?;
    }
    let mut number = [0; 8];
    rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())
        .context("the system has no random numbers")?;
    let client = ClientId(u64::from_ne_bytes(number));
    let accesses = match (mount.kernel.no_atime, mount.kernel.no_dir_atime) {
        (true, _) => Accesses::None,
        (false, true) => Accesses::NoListings,
        (false, false) => Accesses::All,
    };
    let servers = Servers {
        addresses,
        security,
        limits: Limits::default(),
        client,
        leases: mount.ttl.is_none(),
        accesses,
        data_pool: reach.data_pool.clone(),
    };
    unmount_on_signal(&args.mountpoint)?;
    espalier_runtime::mount_servers(&servers, url, &args.mountpoint, mount, ready)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn open_patiently(
    location: &StoreLocation,
    options: espalier_runtime::OpenOptions,
) -> Result<Volume> {
    patiently(location, || Volume::open(location, options.clone()))
}

/// Opens a store, and waits if it is about to be closed.
pub(crate) fn patiently<T>(
    location: &StoreLocation,
    mut open: impl FnMut() -> Result<T, Error>,
) -> Result<T> {
    let started = Instant::now();
    let is_about_to_close = |needs_process: bool| {
        let status = espalier_runtime::status_of(location);
        status.is_ok_and(|status| status.mountpoint.is_none() && (status.pid.is_some() || !needs_process))
    };
    loop {
        match open() {
            // A process on another machine is not about to close it, as far as is known here.
            Err(Error::Store(error @ (StoreError::InUse { .. } | StoreError::HeldBy { .. })))
                if started.elapsed() < PATIENCE
                    && is_about_to_close(matches!(error, StoreError::HeldBy { .. })) =>
            {
                std::thread::sleep(Duration::from_millis(50));
            }
            outcome => return Ok(outcome?),
        }
    }
}

/// Restarts this program in the background and waits until the mount is usable.
fn mount_in_background(args: &MountArgs, log: &LogArgs) -> Result<ExitCode> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(["mount", "--foreground", "--announce", "--log", &log.log]);
    if log.log_json {
        command.arg("--log-json");
    }
    let files = [("--log-file", &args.log_file), ("--record", &args.record), ("--conf", &args.rados.conf)];
    for (option, file) in files {
        if let Some(file) = file {
            command.arg(option).arg(file);
        }
    }
    if let Some(user) = &args.rados.user {
        command.arg("--user").arg(user);
    }
    if !args.options.is_empty() {
        command.arg("-o").arg(args.options.join(","));
    }
    command.arg(&args.source).arg(&args.mountpoint);
    background::start(command)
}

/// Unmounts on an interrupt or a request to terminate; the second one forces it.
fn unmount_on_signal(mountpoint: &Path) -> Result<()> {
    let mut signals =
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    let mountpoint = mountpoint.to_path_buf();
    std::thread::spawn(move || {
        let mut requested = false;
        for _ in signals.forever() {
            let outcome = if requested {
                espalier_fuse::force_unmount(&mountpoint)
            } else {
                espalier_fuse::unmount(&mountpoint)
            };
            if let Err(error) = outcome {
                eprintln!(
                    "espalier: cannot unmount {}: {error}; interrupt again to force it",
                    mountpoint.display()
                );
            }
            requested = true;
        }
    });
    Ok(())
}

/// The process on this machine that has a store in a cluster mounted.
fn running(location: &StoreLocation) -> Option<Holder> {
    espalier_runtime::status_of(location).ok()?.pid.and_then(Holder::of_process)
}

pub(crate) fn umount(args: &UmountArgs) -> Result<ExitCode> {
    let mountpoint = &args.mountpoint;
    let Some(mut store) = report::store_of(mountpoint)? else {
        bail!("no Espalier file system is mounted on {}", mountpoint.display());
    };
    // After a migration the mount has another store.
    let moved = match cluster::is_url(&store.to_string_lossy()) {
        true => None,
        false => espalier_runtime::status_of(&StoreLocation::parse(&store, &RadosAccess::default())?)
            .ok()
            .and_then(|status| status.moved_to),
    };
    let mounted = store.clone();
    if let Some(moved) = moved {
        store = moved.into();
    }
    let timeout = Duration::from_secs(args.timeout);
    let started = Instant::now();
    let in_cluster = espalier_runtime::is_in_cluster(&store);
    let server = match in_cluster {
        true => running(&StoreLocation::parse(&store, &RadosAccess::default())?),
        false => Holder::of(&store).filter(Holder::runs),
    };
    // This thread does not block, even if the file system does.
    let (done, outcome) = channel();
    let (path, force) = (mountpoint.clone(), args.force);
    std::thread::spawn(move || {
        let unmount = if force { espalier_fuse::force_unmount } else { espalier_fuse::unmount };
        let _ = done.send(unmount(&path));
    });
    match outcome.recv_timeout(timeout) {
        Ok(outcome) => outcome.with_context(|| {
            format!("cannot unmount {}: end what uses it, or unmount with --force", mountpoint.display())
        })?,
        Err(RecvTimeoutError::Timeout) => {
            eprintln!("espalier: the file system does not answer: forcing");
            espalier_fuse::force_unmount(mountpoint)?;
        }
        Err(RecvTimeoutError::Disconnected) => bail!("cannot unmount {}", mountpoint.display()),
    }
    // The mount writes everything out and then closes the store. If another read-only mount of the
    // store remains, the shared lock stays.
    let held =
        if report::is_mounted(&mounted)? { espalier_store::is_locked } else { espalier_store::is_open };
    while held(&store) && started.elapsed() < timeout {
        std::thread::sleep(Duration::from_millis(10));
    }
    if espalier_store::is_locked(&store) {
        bail!("unmounted, but the server still holds {} after {timeout:?}", store.display());
    }
    if in_cluster {
        // The process releases the lease before it ends.
        while server.is_some_and(|server| server.runs()) && started.elapsed() < timeout {
            std::thread::sleep(Duration::from_millis(10));
        }
        return Ok(ExitCode::SUCCESS);
    }
    // Until the process has ended, it keeps the store's file system busy.
    let unlocked = Instant::now();
    while server.is_some_and(|server| server.runs()) && unlocked.elapsed() < ENDS_WITHIN {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(ExitCode::SUCCESS)
}
