//! Mounts and unmounts a FUSE device, also a dead one.

use crate::channel::Channel;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::ffi::{CString, OsString};
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Mount options. The default is a writable mount for the mounting user only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// Shown as `fuse.<subtype>` in the mount table.
    pub subtype: String,
    /// Permits access by other users.
    pub allow_other: bool,
    /// The kernel checks permissions itself, and requests a directory's attributes before each
    /// change of it.
    pub default_permissions: bool,
    pub read_only: bool,
    pub no_suid: bool,
    pub no_dev: bool,
    pub no_exec: bool,
    pub no_atime: bool,
    pub no_dir_atime: bool,
    pub strict_atime: bool,
    pub no_sym_follow: bool,
    pub lazy_time: bool,
    /// The kernel logs fewer messages about the mount.
    pub silent: bool,
    pub sync: bool,
    pub dir_sync: bool,
    /// Options of the kernel's security module, such as `context`, as name and value.
    pub security: Vec<(String, String)>,
    /// Maximum size of a READ, if below the negotiated one.
    pub max_read: Option<u32>,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            subtype: "espalier".into(),
            allow_other: false,
            default_permissions: false,
            read_only: false,
            no_suid: false,
            no_dev: false,
            no_exec: false,
            no_atime: false,
            no_dir_atime: false,
            strict_atime: false,
            no_sym_follow: false,
            lazy_time: false,
            silent: false,
            security: Vec::new(),
            sync: false,
            dir_sync: false,
            max_read: None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("cannot use the mount point")]
    Mountpoint(#[source] io::Error),
    #[error("cannot open /dev/fuse")]
    Device(#[source] io::Error),
    #[error("mount refused")]
    Refused(#[source] io::Error),
    #[error("a mount option contains a NUL")]
    Option,
    #[error("cannot run fusermount3")]
    Helper(#[source] io::Error),
    #[error("fusermount3 failed: {0}")]
    HelperFailed(String),
    #[error("the kernel speaks FUSE {major}.{minor}, too old or too new for this program")]
    Version { major: u32, minor: u32 },
    #[error("the opening exchange with the kernel failed")]
    Handshake(#[source] io::Error),
}

impl MountOptions {
    /// The flags that are set, with their names in `mount -o`.
    fn named_flags(&self) -> impl Iterator<Item = (MountFlags, &'static str)> {
        [
            (self.read_only, MountFlags::RDONLY, "ro"),
            (self.no_suid, MountFlags::NOSUID, "nosuid"),
            (self.no_dev, MountFlags::NODEV, "nodev"),
            (self.no_exec, MountFlags::NOEXEC, "noexec"),
            (self.no_atime, MountFlags::NOATIME, "noatime"),
            (self.no_dir_atime, MountFlags::NODIRATIME, "nodiratime"),
            (self.strict_atime, MountFlags::STRICTATIME, "strictatime"),
            (self.no_sym_follow, MountFlags::NOSYMFOLLOW, "nosymfollow"),
            (self.lazy_time, MountFlags::LAZYTIME, "lazytime"),
            (self.silent, MountFlags::SILENT, "silent"),
            (self.sync, MountFlags::SYNCHRONOUS, "sync"),
            (self.dir_sync, MountFlags::DIRSYNC, "dirsync"),
        ]
        .into_iter()
        .filter_map(|(is_set, flag, name)| is_set.then_some((flag, name)))
    }

    /// The flags for `mount(2)`, also for a remount.
    pub fn flags(&self) -> MountFlags {
        self.named_flags().map(|(flag, _)| flag).collect()
    }

    /// FUSE's own options, each preceded by a comma.
    fn fuse_options(&self) -> String {
        let mut options = String::new();
        if self.default_permissions {
            options.push_str(",default_permissions");
        }
        if self.allow_other {
            options.push_str(",allow_other");
        }
        if let Some(size) = self.max_read {
            options.push_str(&format!(",max_read={size}"));
        }
        for (name, value) in &self.security {
            options.push_str(&format!(",{name}=\"{value}\""));
        }
        options
    }

    /// The options in the syntax of fusermount3.
    fn helper_options(&self, source: &str) -> String {
        let mut options = format!("fsname={},subtype={}", escaped(source), escaped(&self.subtype));
        // The helper rejects these options; the server implements them, or they are hints.
        let unknown =
            MountFlags::NODIRATIME | MountFlags::STRICTATIME | MountFlags::LAZYTIME | MountFlags::SILENT;
        for (_, name) in self.named_flags().filter(|(flag, _)| !unknown.contains(*flag)) {
            options.push(',');
            options.push_str(name);
        }
        options + &self.fuse_options()
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

/// Mounts and returns the device, on which the kernel's INIT is pending.
pub(crate) fn mount(source: &str, mountpoint: &Path, options: &MountOptions) -> Result<Channel, MountError> {
    if rustix::process::geteuid().is_root() {
        mount_as_root(source, mountpoint, options)
    } else {
        mount_by_helper(source, mountpoint, options)
    }
}

fn mount_as_root(source: &str, mountpoint: &Path, options: &MountOptions) -> Result<Channel, MountError> {
    let channel = Channel::open().map_err(|error| MountError::Device(error.into()))?;
    let root_mode = mountpoint.metadata().map_err(MountError::Mountpoint)?.mode() & 0o170_000;
    let data = format!(
        "fd={},rootmode={root_mode:o},user_id={},group_id={}{}",
        std::os::fd::AsFd::as_fd(&channel).as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        options.fuse_options(),
    );
    let data = CString::new(data).map_err(|_| MountError::Option)?;
    let kind = format!("fuse.{}", options.subtype);
    rustix::mount::mount(source, mountpoint, kind.as_str(), options.flags(), data.as_c_str())
        .map_err(|error| MountError::Refused(error.into()))?;
    Ok(channel)
}

/// Mounts through the set-uid helper, which sends the device over the socket that is its standard
/// input.
fn mount_by_helper(source: &str, mountpoint: &Path, options: &MountOptions) -> Result<Channel, MountError> {
    let (ours, theirs) = UnixStream::pair().map_err(MountError::Helper)?;
    let mut child = Command::new("fusermount3")
        .arg("-o")
        .arg(options.helper_options(source))
        .arg("--")
        .arg(mountpoint)
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(MountError::Helper)?;
    let device = receive_device(&ours);
    let mut complaint = String::new();
    if let Some(stderr) = &mut child.stderr {
        let _ = stderr.read_to_string(&mut complaint);
    }
    child.wait().map_err(MountError::Helper)?;
    match device.map_err(MountError::Helper)? {
        Some(device) => Ok(Channel::from(device)),
        None => Err(MountError::HelperFailed(complaint.trim().to_owned())),
    }
}

fn receive_device(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::io::retry_on_intr(|| {
        let mut data = [IoSliceMut::new(&mut byte)];
        rustix::net::recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

/// Time for which an unmount waits for users of the mount.
const MOMENT: Duration = Duration::from_millis(500);

/// Unmounts. Returns EBUSY if the mount stays in use for a moment; brief users are waited for,
/// except with fusermount3, which does not report why it fails.
pub fn unmount(mountpoint: &Path) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        let unmounted = unmount_with(mountpoint, UnmountFlags::NOFOLLOW, "-u");
        let is_busy = matches!(&unmounted, Err(error) if error.kind() == io::ErrorKind::ResourceBusy);
        if !is_busy || begun.elapsed() >= MOMENT {
            return unmounted;
        }
        std::thread::sleep(MOMENT / 50);
    }
}

/// Aborts the connection, so that all requests fail with ENOTCONN, and detaches the mount even if
/// it is in use.
pub fn force_unmount(mountpoint: &Path) -> io::Result<()> {
    if let Some(device) = mounted_device(mountpoint)? {
        // This directory may not be mounted or writable. MNT_FORCE has the same effect.
        let _ = std::fs::write(format!("/sys/fs/fuse/connections/{device}/abort"), "1");
    }
    let flags = UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH;
    unmount_with(mountpoint, flags, "-uz")
}

/// True if a FUSE mount without a server is at `path`. A live server receives a request, and this
/// waits for its answer.
pub fn is_dead(path: &Path) -> io::Result<bool> {
    match rustix::fs::statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS) {
        // A ring that ends with its server reports a cancellation.
        Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) => Ok(true),
        Ok(_) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Detaches a dead mount at `path`; returns false if there is none.
pub fn detach_dead(path: &Path) -> io::Result<bool> {
    let dead = is_dead(path)?;
    if dead {
        force_unmount(path)?;
    }
    Ok(dead)
}

/// The minor number of the device mounted at `path`, if it has no block device. Sends no request to
/// a server.
pub fn mounted_device(path: &Path) -> io::Result<Option<u32>> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = rustix::fs::statx(CWD, path, flags, StatxFlags::empty())?;
    let is_root = stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    Ok((is_root && stat.stx_dev_major == 0).then_some(stat.stx_dev_minor))
}

/// The identifier of the mount at `path`, unique among all mounts (before Linux 6.8, among present
/// ones). A device number is reused by the next mount. Sends no request to a server.
pub(crate) fn mount_at(path: &Path) -> io::Result<Option<u64>> {
    /// `STATX_MNT_ID_UNIQUE`; older kernels ignore it and return the reusable identifier.
    const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = rustix::fs::statx(CWD, path, flags, StatxFlags::MNT_ID | UNIQUE)?;
    Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT).then_some(stat.stx_mnt_id))
}

fn unmount_with(mountpoint: &Path, flags: UnmountFlags, helper_flags: &str) -> io::Result<()> {
    match rustix::mount::unmount(mountpoint, flags) {
        Err(Errno::PERM) if !rustix::process::geteuid().is_root() => {
            unmount_by_helper(mountpoint, helper_flags)
        }
        other => Ok(other?),
    }
}

fn unmount_by_helper(mountpoint: &Path, flags: &str) -> io::Result<()> {
    let arguments: [OsString; 3] = [flags.into(), "--".into(), mountpoint.into()];
    let output = Command::new("fusermount3").args(arguments).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
