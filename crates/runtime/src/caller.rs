//! Facts about callers that the kernel does not include in requests.

use std::sync::Arc;

use libc::{SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH};

/// The supplementary groups of a thread; empty if it has ended.
pub fn groups(pid: u32) -> Arc<[u32]> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|gid| gid.parse().ok()).collect()
}

/// True if the thread waits in a system call that returns no attributes of the directories in its
/// paths: its request for a directory's attributes only checks permissions. False if in doubt, as
/// for a thread that is not visible here or may not be traced.
pub fn takes_no_attributes(pid: u32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    let number = call.split(' ').next().and_then(|number| number.parse().ok());
    number.is_some_and(|number| WITHOUT_ATTRIBUTES.contains(&number))
}

/// System calls that make, open or remove names. `rmdir` is not among them: a 32-bit process uses
/// its number for an old `lstat`.
const WITHOUT_ATTRIBUTES: &[libc::c_long] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_creat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_renameat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_link,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_symlink,
];

/// True if a pending signal, neither handled nor ignored, will end the thread. Also true for a
/// thread that has ended or is not visible here.
pub fn dies(pid: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let signals = |field| {
        let set = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
        u64::from_str_radix(set.trim(), 16).unwrap_or_default()
    };
    let pending = signals("SigPnd:") | signals("ShdPnd:");
    pending & !(signals("SigBlk:") | signals("SigIgn:") | signals("SigCgt:") | HARMLESS) != 0
}

/// Signals whose default action ends no process: ignore, stop or continue.
const HARMLESS: u64 = set(&[SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH]);

const fn set(signals: &[i32]) -> u64 {
    let (mut set, mut at) = (0, 0);
    while at < signals.len() {
        set |= 1 << (signals[at] - 1);
        at += 1;
    }
    set
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    /// A stopped process acts on no signal, so its signals stay pending.
    fn stopped(script: &str) -> Child {
        let child = Command::new("sh").args(["-c", script]).spawn().expect("a shell");
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("a process");
        while !state().contains(") T ") {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        child
    }

    #[test]
    fn opening_takes_no_attributes_and_other_calls_may() {
        let dir = tempfile::tempdir().expect("a directory");
        let fifo = dir.path().join("fifo");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).expect("a fifo");
        let waiting = |script: &str| {
            let child = Command::new("sh").args(["-c", script]).arg(&fifo).spawn().expect("a shell");
            let call = || std::fs::read_to_string(format!("/proc/{}/syscall", child.id()));
            while call().is_ok_and(|call| call.starts_with("running")) {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            child
        };
        // Waits for a writer; the other has opened the fifo and waits in a read.
        for (script, takes_none) in [("exec 3< $0", true), ("exec 3<> $0; read line <&3", false)] {
            let mut child = waiting(script);
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while takes_no_attributes(child.id()) != takes_none {
                assert!(std::time::Instant::now() < deadline, "{script}");
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert_eq!(takes_no_attributes(child.id()), takes_none, "{script}");
            child.kill().expect("a process");
            child.wait().expect("its end");
            assert!(!takes_no_attributes(child.id()), "the process has ended");
        }
    }

    #[test]
    fn only_unhandled_signals_end_a_thread() {
        for (script, signal, ends) in [
            ("kill -STOP $$", Signal::ALARM, true),
            ("kill -STOP $$", Signal::USR1, true),
            ("kill -STOP $$", Signal::WINCH, false),
            ("trap : ALRM; kill -STOP $$", Signal::ALARM, false),
            ("trap '' ALRM; kill -STOP $$", Signal::ALARM, false),
        ] {
            let mut child = stopped(script);
            assert!(!dies(child.id()), "{script}");
            let pid = Pid::from_child(&child);
            kill_process(pid, signal).expect("a process");
            assert_eq!(dies(child.id()), ends, "{script}, {signal:?}");
            kill_process(pid, Signal::KILL).expect("a process");
            child.wait().expect("its end");
            assert!(dies(pid.as_raw_nonzero().get() as u32), "the process has ended");
        }
    }
}
