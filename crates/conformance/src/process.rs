//! Child processes: each case runs in one that can be killed, and forks others with different
//! credentials.

use std::fmt::{Debug, Display};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Gid, Uid};

/// Why a case failed, with its source line.
#[derive(Debug, Clone)]
pub struct Failure {
    pub message: String,
    pub skip: bool,
}

/// The result of a case.
pub type CaseResult = Result<(), Failure>;

impl Failure {
    #[track_caller]
    pub fn at(message: impl Into<String>) -> Self {
        let place = Location::caller();
        let file = place.file().rsplit('/').next().unwrap_or_default();
        Self { message: format!("{file}:{}: {}", place.line(), message.into()), skip: false }
    }

    /// Skips the case: the file system or the caller's permissions do not allow the test.
    pub fn skip(message: impl Into<String>) -> Self {
        Self { message: message.into(), skip: true }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    #[track_caller]
    fn from(error: E) -> Self {
        Self::at(error.to_string())
    }
}

/// The error number of either error type of system calls.
pub(crate) trait Code {
    fn code(&self) -> i32;
}

impl Code for std::io::Error {
    fn code(&self) -> i32 {
        self.raw_os_error().unwrap_or(0)
    }
}

impl Code for Errno {
    fn code(&self) -> i32 {
        self.raw_os_error()
    }
}

/// Debug text, shortened if it contains a whole file.
pub(crate) fn short(value: &(impl Debug + ?Sized)) -> String {
    let text = format!("{value:?}");
    match text.char_indices().nth(160) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text,
    }
}

/// A forked child and the pipe for its report.
pub(crate) struct Child {
    pid: libc::pid_t,
    report: File,
}

