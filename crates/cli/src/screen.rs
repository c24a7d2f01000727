//! A full-screen terminal display with keyboard input.

use std::io::{IsTerminal, Write, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};

/// The terminal's alternate screen. Dropping it restores the terminal.
pub(crate) struct Screen {
    saved: Termios,
    ended: Arc<AtomicBool>,
    resized: Arc<AtomicBool>,
}

/// Reason for the end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    Timeout,
    /// The terminal was resized.
    Resized,
    Quit,
}

const CTRL_C: u8 = 3;

impl Screen {
    /// Opens the screen; `None` if standard input or output is not a terminal.
    pub(crate) fn open() -> Result<Option<Self>> {
        if !stdin().is_terminal() || !stdout().is_terminal() {
            return Ok(None);
        }
        let (ended, resized) = (Arc::default(), Arc::default());
        for (signal, flag) in [(SIGINT, &ended), (SIGTERM, &ended), (SIGHUP, &ended), (SIGWINCH, &resized)] {
            signal_hook::flag::register(signal, Arc::clone(flag)).context("cannot handle signals")?;
        }
        let saved = tcgetattr(stdin()).context("cannot read how the terminal is set")?;
        let mut keys = saved.clone();
        // Deliver each key at once, without echo and signals: a stop by Ctrl-Z would leave the
        // alternate screen visible.
        keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        tcsetattr(stdin(), OptionalActions::Now, &keys).context("cannot set the terminal")?;
        let screen = Self { saved, ended, resized };
        // Switch to the alternate screen, without a cursor.
        put("\x1b[?1049h\x1b[?25l")?;
        Ok(Some(screen))
    }

    /// Columns and rows.
    pub(crate) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => (80, 24),
        }
    }

    /// Draws the lines that fit.
    pub(crate) fn draw(&self, text: &str) -> Result<()> {
        let mut frame = String::from("\x1b[H");
        for (number, line) in text.lines().take(self.size().1).enumerate() {
            frame += if number == 0 { "" } else { "\r\n" };
            frame += line;
            // Erase to the end of the line, and below.
            frame += "\x1b[K";
        }
        put(&(frame + "\x1b[J"))
    }

    pub(crate) fn wait(&self, limit: Duration) -> Result<Wake> {
        let deadline = Instant::now() + limit;
        loop {
            if self.ended.load(Ordering::Relaxed) {
                return Ok(Wake::Quit);
            }
            if self.resized.swap(false, Ordering::Relaxed) {
                return Ok(Wake::Resized);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Wake::Timeout);
            }
            let input = stdin();
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&left)) {
                Ok(0) => {}
                Ok(_) => {
                    let mut keys = [0; 16];
                    let read =
                        rustix::io::read(&input, &mut keys).context("cannot read from the terminal")?;
                    if read == 0 || keys[..read].iter().any(|key| [b'q', b'Q', CTRL_C].contains(key)) {
                        return Ok(Wake::Quit);
                    }
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for the terminal"),
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = put("\x1b[?25h\x1b[?1049l");
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.saved);
    }
}

fn put(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write to the terminal")
}
