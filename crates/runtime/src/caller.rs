//! Facts about callers that the kernel does not include in requests.

use std::sync::Arc;

use libc::{SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH};

/// The supplementary groups of a thread; empty if it has ended.
pub fn groups(pid: u32) -> Arc<[u32]> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|gid| gid.parse().ok()).collect()
}

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