impl Child {
    /// Forks. Sound because no case forks while it has other threads.
    pub(crate) fn start(body: impl FnOnce() -> CaseResult) -> Result<Self, Failure> {
        let (reader, writer) = pipe()?;
        let _ = std::io::stdout().flush();
        // SAFETY: the child only runs `body` and ends with `_exit`; callers are single-threaded.
        match unsafe { libc::fork() } {
            -1 => Err(std::io::Error::last_os_error().into()),
            0 => {
                drop(reader);
                // An orphan that waits for a lock would outlive the run and keep the mount busy.
                // SAFETY: no pointers are passed.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                let outcome = catch_unwind(AssertUnwindSafe(body))
                    .unwrap_or_else(|_| Err(Failure { message: "panicked".into(), skip: false }));
                let mut pipe = File::from(writer);
                let code = match outcome {
                    Ok(()) => 0,
                    Err(failure) => {
                        let _ = pipe.write_all(failure.message.as_bytes());
                        if failure.skip { 3 } else { 1 }
                    }
                };
                drop(pipe);
                // SAFETY: ends without running the parent's exit handlers.
                unsafe { libc::_exit(code) }
            }
            pid => Ok(Self { pid, report: File::from(reader) }),
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits for the end of the child and returns its report.
    pub(crate) fn wait(mut self) -> CaseResult {
        let mut message = String::new();
        let read = self.report.read_to_string(&mut message);
        let status = self.reap();
        read?;
        Self::outcome(status, message)
    }

    /// As `wait`, but kills a child that runs longer than `limit`.
    pub(crate) fn wait_for(mut self, limit: Duration) -> CaseResult {
        let start = Instant::now();
        loop {
            let mut status = 0;
            // SAFETY: `status` outlives the call.
            let pid = unsafe { libc::waitpid(self.pid, &raw mut status, libc::WNOHANG) };
            if pid == self.pid {
                let mut message = String::new();
                // A grandchild may keep the pipe open after a kill: read only what is there.
                let mut bytes = [0; 4096];
                if let Ok(n) = self.report.read(&mut bytes) {
                    message.push_str(&String::from_utf8_lossy(&bytes[..n]));
                }
                self.pid = 0;
                return Self::outcome(status, message);
            }
            if start.elapsed() > limit {
                self.kill(libc::SIGKILL);
                // A process stuck in the kernel cannot be reaped: abandon it.
                std::thread::sleep(Duration::from_millis(200));
                return Err(Failure { message: format!("timeout after {} s", limit.as_secs()), skip: false });
            }
            std::thread::sleep(Duration::from_micros(if start.elapsed().as_millis() < 20 {
                200
            } else {
                5000
            }));
        }
    }

    pub(crate) fn kill(&self, signal: i32) {
        // SAFETY: a plain system call; the pid is our own unreaped child.
        unsafe { libc::kill(self.pid, signal) };
    }

    fn reap(&mut self) -> i32 {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        while unsafe { libc::waitpid(self.pid, &raw mut status, 0) } == -1
            && std::io::Error::last_os_error().code() == libc::EINTR
        {}
        status
    }

    fn outcome(status: i32, message: String) -> CaseResult {
        if libc::WIFSIGNALED(status) {
            let signal = libc::WTERMSIG(status);
            return Err(Failure { message: format!("killed by signal {signal} {message}"), skip: false });
        }
        match libc::WEXITSTATUS(status) {
            0 => Ok(()),
            code => Err(Failure { message, skip: code == 3 }),
        }
    }
}

/// Runs `body` in a child and waits for it.
pub(crate) fn in_child(body: impl FnOnce() -> CaseResult) -> CaseResult {
    Child::start(body)?.wait()
}

/// A user that owns nothing and is only in its own group and the given ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

pub(crate) const ALICE: User = User { uid: 60_001, gid: 61_001 };
pub(crate) const BOB: User = User { uid: 60_002, gid: 61_002 };
/// A group without a user, for supplementary membership.
pub(crate) const STAFF: u32 = 61_009;

impl User {
    /// Runs `body` as this user in a child.
    pub(crate) fn run(self, body: impl FnOnce() -> CaseResult) -> CaseResult {
        self.run_in(&[], body)
    }

    /// As `run`, with supplementary groups.
    pub(crate) fn run_in(self, groups: &[u32], body: impl FnOnce() -> CaseResult) -> CaseResult {
        in_child(|| {
            self.become_in(groups)?;
            body()
        })
    }

    /// Changes the credentials of the calling process permanently.
    pub(crate) fn become_in(self, groups: &[u32]) -> CaseResult {
        let groups: Vec<Gid> = groups.iter().map(|&g| Gid::from_raw(g)).collect();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        rustix::thread::set_thread_groups(&groups)?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        Ok(())
    }
}

/// A pipe whose ends close on exec.
pub(crate) fn pipe() -> Result<(OwnedFd, OwnedFd), Failure> {
    let mut ends: [RawFd; 2] = [-1; 2];
    // SAFETY: the array has room for both ends.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: both descriptors are new and owned here.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// A one-way signal between processes: created before the fork, rung by one, awaited by the other.
pub(crate) struct Bell {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Bell {
    pub(crate) fn new() -> Result<Self, Failure> {
        let (reader, writer) = pipe()?;
        Ok(Self { reader, writer })
    }

    pub(crate) fn ring(&self) -> CaseResult {
        rustix::io::write(&self.writer, b"!")?;
        Ok(())
    }

    pub(crate) fn wait(&self) -> CaseResult {
        let mut poll = libc::pollfd { fd: self.reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which outlives the call.
        if unsafe { libc::poll(&raw mut poll, 1, 20_000) } != 1 {
            return Err(Failure::at("the other process did not ring within 20 s"));
        }
        let mut byte = [0];
        rustix::io::read(&self.reader, &mut byte)?;
        Ok(())
    }
}

/// Adds a description to an error.
pub(crate) trait Context<T> {
    fn context(self, context: impl Display) -> Result<T, Failure>;
}

impl<T, E: std::error::Error> Context<T> for Result<T, E> {
    #[track_caller]
    fn context(self, context: impl Display) -> Result<T, Failure> {
        match self {
            Ok(value) => Ok(value),
            Err(error) => Err(Failure::at(format!("{context}: {error}"))),
        }
    }
}
