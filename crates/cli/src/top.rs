//! `espalier top`: the load of a mounted file system, live.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use espalier_runtime::{Top, top_of};

use crate::args::TopArgs;
use crate::screen::{Screen, Wake};
use crate::{report, table};

/// Line width of printed tables.
const PRINTED_WIDTH: usize = 4096;

pub(crate) fn top(args: &TopArgs) -> Result<ExitCode> {
    let Some(store) = report::store_of(&args.mountpoint)? else {
        bail!("no Espalier file system is mounted on {}", args.mountpoint.display());
    };
    report::not_served_elsewhere(&store)?;
    let interval = Duration::from_secs_f64(args.interval);
    let look = Look {
        store: &store,
        viewer: viewer(),
        lasting: 3 * interval + Duration::from_secs(10),
        rows: args.rows,
    };
    // The first request starts the counting of operations.
    look.now()?;
    let screen = if args.once || args.json { None } else { Screen::open()? };
    if let Some(screen) = screen {
        return on_screen(&args.mountpoint, interval, &look, &screen);
    }
    loop {
        std::thread::sleep(interval);
        let top = look.now()?;
        let text = if args.json {
            serde_json::to_string(&top)? + "\n"
        } else {
            table::top(&args.mountpoint, &top, PRINTED_WIDTH) + "\n"
        };
        match std::io::stdout().write_all(text.as_bytes()) {
            Ok(()) if !args.once => {}
            Ok(()) => return Ok(ExitCode::SUCCESS),
            // The reader has closed the pipe.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
            Err(error) => return Err(error.into()),
        }
    }
}

fn on_screen(mountpoint: &Path, interval: Duration, look: &Look<'_>, screen: &Screen) -> Result<ExitCode> {
    screen.draw("counting; q ends")?;
    let mut last = None;
    loop {
        match screen.wait(interval)? {
            Wake::Quit => return Ok(ExitCode::SUCCESS),
            Wake::Timeout => last = Some(look.now()?),
            Wake::Resized => {}
        }
        if let Some(last) = &last {
            screen.draw(&table::top(mountpoint, last, screen.size().0))?;
        }
    }
}

/// Requests figures from the file system.
struct Look<'a> {
    store: &'a Path,
    viewer: u64,
    lasting: Duration,
    rows: usize,
}

impl Look<'_> {
    /// Figures since the previous request.
    fn now(&self) -> Result<Top> {
        Ok(top_of(self.store, self.viewer, self.lasting, self.rows)?)
    }
}

/// A random number that identifies this viewer.
fn viewer() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos()) << 32 | u64::from(std::process::id())
}
